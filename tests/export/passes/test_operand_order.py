"""Constants are the second operand of what commutes, and the values stay."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from jax import lax

import jaxport
from jaxport.export.passes import DEFAULT
from jaxport.export.passes.operand_order import operand_order
from jaxport.graph.editing import constant_of
from jaxport.testing import boolean, check, expect_graph, f32, i32

GENERATOR = np.random.default_rng(11)
VECTOR = GENERATOR.uniform(1, 2, 4).astype(np.float32)
LARGE = GENERATOR.uniform(1, 2, (300, 4)).astype(np.float32)

SECOND = {
    "a sum": (lambda x: VECTOR + x, f32("B", 4), "Add"),
    "a product": (lambda x: 3.0 * x, f32("B", 4), "Mul"),
    "of higher rank than the other": (lambda x: VECTOR[None, None] * x, f32(4), "Mul"),
    "a mask": (lambda x: jnp.logical_and(np.array([True, False, True]), x), boolean("B", 3), "And"),
    "bits": (lambda x: 6 ^ x, i32("B"), "BitwiseXor"),
    "a comparison": (lambda x: x == 2, i32("B"), "Equal"),
    "in a loop": (lambda x: lax.fori_loop(0, x.shape[0], lambda _, c: VECTOR + c, x[0]), f32("B", 4), "Add"),
}


@pytest.mark.parametrize(("fn", "given", "operator"), SECOND.values(), ids=SECOND)
def test_constants_are_second(fn, given, operator):
    exported = check(fn, given, without={"empty": "of the rules"})
    nodes = [node for node in exported.model.graph.all_nodes() if node.op_type == operator]
    assert nodes
    assert all(constant_of(node.inputs[0]) is None for node in nodes)


def test_what_is_computed_of_weights_is_second():
    outside = {"empty": "of the rules", "float64": "the weights are float32"}
    exported = check(lambda x: jnp.tanh(LARGE) * x, f32("B", 300, 4), without=outside)
    (product,) = (node for node in exported.model.graph if node.op_type == "Mul")
    assert [value.producer() is None for value in product.inputs] == [True, False]


KEPT = {
    "what does not commute": (lambda x: 2.0 - x, "Sub"),
    "what chooses between zeros": (lambda x: lax.max(jnp.zeros_like(x), x), "Max"),
    "no constant": (lambda x: jnp.exp(x) + x, "Add"),
}


@pytest.mark.parametrize(("fn", "operator"), KEPT.values(), ids=KEPT)
def test_what_is_left(fn, operator):
    passes = [p for p in DEFAULT if p is not operand_order]
    exported, plain = check(fn, f32("B", 4)), jaxport.to_onnx(fn, [("B", 4)], passes=passes)
    assert _operands(exported, operator) == _operands(plain, operator)


def _operands(exported, operator):
    return [[v.name for v in node.inputs] for node in exported.model.graph if node.op_type == operator]


def test_random_numbers_are_no_constants():
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    like = ir.Value(name="like", const_value=ir.tensor(np.zeros(2, np.float32)))
    noise = ir.node("RandomNormalLike", [like], name="noise")
    total = ir.node("Add", [noise.outputs[0], x], name="total")
    graph = ir.Graph(
        [x], total.outputs, nodes=[noise, total], initializers=[like], opset_imports={"": 21}, name="graph"
    )
    assert operand_order(ir.Model(graph, ir_version=10)) == "nothing to do"
    assert total.inputs[1] is x


def test_in_a_function():
    @jaxport.onnx_function
    def layer(x):
        return VECTOR * x

    exported = check(lambda x: layer(x) + 1, f32("B", 4), function_count=1)
    (function,) = exported.model.functions.values()
    (product,) = (node for node in function if node.op_type == "Mul")
    assert constant_of(product.inputs[0]) is None


def test_the_runtime_takes_scale_and_shift_into_the_convolution(tmp_path):
    kernel = GENERATOR.normal(size=(5, 4, 3, 3)).astype(np.float32)
    scale = GENERATOR.uniform(1, 2, (5, 1, 1)).astype(np.float32)
    shift = GENERATOR.uniform(1, 2, (5, 1, 1)).astype(np.float32)
    fn = lambda x: shift + scale * lax.conv_general_dilated(x, kernel, (1, 1), "SAME")
    exported = check(fn, f32("B", 4, 6, 7), without={"empty": "of the rules", "float64": "in which there is no Conv"})
    expect_graph(exported, ["Conv -> Mul -> Add"])
    exported.save(tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
    assert [node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph] == ["Conv"]
