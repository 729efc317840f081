"""What an export costs, in calls of this package's functions: seconds depend on the machine and on what else it does.

A budget that is passed is growth that somebody should see: find what is asked more often than before, or raise the number and say why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Set
from pathlib import Path
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from flax import nnx

import jaxport
from jaxport.export import passes

ROOT = str(Path(jaxport.__file__).parent)


class Gelu(nnx.Module):
    def __init__(self) -> None:
        self.linear = nnx.Linear(8, 8, rngs=nnx.Rngs(0))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.gelu(self.linear(x), approximate=False)


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, width: int = 16) -> None:
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


def layers(count: int) -> Callable[[jax.Array], jax.Array]:
    return nnx.Sequential(*[Layer(nnx.Rngs(0)) for _ in range(count)])


def masked(count: int, width: int = 16) -> Callable[[jax.Array], jax.Array]:
    """Layers of plain JAX, each with a causal mask of its own, whose sizes are open."""
    weights = np.random.default_rng(0).standard_normal((count, 4, width, width)).astype(np.float32)

    def model(x: jax.Array) -> jax.Array:
        for query, key, value, out in weights:
            length = x.shape[1]
            scores = (x @ query) @ (x @ key).transpose(0, 2, 1) / np.sqrt(np.float32(width))
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
            x = x + jax.nn.softmax(scores) @ (x @ value) @ out
            x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x

    return model


def calls(function: Callable[[], object]) -> int:
    """How many calls of functions of this package a call makes."""
    count = 0

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(ROOT)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


CASES = {
    "a Linear and an exact GELU": (Gelu, ("B", 8), 8_000),
    "4 layers of NNX": (lambda: layers(4), ("B", 16, 16), 175_000),
    "4 plain layers, open lengths": (lambda: masked(4), ("B", "T", 16), 93_000),
}


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    """The calls of each case, in a process of its own: a window asks for the methods of all classes of a process."""
    run = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", CASES)
def test_an_export_keeps_to_its_budget_of_calls(name: str, found: dict[str, int]) -> None:
    _, _, budget = CASES[name]
    assert budget / 2 < found[name] < budget


def convolution(x: jax.Array) -> jax.Array:
    kernel = jnp.ones((3, 3, 4, 4)) / 9
    x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return nnx.avg_pool(nnx.relu(x), (2, 2), (2, 2))


GRAPHS = {
    "convolution": (convolution, ("B", 8, 8, 4)),
    "attention": (masked(2), ("B", "T", 16)),
    "GELU": (lambda x: jax.nn.gelu(x, approximate=False) + jax.lax.erfc(x), ("B", 3)),
    "scan": (lambda x: jax.lax.scan(lambda c, row: (c + row, jnp.tanh(c @ jnp.ones((4, 4)))), x[0], x), (5, 2, 4)),
    "joined": (lambda x: jnp.concatenate([x, x[:, ::-1], jnp.pad(x, 1)[1:-1]], axis=1), ("B", 6)),
    "choice": (lambda x: jnp.where(x > 0, x, jnp.where(x > 1, 0.0, -x)).sum(), ("B", 6)),
    "images": (lambda x: jax.image.resize(x.transpose(0, 3, 1, 2), (2, 3, 8, 8), "bilinear"), (2, 4, 4, 3)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_pass_has_nothing_to_do_where_it_does_not_begin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a pass declares, running it anyway finds nothing and changes nothing."""
    begun: list[str] = []
    begins = passes.begins

    def checked(graph_pass: object, present: Set[str]) -> bool:
        if begins(graph_pass, present):
            begun.append(passes.pass_name(graph_pass))
            return True
        before = ir.to_proto(models[0]).SerializeToString()
        assert graph_pass(models[0]) == passes.NOTHING, graph_pass
        assert ir.to_proto(models[0]).SerializeToString() == before, graph_pass
        return False

    models: list[ir.Model] = []
    present_in = passes.operators_of
    monkeypatch.setattr(passes, "operators_of", lambda model: models.insert(0, model) or present_in(model))
    monkeypatch.setattr(passes, "begins", checked)
    function, shape = GRAPHS[name]
    jaxport.to_onnx(function, [shape]).verify()
    assert 5 < len(begun) < len(passes.DEFAULT)


def main() -> None:
    counts = {}
    for name, (make, shape, _) in CASES.items():
        jaxport.to_onnx(make(), [shape])  # patterns are made once in a process
        counts[name] = calls(lambda make=make, shape=shape: jaxport.to_onnx(make(), [shape]))
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main()
