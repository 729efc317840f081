"""Blocks that do not divide an axis are filled up for OpenVINO, and the values stay."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.mox import quantize
from jaxport.testing import expect_graph

WEIGHTS = np.random.default_rng(0).normal(size=(48, 48)).astype(np.float32) / 8


def report(exported):
    return next(r.text for r in exported.pass_reports if r.name == "whole_blocks")


def twice(x):
    return jnp.tanh(x @ WEIGHTS) @ WEIGHTS.T


def loop(x):
    return lax.fori_loop(0, x.shape[0], lambda _, y: jnp.tanh(y @ WEIGHTS), x)


@pytest.mark.parametrize(
    ("fn", "group", "symmetric", "count"), [(twice, 32, False, 2), (twice, 32, True, 2), (loop, 32, False, 1), (twice, 16, True, 0)]
)  # fmt: skip
def test_the_last_block_is_filled_up(fn, group, symmetric, count):
    form = jaxport.Int4(group, symmetric)
    whole, partial = (
        jaxport.to_onnx(fn, [("B", 48)], precision=form, target=target, opset=21) for target in ("openvino", "onnx")
    )
    assert report(whole) == (f"{count} last blocks" if count else "nothing to do")
    x = np.random.default_rng(1).normal(size=(3, 48)).astype(np.float32)
    np.testing.assert_allclose(whole(x), partial(x), rtol=0, atol=1e-5)
    assert whole.verify(sizes=[{"B": 3}]).ok


def test_weights_that_a_module_expression_quantized():
    x = jnp.ones((2, 48))
    mox = jaxport.make_mox(nnx.Linear(48, 8, rngs=nnx.Rngs(0)))(x)
    small = mox.sub("//Linear", quantize(dtype="int4", group=32, symmetric=False))
    exported = jaxport.to_onnx(small, [x], target="openvino", opset=21)
    expect_graph(exported, counts={"DequantizeLinear": 1, "Slice": 1})
    assert exported.verify().ok
