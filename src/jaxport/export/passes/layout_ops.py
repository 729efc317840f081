"""How operators carry a permutation of their data: what is permuted with it, and what has to be adapted.

Each function here takes a node, one of its inputs or outputs and the layout of that; it returns the layouts of the
other values that are permuted with it and how to adapt the node, or None if the node cannot work on permuted data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import (
    Dim,
    Editor,
    constant_of,
    dims_of,
    integer,
    integers,
    operand,
    rank_of,
    source,
    static_dims,
)
from jaxport.graph.layout import Layout, inverse, moves_only_ones, permuted
from jaxport.onnx_facts import ALONG_AXIS, ELEMENTWISE, ROW_NORMALIZATIONS


@dataclass(frozen=True)
class Carry:
    """How a node changes if its data is permuted.

    Attributes:
      layouts: the inputs and outputs that are permuted, each with its layout.
      adapt: changes attributes and small operands of the node accordingly.
    """

    layouts: Mapping[ir.Value, Layout]
    adapt: Callable[[Editor], None]


WAS_PRODUCT = "jaxport.was_product"
"""The key of the mark of a convolution that was a product of the channels of each pixel with a matrix."""
CarryFunction = Callable[[ir.Node, ir.Value, Layout], Carry | None]
CARRIES: dict[str, CarryFunction] = {}


def carry(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    """Return how `node` changes if its input or output `value` has a layout, or None if it cannot work on it."""
    function = None if node.domain else CARRIES.get(node.op_type)
    if function is None or rank_of(value) != len(layout):
        return None
    return function(node, value, layout)


def carries(*op_types: str) -> Callable[[CarryFunction], CarryFunction]:
    """Register how some operators carry a layout."""

    def register(function: CarryFunction) -> CarryFunction:
        CARRIES.update(dict.fromkeys(op_types, function))
        return function

    return register


def _together(
    values: Sequence[ir.Value | None], layout: Layout, adapt: Callable[[Editor], None] = lambda editor: None
) -> Carry | None:
    """Carry one layout to several values of the same rank."""
    layouts = {value: layout for value in values if value is not None}
    return Carry(layouts, adapt) if all(rank_of(value) == len(layout) for value in layouts) else None


# Elementwise


@carries(*ELEMENTWISE)
def _elementwise(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    """Permute operands of full rank; adapt constants and smaller operands, which broadcast."""
    along, small = [node.outputs[0]], []
    if rank_of(node.outputs[0]) != len(layout):
        return None
    for index, x in enumerate(node.inputs):
        if x is None or rank_of(x) == 0:
            continue
        if constant_of(x) is None and rank_of(x) == len(layout):
            along.append(x)
        elif rank_of(x) is None or (constant_of(x) is None and not _spreads(x, layout)):
            return None
        else:
            small.append(index)

    def adapt(editor: Editor) -> None:
        for index in small:
            _broadcast_operand(editor, node, index, layout, keeps_rank=len(along) == 1)

    return _together(along, layout, adapt) if value in along else None


def _aligned(value: ir.Value, layout: Layout) -> list[Dim]:
    """Return the dims of an operand, broadcast to the rank of a layout."""
    dims = dims_of(value) or []
    return [1] * (len(layout) - len(dims)) + dims


def _spreads(value: ir.Value, layout: Layout) -> bool:
    """Whether a broadcast operand can be adapted without moving its data."""
    return moves_only_ones(_aligned(value, layout), layout)


def _broadcast_operand(editor: Editor, node: ir.Node, index: int, layout: Layout, keeps_rank: bool) -> None:
    """Adapt an operand of lower rank, or a constant, so that it broadcasts against permuted data.

    `keeps_rank` says that no other operand has the rank of the result, so that the constant's first axes stay.
    """
    value = source(node, index)
    dims, array = _aligned(value, layout), constant_of(value)
    if array is None:
        node.replace_input_with(index, editor.viewed(node.graph, value, permuted(dims, layout), before=node))
        return
    stored = array.reshape([1] * (len(layout) - array.ndim) + list(array.shape)).transpose(inverse(layout))
    while stored.ndim > 1 and stored.shape[0] == 1 and not keeps_rank:
        stored = stored[0]
    if stored.shape != array.shape or stored.ndim > 1:
        editor.replace_constant(node, index, stored)


# Operators with an axis


@carries(*ALONG_AXIS)
def _with_axis(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    inputs, default = ALONG_AXIS[node.op_type]
    along = [*(node.inputs if inputs is None else [node.inputs[i] for i in inputs]), *node.outputs]

    def adapt(editor: Editor) -> None:
        _set_axis(node, layout, default)

    return _together(along, layout, adapt) if value in along else None


def _set_axis(node: ir.Node, layout: Layout, default: int | None) -> None:
    axis = node.attributes["axis"].as_int() if default is None else integer(node, "axis", default)
    node.attributes["axis"] = ir.AttrInt64("axis", layout[axis % len(layout)])


@carries("CumSum", "CumProd")
def _cumulative(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    axis = constant_of(node.inputs[1])
    if axis is None:
        return None

    def adapt(editor: Editor) -> None:
        editor.replace_constant(node, 1, np.array(layout[int(axis) % len(layout)]))

    return _together([node.inputs[0], node.outputs[0]], layout, adapt)


@carries(*ROW_NORMALIZATIONS)
def _normalization(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    first = integer(node, "axis", -1) % len(layout)
    stays = all(layout[axis] == axis for axis in range(first, len(layout))) and len(node.outputs) == 1
    return _together([node.inputs[0], node.outputs[0]], layout) if stays else None


#: Heads behind positions, as a projection has them, where they lie before them.
HEADS_FIRST = (0, 2, 1, 3)


@carries("RotaryEmbedding")
def _rotation(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    """Turn vectors whose heads lie behind positions as three axes, the last one of which has all heads: of four, heads
    come first.
    """
    dims = dims_of(node.outputs[0])
    known = static_dims(dims[1::2]) if dims is not None and layout == HEADS_FIRST else None
    if known is None:
        return None
    heads, width = known

    def adapt(editor: Editor) -> None:
        """Put the rotation before the node, which becomes the view of its result with four axes."""
        x, attributes = source(node), {name: each.value for name, each in node.attributes.items()}
        dims = [*(dims_of(x) or [])[:2], heads * width]
        merged, apart = (editor.constant(node.graph, np.array([0, 0, *s]), "shape") for s in (dims[2:], (heads, width)))
        flat = editor.insert(node.graph, "Reshape", [x, merged], before=node, like=x, shape=dims)
        turned = editor.insert(
            node.graph, node.op_type, [flat, *node.inputs[1:]], before=node, like=node.outputs[0], shape=dims,
            **{**attributes, "num_heads": heads},
        )  # fmt: skip
        node.op_type = "Reshape"
        node.attributes.clear()
        node.resize_inputs(2)
        for index, value in enumerate((turned, apart)):
            node.replace_input_with(index, value)

    along = [node.inputs[0], node.outputs[0]]
    return _together(along, layout, adapt) if value in along else None


# Operators with a vector of axes, or one entry per axis


@carries("BatchNormalization", "InstanceNormalization")
def _over_positions(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    """Carry an operator that treats all positions alike, so that their order does not matter."""
    return _together((node.inputs[0], node.outputs[0]), layout) if layout[:2] == (0, 1) else None


@carries("Slice")
def _slice(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    return _axes_operand(node, value, layout, 3, (1, 2, 4))


@carries("Pad")
def _pad(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    return _axes_operand(node, value, layout, 3, (1,))


def _axes_operand(node: ir.Node, value: ir.Value, layout: Layout, place: int, entries: Sequence[int]) -> Carry | None:
    """Adapt an operator whose operand at `place` names the axes that the operands at `entries` are for."""
    axes = constant_of(operand(node, place))
    along = [node.inputs[0], node.outputs[0]]
    if value not in along or (axes is None and operand(node, place) is not None):
        return None

    def adapt(editor: Editor) -> None:
        if axes is not None:
            editor.replace_constant(node, place, np.array([layout[int(axis) % len(layout)] for axis in axes]))
            return
        for index in entries:
            if operand(node, index) is not None:
                per_axis(editor, node, index, layout)

    return _together(along, layout, adapt)


def per_axis(editor: Editor, node: ir.Node, index: int, layout: Layout) -> None:
    """Reorder an operand with one entry, or two rows of entries, per axis to match the stored axes."""
    vector = source(node, index)
    array, order = constant_of(vector), np.array(inverse(layout))
    (length,) = dims_of(vector) or [len(layout)]
    assert isinstance(length, int)
    picks = np.concatenate([order + start for start in range(0, length, len(layout))])
    if array is not None:
        editor.replace_constant(node, index, array[picks])
        return
    picked = editor.constant(node.graph, picks, "order")
    entries = editor.insert(node.graph, "Gather", [vector, picked], before=node, like=vector, shape=[length])
    node.replace_input_with(index, entries)


@carries("Tile", "Expand")
def _tile(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    length = dims_of(node.inputs[1])
    if value is node.inputs[1] or length != [len(layout)] or rank_of(node.inputs[0]) not in (len(layout), 0):
        return None

    def adapt(editor: Editor) -> None:
        per_axis(editor, node, 1, layout)

    return _together([v for v in (node.inputs[0], node.outputs[0]) if rank_of(v)], layout, adapt)


#: The axes along which runtimes interpolate images.
INTERPOLATED = ({1, 2}, {2, 3})


@carries("Resize")
def _resize(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    axes = integers(node, "axes")
    if operand(node, 1) is not None and constant_of(operand(node, 1)) is None:
        return None

    def adapt(editor: Editor) -> None:
        if axes is not None:
            node.attributes["axes"] = ir.AttrInt64s("axes", [layout[axis % len(layout)] for axis in axes])
            return
        for index in (2, 3):
            if rank_of(operand(node, index)):
                per_axis(editor, node, index, layout)

    regions, before, after = constant_of(operand(node, 1)), dims_of(node.inputs[0]), dims_of(node.outputs[0])
    plain = regions is None or not regions.size
    if before is None or after is None:
        return None
    if "mode" in node.attributes and node.attributes["mode"].as_string() != "nearest":
        resized = {layout[axis] for axis, dim in enumerate(after) if dim != before[axis]}
        plain = plain and len(layout) == 4 and any(resized <= axes for axes in INTERPOLATED)
    return _together([node.inputs[0], node.outputs[0]], layout, adapt) if plain else None


@carries("Shape")
def _shape(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    start, end, _ = slice(integer(node, "start", 0), integer(node, "end", len(layout))).indices(len(layout))
    if end - start != 1 or value is not node.inputs[0]:
        return None

    def adapt(editor: Editor) -> None:
        node.attributes["start"] = ir.AttrInt64("start", layout[start])
        node.attributes["end"] = ir.AttrInt64("end", layout[start] + 1)

    return Carry({value: layout}, adapt)


# Products


@carries("MatMul")
def _matmul(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    if layout[-1] == 1 and len(layout) > 3:
        return _as_convolution(node, value, layout)
    return _of_matrices(node, value, layout) if set(layout[-2:]) == {len(layout) - 2, len(layout) - 1} else None


def _as_convolution(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    """Turn a product of the last axis with a constant matrix into a convolution of size one if that axis is second."""
    x, array = source(node), constant_of(node.inputs[1])
    if array is None or array.ndim != 2 or x.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return None

    def adapt(editor: Editor) -> None:
        kernel = array.T.reshape(*array.T.shape, *[1] * (len(layout) - 2))
        editor.replace_constant(node, 1, kernel)
        node.op_type = "Conv"
        node.meta[WAS_PRODUCT] = True

    return _together([x, node.outputs[0]], layout, adapt)


def _of_matrices(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    """Reorder the axes of the batch, or turn a transposed product into the product of the swapped transposes."""
    swapped = layout[-1] < layout[-2]
    constants = {index: array for index in (0, 1) if (array := constant_of(node.inputs[index])) is not None}
    if any(array.ndim != 2 for array in constants.values()):
        return None

    def adapt(editor: Editor) -> None:
        if swapped:
            for index, array in constants.items():
                editor.replace_constant(node, index, array.T)
            left, right = node.inputs
            node.replace_input_with(0, right)
            node.replace_input_with(1, left)

    return _together([*(v for i, v in enumerate(node.inputs) if i not in constants), *node.outputs], layout, adapt)
