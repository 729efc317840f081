"""Products of groups of rows whose sizes are data: traced as `lax.ragged_dot` (the operator GroupedProduct), printed, and written again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.errors import ValueNotKnown
from jaxport.testing import i32, spec
from tests.exports import operators
from tests.importer.models import program
from tests.importer.printed import load

RNG = np.random.default_rng(0)
WEIGHTS, X = RNG.normal(size=(3, 4, 5)).astype(np.float32), RNG.normal(size=(7, 4)).astype(np.float32)
SIZES = [np.array(sizes, np.int32) for sizes in ([3, 0, 2], [0, 7, 0], [5, 5, 5], [0, 0, 0])]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_groups_are_traced_printed_and_written_again(dtype) -> None:
    weights, x = jnp.asarray(WEIGHTS, dtype), jnp.asarray(X, dtype)
    inputs = [spec("R", 4, dtype=dtype), i32(3)]
    imported = jaxport.from_onnx(jaxport.to_onnx(lambda x, sizes: lax.ragged_dot(x, weights, sizes), inputs).model)
    source = imported.to_source(framework="jax")
    module = load(source)
    assert "lax.ragged_dot(" in source.code
    printed = jax.jit(lambda *given: module.model(module.params, *given))
    again = jaxport.to_onnx(imported, inputs)
    assert operators(again).count("MatMul") == len(WEIGHTS)
    for sizes in SIZES:
        expected = np.float32(lax.ragged_dot(x, weights, sizes))
        for run in (jax.jit(imported), printed, again):
            np.testing.assert_allclose(np.float32(run(x, sizes)), expected, rtol=1e-2, atol=1e-2)
    slope = jax.grad(lambda x: jnp.sum(jax.jit(imported)(x, SIZES[0]).astype(jnp.float32)))(x)
    expected = jax.grad(lambda x: jnp.sum(lax.ragged_dot(x, weights, SIZES[0]).astype(jnp.float32)))(x)
    np.testing.assert_allclose(np.float32(slope), np.float32(expected), rtol=1e-2, atol=1e-2)


TEXT = """net (float[7,2] x, int64[3] sizes) => (float[7,2] y)
    <float[2,2] a = {1, 2, 3, 4}, float[2,2] b = {5, 6, 7, 8}, float zero = {0}, int64[1] first = {0}, int64[1] two = {2}, int64[1] three = {3}> {
        xa, xb, xc = Split<axis=0>(x, sizes)
        ya = MatMul(xa, a)
        yb = MatMul(xb, b)
        rows = Slice(sizes, two, three, first)
        shape = Concat<axis=0>(rows, two)
        zeros = Expand(zero, shape)
        y = Concat<axis=0>(ya, yb, zeros)
    }"""
OTHERS = {
    "as it is": ("", ""),
    "other rows of zeros": ("Slice(sizes, two, three, first)", "Slice(sizes, first, two, first)"),
    "ones behind the groups": ("zero = {0}", "zero = {1}"),
    "parts in another order": ("MatMul(xa, a)", "MatMul(xb, a)"),
    "another product": ("MatMul(xb, b)", "Add(xb, x)"),
}


@pytest.mark.parametrize("change", OTHERS)
def test_only_these_products_are_joined(change: str) -> None:
    imported = program(TEXT.replace(*OTHERS[change]) if OTHERS[change][0] else TEXT)
    x = jnp.asarray(X[:, :2])
    if change == "as it is":
        found = jax.jit(imported)(x, np.array([2, 4, 1]))
        expected = lax.ragged_dot(x, jnp.array([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]]), jnp.array([2, 4]))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        return
    with pytest.raises(ValueNotKnown, match="has to be known before the program is traced"):
        jax.jit(imported)(x, np.array([2, 4, 1]))
