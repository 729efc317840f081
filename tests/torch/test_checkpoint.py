"""Printed models load other checkpoints of PyTorch by the names of the state dict, and compute what PyTorch does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns of itself
    torch = pytest.importorskip("torch", reason="PyTorch has an environment of its own: `make test-torch`")
    from torch import nn

    from tests.torch.exporting import export_case
    from tests.torch.models import CASES, SIZES, Case

import jaxport
from tests.codegen.structured import load

pytestmark = pytest.mark.torch


class Images(nn.Module):
    """A convolution whose normalization cannot be fused with it, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Any) -> Any:
        return self.head(torch.relu(self.conv(torch.tanh(self.norm(images)))).mean((2, 3)))


IMAGES = Case(
    Images, lambda sizes: {"images": torch.randn(sizes.batch, 3, sizes.side, sizes.side)}, {"images": {0: "batch"}}
)


def randomized(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The model with random weights, none of which are equal: exporters merge those that are."""
    torch.manual_seed(seed)
    model = make().eval()
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(0.2 * torch.rand_like(tensor) + 0.1 * torch.randn_like(tensor).abs())
    return model


@pytest.mark.parametrize("name", ["images", "bert", "gpt2", "llama"])
def test_a_checkpoint_is_loaded(name: str, tmp_path: Path) -> None:
    case = IMAGES if name == "images" else CASES[name]
    path = tmp_path / "model.onnx"
    made = Case(lambda: randomized(case.make, 0), case.inputs, case.axes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export_case(made, SIZES[:1], "dynamo", 20, path)
    other = randomized(case.make, 1)
    state = {name: tensor for name, tensor in other.state_dict().items() if ".pooler." not in name}  # is no output
    inputs = case.inputs(SIZES[0])
    with torch.no_grad():
        expected = other(*inputs.values()).numpy()
    for framework in ("nnx", "equinox"):
        jaxport.from_onnx(path).to_source(tmp_path / framework, framework=framework)
        module = load(tmp_path / framework)
        found = module.load_pytorch(state)(*(value.numpy() for value in inputs.values()))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
        with pytest.raises(ValueError, match="missing: "):
            module.load_pytorch({})
