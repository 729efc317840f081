"""Movements that cancel are gone, and the values stay."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from jax import lax

from jaxport.export.passes.tidy import holds, tidy
from jaxport.graph.editing import added_ones
from jaxport.testing import check, expect_graph, f32, i32
from tests.exports import operators

CASES = {
    "transposes that cancel": (lambda x: jnp.transpose(jnp.transpose(x, (1, 2, 0)), (2, 0, 1)) + 1, "Add"),
    "transposes in a row": (lambda x: jnp.transpose(jnp.transpose(x, (1, 2, 0)), (1, 2, 0)) + 1, "Transpose Add"),
    "transpose of ones": (lambda x: jnp.transpose(x[:, None], (1, 0, 2, 3)) + 1, "Unsqueeze Add"),
    "reshapes in a row": (lambda x: x.reshape(-1, 12).reshape(-1, 2, 6) + 1, "Reshape Add"),
    "reshape there and back": (lambda x: x.reshape(-1, 12).reshape(-1, 3, 4) + 1, "Add"),
    "squeeze of an unsqueeze": (lambda x: x[:, None, :, None][:, 0, :, 0] + 1, "Add"),
    "unsqueeze twice": (lambda x: x[:, None][..., None] + 1, "Unsqueeze Add"),
    "reduction that keeps its axes": (lambda x: x - x.sum((1, 2), keepdims=True), "ReduceSum Sub"),
    "reduction whose axes come back elsewhere": (lambda x: x.sum(1)[:, :, None] + 1, "ReduceSum Unsqueeze Add"),
    "reduction that is used as it is, too": (
        lambda x: ((total := x.sum(1))[:, None] * 2, total),
        "ReduceSum Unsqueeze Mul",
    ),
}


@pytest.mark.parametrize(("fn", "expected"), CASES.values(), ids=CASES)
def test_cases(fn, expected):
    exported = check(fn, f32("B", 3, 4), without={"empty": "of the rules"})
    assert sorted(operators(exported)) == sorted(expected.split())


def test_casts():
    wider = check(lambda x: x.astype(jnp.float16).astype(jnp.float32), i32("B"), without={"empty": "of the rules"})
    expect_graph(wider, ["Cast -> Cast"])  # which rounds
    there_and_back = lambda x: lax.convert_element_type((x > 0).astype(jnp.int32), bool)
    expect_graph(check(there_and_back, f32("B")), ["Greater"], counts={"Cast": 0})


def test_a_cast_between_movements():
    def fn(x):
        return x.reshape(-1, 2, 6).astype(jnp.float16).reshape(-1, 3, 4).astype(jnp.float32) + 1

    expect_graph(check(fn, f32("B", 3, 4), without={"empty": "of the rules"}), ["Cast -> Cast -> Add"])
    both = lambda x: ((split := x.reshape(-1, 2, 6)).astype(jnp.float16).reshape(-1, 12), split)
    expect_graph(check(both, f32("B", 3, 4), without={"empty": "of the rules"}), counts={"Reshape": 2, "Cast": 1})


HOLDS = [
    (ir.DataType.FLOAT, ir.DataType.FLOAT16, True),
    (ir.DataType.FLOAT, ir.DataType.BFLOAT16, True),
    (ir.DataType.FLOAT, ir.DataType.INT16, True),
    (ir.DataType.FLOAT, ir.DataType.INT32, False),
    (ir.DataType.DOUBLE, ir.DataType.INT32, True),
    (ir.DataType.DOUBLE, ir.DataType.INT64, False),
    (ir.DataType.INT64, ir.DataType.BOOL, True),
    (ir.DataType.UINT8, ir.DataType.INT8, False),
    (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, False),
    (ir.DataType.STRING, ir.DataType.FLOAT, False),
    (ir.DataType.FLOAT, ir.DataType.FLOAT8E4M3FN, True),
    (ir.DataType.FLOAT16, ir.DataType.FLOAT8E5M2, True),
    (ir.DataType.FLOAT16, ir.DataType.FLOAT8E8M0, False),
    (ir.DataType.FLOAT8E4M3FN, ir.DataType.UINT8, False),
    (ir.DataType.FLOAT8E4M3FN, ir.DataType.INT4, True),
    (ir.DataType.FLOAT4E2M1, ir.DataType.INT4, False),
    (ir.DataType.FLOAT8E5M2FNUZ, ir.DataType.FLOAT8E4M3FN, False),
    (ir.DataType.BFLOAT16, ir.DataType.UINT8, True),
    (ir.DataType.INT8, ir.DataType.INT4, True),
    (ir.DataType.UINT8, ir.DataType.INT4, False),
    (ir.DataType.INT4, ir.DataType.FLOAT4E2M1, False),
    (ir.DataType.BOOL, ir.DataType.UINT2, False),
]


@pytest.mark.parametrize(("wide", "narrow", "expected"), HOLDS)
def test_holds(wide, narrow, expected):
    assert holds(wide, narrow) is expected


def test_added_ones():
    assert added_ones(["B", 1], [1, "B", 1]) == [0]
    assert added_ones(["B"], ["B"]) == []
    assert added_ones(["B", 2], [2, "B"]) is None


def graph_of(outputs, nodes, inputs) -> ir.Model:
    return ir.Model(ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": 23}, name="graph"), ir_version=10)


def test_an_output_that_is_an_input_stays_a_value_of_its_own():
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3]))
    first = ir.node("Transpose", [x], {"perm": [1, 0]}, name="first")
    second = ir.node("Transpose", [first.outputs[0]], {"perm": [1, 0]}, name="second")
    for node, shape in ((first, [3, 2]), (second, [2, 3])):
        node.outputs[0].shape, node.outputs[0].type = ir.Shape(shape), x.type
    model = graph_of([second.outputs[0]], [first, second], [x])
    assert tidy(model) == "1 nodes simplified"
    assert [node.op_type for node in model.graph if node.outputs[0].is_graph_output()] == ["Identity"]
    np.testing.assert_equal(model.graph.outputs[0].producer().inputs[0].name, "x")
