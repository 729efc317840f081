"""The models that PyTorch's two exporters write are imported, and equal ONNX Runtime at two sets of sizes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns of itself
    pytest.importorskip("torch", reason="PyTorch has an environment of its own: `make test-torch`")
    from tests.torch.exporting import cells, export
    from tests.torch.models import CASES

from tests.torch.conftest import PROPERTY
from tests.torch.imported import Checks

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("name", "exporter", "variant"), cells())
def test_imported(
    name: str, exporter: str, variant: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    row: dict[str, object] = {"model": name, "exporter": exporter, "variant": variant}
    refusal, baked = CASES[name].refused.get(exporter), CASES[name].baked.get(exporter)
    if baked is not None:
        record_property(PROPERTY, row | {"refused": baked})
        return
    if refusal is not None:
        with pytest.raises(Exception, match=re.escape(refusal)):
            export(name, exporter, variant, tmp_path)
        record_property(PROPERTY, row | {"refused": refusal})
        return
    checks = Checks(export(name, exporter, variant, tmp_path))
    answers = checks.run()
    record_property(PROPERTY, row | checks.facts() | answers)
    assert {question: why for question, why in answers.items() if why} == {}
