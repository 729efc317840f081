"""Products whose first operand is a parameter, as exporters write layers over channels that are not last: layers as source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.codegen.test_structured import FRAMEWORKS, check_model

NUMBERS = np.random.default_rng(0)


def model(nodes: list[onnx.NodeProto], sizes: dict[str, tuple[int, ...]], result: list[int | str]) -> onnx.ModelProto:
    tensors = [
        onnx.numpy_helper.from_array(0.3 * NUMBERS.standard_normal(shape).astype(np.float32), name)
        for name, shape in sizes.items()
    ]
    info = onnx.helper.make_tensor_value_info
    x, y = info("x", onnx.TensorProto.FLOAT, ["b", 6, "t"]), info("y", onnx.TensorProto.FLOAT, result)
    graph = onnx.helper.make_graph(nodes, "net", [x], [y], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def node(op_type: str, inputs: list[str], output: str, at: str = "", **attributes: object) -> onnx.NodeProto:
    return onnx.helper.make_node(op_type, inputs, [output], name=f"/{at}/{op_type}" if at else "", **attributes)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_layers_behind_a_convolution(framework: str, tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "conv.weight"], "c", "conv", pads=[1, 1]),
        node("MatMul", ["up.weight", "c"], "m", "up"),
        node("Add", ["up.bias", "m"], "a", "up"),
        node("Relu", ["a"], "r"),
        node("MatMul", ["down.weight", "r"], "y", "down"),
    ]
    sizes = {"conv.weight": (8, 6, 3), "up.weight": (12, 8), "up.bias": (12, 1), "down.weight": (5, 12)}
    code = check_model(model(nodes, sizes, ["b", 5, "t"]), tmp_path, framework)
    assert code.count("Linear(8, 12, ") == code.count("Linear(12, 5, use_bias=False") == 1
    assert code.count(".mT") <= 3
    assert "weight[...] @" not in code


def test_what_is_no_layer_stays_as_it_is(tmp_path: Path) -> None:
    """A bias for each position, and a product of which more is read."""
    nodes = [
        node("MatMul", ["first.weight", "x"], "m", "first"),
        node("Add", ["m", "first.bias"], "a", "first"),
        node("Mul", ["a", "m"], "y"),
    ]
    sizes = {"first.weight": (12, 6), "first.bias": (12, 1)}
    code = check_model(model(nodes, sizes, ["b", 12, "t"]), tmp_path, "nnx")
    assert "nnx.Linear(6, 12, use_bias=False" in code
