"""The models that PyTorch's two exporters write are imported, and equal ONNX Runtime at two sets of sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch.imported import comparisons, traces_symbolically

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from tests.torch.models import CASES, export

    folder = tmp_path_factory.mktemp("models")
    for name in CASES:
        export(name, folder)
    return folder


def test_every_model_equals_onnx_runtime(folder: Path):
    paths = sorted(folder.glob("*.onnx"))
    assert len(paths) > 30
    found = {path.name: list(comparisons(path)) for path in paths}
    assert {name: [str(o.difference) for o in outputs if not o.ok] for name, outputs in found.items()} == {
        name: [] for name in found
    }


def test_almost_every_model_traces_with_sizes_that_are_names(folder: Path):
    refused = {path.name: traces_symbolically(path) for path in sorted(folder.glob("*.onnx"))}
    assert sum(map(bool, refused.values())) <= 0.05 * len(refused), refused
