"""Printed source at the edges of what graphs are: scalars, results that are weights, known tables, nothing computed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

import jaxport
from jaxport.errors import ModelError
from tests.codegen import structured
from tests.importer.models import program
from tests.importer.printed import load

TABLE = "t = Constant<value_floats = [1.0, 2.0, 4.0]>()"
X, INDICES = np.array([0.5], np.float32), np.array([2, 0], np.int32)
GRAPHS: dict[str, tuple[str, list[np.ndarray]]] = {
    "lookup in a known table": (f"g (int32[2] i) => (float[2] y) {{ {TABLE} y = Gather(t, i) }}", [INDICES]),
    "lookup of known rows": (
        f"g (float[1] x) => (float[2] y) {{ {TABLE} i = Constant<value_ints = [0, 1]>() a = Gather(t, i) y = Mul(a, x) }}",
        [X],
    ),
    "reshape to a scalar": ("g (float[1] x) => (float y) <int64[0] s = {}> { y = Reshape(x, s) }", [X]),
    "squeeze to a scalar": ("g (float[1] x) => (float y) { y = Squeeze(x) }", [X]),
    "a weight as result": ("g (float[1] x) => (float[1] y, float[2] w) <float[2] w = {1, 2}> { y = Neg(x) }", [X]),
    "a weight that is used, too": (
        "g (float[1] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add(x, w) }",
        [X],
    ),
    "a weight alone": ("g () => (float[2] w) <float[2] w = {1, 2}> { }", []),
    "an input as result": ("g (float[1] x) => (float[1] y, float[1] x) { y = Neg(x) }", [X]),
    "a result twice": ("g (float[1] x) => (float[1] y, float[1] z) { y = Neg(x) z = Identity(y) }", [X]),
    "a node without results": ("g (float[1] x) => (float[1] y) { y = Neg(x)  = Identity(x) }", [X]),
    "a constant alone": ("g () => (float[2] y) { y = Constant<value_floats = [1.0, 2.0]>() }", []),
}


@pytest.mark.parametrize("framework", ["jax", "nnx", "equinox"])
@pytest.mark.parametrize("name", GRAPHS)
def test_printed_source_runs(name: str, framework: str) -> None:
    graph, inputs = GRAPHS[name]
    made = program(graph)
    expected, function = made(*inputs), None
    if framework == "jax":
        module = load(made.to_source(framework="jax"))
        function: Any = lambda *given: module.model(module.params, *given)
    else:
        with tempfile.TemporaryDirectory() as folder:
            made.to_source(folder, framework=framework)
            function = structured.load(Path(folder)).load()
    result = function(*inputs)
    for found, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert np.shape(found) == np.shape(wanted)
        np.testing.assert_array_equal(found, wanted)


class Scaled(nnx.Module):
    def __init__(self) -> None:
        self.scale = nnx.Param(jnp.array(2.0))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * jnp.exp(self.scale[...])


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_a_scalar_weight_stays_one_in_its_file(framework: str, tmp_path: Path) -> None:
    jaxport.from_onnx(jaxport.to_onnx(Scaled(), [(1,)])).to_source(tmp_path, framework=framework)
    assert [tensor.shape for tensor in load_file(tmp_path / "model.safetensors").values()] == [()]
    np.testing.assert_allclose(structured.load(tmp_path).load()(X), X * np.exp(2), rtol=1e-6)


def test_branches_with_different_numbers_of_results_are_refused() -> None:
    made = program(
        """g (bool c, float[1] x) => (float[1] y) { y = If(c) <
            then_branch = a () => (float[1] p, float[1] q) { p = Neg(x) q = Abs(x) },
            else_branch = b () => (float[1] r) { r = Abs(x) }> }"""
    )
    for framework in ("jax", "nnx"):
        with pytest.raises(ModelError, match="the branches have 2 and 1 results"):
            made.to_source(framework=framework)
    with pytest.raises(ModelError, match="the branches have 2 and 1 results"):
        made(np.array(True), X)
