"""Products and convolutions in 8 bits with ranges that are known before: QuantizeLinear and DequantizeLinear around
them.

1. The weights are stored as bytes, with a scale per output channel.
2. What they are applied to is quantized by its range over the calibration batches.
3. The result of a convolution, or of the Relu or Clip after it, is quantized in the same way: runtimes have kernels of
   integers for a convolution between two quantized values only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.export.precision.dense import Dense, Int8, NodeFilter, columns_int8, everywhere
from jaxport.graph.editing import Editor, constant_of, dims_of, integer, is_op, operand, source
from jaxport.graph.fusing import report

Range = tuple[float, float]
FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class CalibratedLayer:
    """A product or a convolution whose weights are stored."""

    node: ir.Node
    weights: np.ndarray
    axis: int

    @property
    def end(self) -> ir.Value | None:
        """The result to quantize of a convolution, or of the Relu or Clip that is its only user; None if there is
        none.
        """
        if self.node.op_type != "Conv":
            return None
        result = self.node.outputs[0]
        users = result.consumers()
        if len(users) == 1 and is_op(users[0], "Relu", "Clip") and not result.is_graph_output():
            result = users[0].outputs[0]
        return None if result.is_graph_output() else result


def layers(model: ir.Model, where: NodeFilter) -> tuple[list[CalibratedLayer], dict[str, list[str | None]]]:
    """Return the layers of the main graph that can be quantized, and by reason the names of those that cannot."""
    quantizable: list[CalibratedLayer] = []
    declined: dict[str, list[str | None]] = {}
    for node in filter(where, model.graph):
        layer = _layer(node)
        if isinstance(layer, CalibratedLayer):
            quantizable.append(layer)
        elif layer is not None:
            declined.setdefault(layer, []).append(node.outputs[0].name)
    return quantizable, declined


def _layer(node: ir.Node) -> CalibratedLayer | str | None:
    if is_op(node, "Conv"):
        weights = constant_of(source(node, 1))
        if source(node).dtype is not FLOAT:
            return "it is not in float32"
        if weights is None or not np.isfinite(weights).all():
            return "its kernel is not stored, or not finite"
        return CalibratedLayer(node, weights, 0)
    dense = Dense.of(node)
    if not isinstance(dense, Dense):
        return dense
    if node.op_type == "MatMul":
        return CalibratedLayer(node, dense.weights, 1)
    bias = constant_of(dense.bias)
    if dense.bias is not None and (bias is None or bias.shape != dense.weights.shape[1:]):
        return "the bias of a Gemm is not a stored vector"
    turned = bool(integer(node, "transB", 0))
    return CalibratedLayer(node, dense.weights.T if turned else dense.weights, 0 if turned else 1)


def observed(model: ir.Model, where: NodeFilter) -> list[ir.Value]:
    """Return the values whose ranges are needed."""
    values: dict[ir.Value, None] = {}
    for layer in layers(model, where)[0]:
        values.update(dict.fromkeys(value for value in (source(layer.node), layer.end) if value is not None))
    return list(values)


def calibrated_int8(model: ir.Model, ranges: Mapping[str, Range], *, form: Int8, where: NodeFilter = everywhere) -> str:
    """Quantize products and convolutions of the main graph.

    Args:
      model: changed in place.
      ranges: the least and the greatest element of each of the `observed` values, by name.
      form: the range of the weights.
      where: whether a node may be changed.
    """
    editor = Editor(model)
    quantizable, declined = layers(model, where)
    by_value = {value: ranges[value.name or ""] for value in observed(model, where)}
    widened: dict[ir.Value, ir.Value] = {}
    scales: dict[ir.Value, float] = {}
    stored: Tensors = {}
    for layer in quantizable:
        node, x, end = layer.node, source(layer.node), layer.end
        if x not in scales:  # it is not quantized as the result of another convolution
            if x not in widened:
                widened[x], scales[widened[x]] = _around(editor, x, by_value[x], [node])
            node.replace_input_with(0, widened[x])
        _store(editor, layer, scales[source(node)], form, stored)
        if end is not None:
            widened[end], scales[widened[end]] = _around(editor, end, by_value[end], list(end.consumers()))
    made = {
        op_type: sum(layer.node.op_type == op_type for layer in quantizable) for op_type in ("Conv", "MatMul", "Gemm")
    }
    return report({f"{op_type} of 8 bits": count for op_type, count in made.items() if count}, declined)


def _around(editor: Editor, value: ir.Value, extremes: Range, users: Sequence[ir.Node]) -> tuple[ir.Value, float]:
    """Quantize a value and dequantize it, for some of its users; return the result and the scale."""
    graph = (value.producer() or users[0]).graph
    least, greatest = min(extremes[0], 0.0), max(extremes[1], 0.0)
    scale = np.float32((greatest - least) / 255 or 1.0)
    zero = np.uint8(np.clip(np.rint(-least / scale), 0, 255))
    parameters = [
        editor.constant(graph, np.array(scale), "scale"),
        editor.constant(graph, np.array(zero), "zero_point"),
    ]
    dims = dims_of(value)
    levels = editor.insert(
        graph, "QuantizeLinear", [value, *parameters], after=value.producer(), like=value, shape=dims,
        dtype=ir.DataType.UINT8,
    )  # fmt: skip
    result = editor.insert(
        graph, "DequantizeLinear", [levels, *parameters], after=levels.producer(), like=value, shape=dims, dtype=FLOAT
    )
    for user in users:
        for index, used in enumerate(user.inputs):
            if used is value:
                user.replace_input_with(index, result)
    return result, float(scale)


# The tensors that constants became, by their scales: all layers with a weight share them.
Tensors = dict[tuple[ir.Value, int, bytes], list[ir.Value]]


def _store(editor: Editor, layer: CalibratedLayer, x_scale: float, form: Int8, stored: Tensors) -> None:
    """Store the weights in 8 bits, and the bias of a convolution in 32."""
    node, name = layer.node, source(layer.node, 1).name or "weights"
    bias = constant_of(operand(node, 2))
    # A bias counts in steps of both scales: beside weights of next to nothing it would need more of them than there
    # are.
    least = 0.0 if bias is None else np.abs(bias.astype(np.float64)) / (2**30 * x_scale)
    levels, scale = columns_int8(layer.weights, form, layer.axis, least)
    zero = np.zeros(scale.shape, np.int8)
    _replace(editor, node, 1, f"{name}.int8", (levels, scale, zero), layer.axis, stored)
    if bias is not None:
        both = (scale * np.float32(x_scale)).astype(np.float32)
        steps = np.rint(bias / both.astype(np.float64)).astype(np.int32)
        _replace(
            editor, node, 2, f"{source(node, 2).name}.int32", (steps, both, np.zeros(both.shape, np.int32)), 0, stored
        )


def _replace(
    editor: Editor,
    node: ir.Node,
    index: int,
    name: str,
    parts: tuple[np.ndarray, np.ndarray, np.ndarray],
    axis: int,
    stored: Tensors,
) -> None:
    """Replace a constant operand by integers, a scale and a zero point."""
    levels, scale, zero = parts
    key = source(node, index), axis, scale.tobytes()
    if key not in stored:
        named = ((levels, ""), (scale, ".scale"), (zero, ".zero_point"))
        stored[key] = [editor.constant(node.graph, array, f"{name}{suffix}") for array, suffix in named]
    result = editor.insert(
        node.graph, "DequantizeLinear", stored[key], before=node, like=source(node, index), shape=list(levels.shape),
        dtype=FLOAT, axis=axis,
    )  # fmt: skip
    node.replace_input_with(index, result)
