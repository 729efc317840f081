"""The integers of 32 bits that a runtime may store with a sign, to the last bit."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from jaxport.export.delivery.unsigned import needing_size


def needing(nodes: str, number: int) -> list[str]:
    """The operators that need the size of a value, in a program with a number of 32 bits."""
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (bool[1] c, uint32[1] x) => (float[1] y) {{ {nodes} }}"""
    made = ir.from_proto(onnx.parser.parse_model(text))
    value = ir.Value(name="n", const_value=ir.tensor(np.array([number], np.uint32), name="n"))
    value.dtype, value.shape = ir.DataType.UINT32, ir.Shape([1])
    made.graph.initializers["n"] = value
    for node in made.graph:
        node.outputs[0].dtype = ir.DataType.FLOAT if node.op_type == "Cast" else ir.DataType.UINT32
        for place, operand in enumerate(node.inputs):
            if operand is not None and operand.name == "n":
                node.replace_input_with(place, value)
    return [one.op_type if isinstance(one, ir.Node) else str(one.name) for one in needing_size(made)]


@pytest.mark.parametrize(
    ("nodes", "small", "large"),
    [
        ("a = Where(c, n, n) y = Cast<to = 1>(a)", [], ["Where", "Cast"]),
        ("a = BitwiseAnd(x, n) y = Cast<to = 1>(a)", [], ["Cast"]),
        ("a = Identity(n) b = BitwiseOr(a, n) y = Cast<to = 1>(b)", [], ["Cast"]),
    ],
)
def test_a_number_is_exact_in_float32_up_to_24_bits(nodes: str, small: list[str], large: list[str]):
    assert needing(nodes, 2**24 - 1) == small
    assert needing(nodes, 2**24) == large


def test_a_number_with_the_highest_bit_is_clamped():
    nodes = "a = Add(x, n) b = BitwiseAnd(a, n) y = Cast<to = 1>(b)"
    assert needing(nodes, 2**31 - 1) == ["Cast"]
    assert needing(nodes, 2**31)[0] == "Add"
