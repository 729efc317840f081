"""Weights are stored in the type and the form that they are used in, under their names."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from flax import nnx

import jaxport
from jaxport.export.passes.constants import constants
from jaxport.testing import check, f32
from tests.export.passes.fusions import operators

HALVES = {np.float16: ir.DataType.FLOAT16, jnp.bfloat16: ir.DataType.BFLOAT16}


@pytest.mark.parametrize("dtype", HALVES)
def test_weights_of_a_model_in_half_precision(dtype):
    layer = nnx.Linear(40, 50, dtype=dtype, rngs=nnx.Rngs(0))
    exported = check(layer, f32("B", 40), without={"float64": "of half precision"}, atol=0.05)
    weights = exported.model.graph.initializers
    assert weights["kernel"].dtype == HALVES[dtype]
    assert "bias" in weights
    expected = np.asarray(layer.kernel[...]).astype(dtype)
    np.testing.assert_array_equal(weights["kernel"].const_value.numpy(), expected)


def test_a_weight_that_is_moved_too():
    layer = nnx.LinearGeneral(40, (5, 10), dtype=np.float16, rngs=nnx.Rngs(0))
    exported = jaxport.to_onnx(layer, [("B", 40)])
    assert exported.model.graph.initializers["kernel"].shape == ir.Shape([40, 50])


def test_a_weight_that_is_used_in_both_types():
    weight = nnx.Param(jax.random.normal(jax.random.key(0), (40, 50)))

    class Both(nnx.Module):
        def __init__(self):
            self.weight = weight

        def __call__(self, x):
            half = x.astype(np.float16) @ self.weight[...].astype(np.float16)
            return half.astype(np.float32) + x @ self.weight[...]

    exported = check(Both(), f32("B", 40), without={"float64": "of half precision"}, atol=0.05)
    assert exported.model.graph.initializers["weight"].dtype == ir.DataType.FLOAT
    assert operators(exported)["Cast"] == 3


def test_a_loop_without_a_number_of_steps_stays():
    text = """<ir_version: 8, opset_import: ["": 21]> g () => (float y) <bool go = {1}, float start = {2}> {
        y = Loop(, go, start) <body = b (int64 i, bool c, float v) => (bool d, float w) { d = Not(c) w = Add(v, v) }> }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert constants(model) == "nothing to do"
    assert [node.op_type for node in model.graph] == ["Loop"]
