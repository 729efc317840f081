"""Loops that read arrays row by row (`LoopOverRows`) are scans over the rows, also from the end, and where there may be none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import pytest
from jax import lax

import jaxport
from jaxport.testing import f32

HEADER = '<ir_version: 10, opset_import: ["": 21]> g (float[n, 2] x) => (float[2] y, float[m, 2] rows)'
LOOP = (
    HEADER
    + """ <float[2] zero = {0.0, 0.0}, int64 one = {1}, int64 none = {0}>
    { s = Shape<start = 0, end = 1>(x) n = Squeeze(s) TRIPS y, rows = Loop(trips, , zero) <body = b
    (int64 i, bool go, float[2] state) => (bool next, float[2] sum, float[2] row)
    { next = Identity(go) AT r = Gather<axis = 0>(x, at) sum = Add(state, r) row = Identity(sum) }> }"""
)


def running(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    return state * 0.5 + row, state - row


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.scan(running, x[0], x[1:]),
        lambda x: lax.scan(running, x[0], x[1:], reverse=True),
        lambda x: lax.scan(lambda s, rows: running(s, rows[0] - rows[1]), x[0], (x[1:], x[:-1])),
        lambda x: lax.associative_scan(jnp.maximum, x),
    ],
)
def test_rows_behind_the_first(function: Callable[..., Any]):
    program = jaxport.from_onnx(jaxport.to_onnx(function, [f32("n", 3)]).model)
    code = program.to_source(framework="jax").code
    assert "jnp.arange" not in code
    assert "jnp.take(" not in code.partition("def step")[2]
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for array in (x, x[:2], x[:1]):
        for call in (program, jax.jit(program)):
            found, expected = jax.tree.leaves(call(array)), jax.tree.leaves(function(array))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, 1e-6)


@pytest.mark.parametrize(
    ("trips", "at", "rows"),
    [
        ("trips = Identity(n)", "at = Identity(i)", [0, 1, 2, 3]),
        ("trips = Sub(n, one)", "at = Identity(i)", [0, 1, 2]),
        ("trips = Identity(n)", "e = Sub(n, one) at = Sub(e, i)", [3, 2, 1, 0]),
        ("trips = Identity(n)", "at = Sub(none, i)", [0, 3, 2, 1]),
        ("trips = Identity(n)", "at = Sub(n, i)", None),
        ("trips = Add(n, one)", "at = Identity(i)", None),
    ],
)
def test_rows_of_a_loop(trips: str, at: str, rows: list[int] | None):
    """Fewer rows than the array has, and other places of them, are read one by one; what is outside is NaN."""
    program = jaxport.from_onnx(onnx.parser.parse_model(LOOP.replace("TRIPS", trips).replace("AT", at)))
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    last, sums = program(x)
    if rows is None:
        assert np.isnan(last).all()
        return
    np.testing.assert_array_equal(sums, np.cumsum(x[rows], 0))
    for one, other in zip(jax.jit(program)(x), (last, sums), strict=True):
        np.testing.assert_array_equal(one, other)
