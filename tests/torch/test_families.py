"""Families of models that users bring, from `from_torch` to five steps of training: see `tests.torch.families`."""

from __future__ import annotations

import importlib.util
import re
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns of itself
    pytest.importorskip("torch", reason="PyTorch has an environment of its own: `make test-torch`")
    from tests.torch.families import FAMILIES, REFUSED, attempts

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # libraries of models warn of themselves
LIBRARIES = ("torchvision", "timm", "diffusers")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_imported_printed_loaded_and_trained(name: str, tmp_path: Path):
    library = name.partition(" ")[0]
    if library in LIBRARIES and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: it is in tests/torch/requirements.txt")
    failed = {question: str(error) for question, _, error in attempts(name, tmp_path) if error is not None}
    refused = REFUSED.get(name, {})
    assert failed.keys() == refused.keys(), failed
    for question, told in refused.items():
        assert re.search(told, failed[question]), failed[question]


def test_what_is_refused_is_a_family() -> None:
    assert REFUSED.keys() <= FAMILIES.keys()
