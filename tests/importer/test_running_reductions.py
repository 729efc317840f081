"""Running maxima, minima and products (`RunningReduction`), which a file has as loops: JAX's functions, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from jax import lax

import jaxport
from jaxport.errors import ValueNotKnown
from jaxport.testing import f32, i32

NAN, INF = np.nan, np.inf
SAMPLES = [np.array([row], np.float32) for row in ([2.0], [1.0, NAN, 3.0, -INF, INF, -0.0, 0.0], [0.5, -0.5])]
LOOP = """<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) <int64 one = {1}, float low = {LOW}, int64[2] side = {1, 0},
    int64[1] zero = {0}> { s = Shape(x) n = Squeeze(s) go = Less(one, n) y, last = Loop(, go, x, one) <body = b
    (int64 i, bool g, float[n] v, int64 d) => (bool next, float[n] w, int64 twice) { twice = Add(d, d) next = Less(twice, n)
    u = Unsqueeze(d, zero) e = Neg(u) kept = Slice(v, zero, e, zero) pads = Mul(u, side) moved = Pad(kept, pads, low) w = Max(v, moved) }> }"""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("function", [lax.cummax, lax.cummin, lax.cumprod, lax.cumlogsumexp])
def test_they_are_those_of_jax(function: Callable[..., jax.Array], reverse: bool):
    running = lambda x: function(x, axis=1, reverse=reverse)
    program = jaxport.from_onnx(jaxport.to_onnx(running, [f32("b", "n")], opset=24).model)
    for framework in ("jax", "nnx"):
        assert f"lax.{function.__name__}(x, axis=1, reverse={reverse})" in program.to_source(framework=framework).code
    for x in SAMPLES:
        np.testing.assert_array_equal(jax.jit(program)(x), running(x))
        np.testing.assert_array_equal(program(x), running(x))
    x = np.array([[0.5, 2.0, -1.0]], np.float32)
    slopes = (jax.grad(lambda x, f=f: f(x).sum())(x) for f in (program, running))
    np.testing.assert_array_equal(*slopes)


def test_several_that_share_a_condition_in_a_loop():
    def step(state, row):
        state = lax.cummax(jnp.minimum(state, row), reverse=True) - lax.cummin(state)
        return state, state[0]

    scanned = lambda x: lax.scan(step, x[0], x)
    program = jaxport.from_onnx(jaxport.to_onnx(scanned, [i32("t", "n")]).model)
    code = program.to_source(framework="jax").code
    assert ("while_loop" not in code, code.count("lax.cummax("), code.count("lax.cummin(")) == (True, 1, 1)
    x = np.arange(12, dtype=np.int32).reshape(3, 4) * 7 % 11
    for found, expected in zip(program(x), scanned(x), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("low", "is_one"), [("-3.0e38", False), ("-inf", True)])
def test_others_stay_loops(low: str, is_one: bool):
    """A loop that fills with another number than the least one is none of JAX's functions."""
    program = jaxport.from_onnx(ir.from_onnx_text(LOOP.replace("LOW", low)))
    x = np.array([-INF, 1.0, -2.0, 4.0, 3.0], np.float32)
    np.testing.assert_array_equal(
        program(x), np.maximum.accumulate(np.maximum(x, float(low))) if not is_one else lax.cummax(x)
    )
    if is_one:
        assert "lax.cummax" in program.to_source(framework="jax").code
    else:
        with pytest.raises(ValueNotKnown):
            program.to_source(framework="jax")
