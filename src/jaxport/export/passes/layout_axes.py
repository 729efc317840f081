"""How operators that add, drop, split or merge axes carry a permutation of their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.layout_ops import Carry, carries
from jaxport.graph.axis_groups import Groups, axis_groups
from jaxport.graph.editing import Editor, constant_of, dims_of, integer, integers, is_op, operand, rank_of, source
from jaxport.graph.layout import Layout, inverse, permuted
from jaxport.onnx_facts import POSITIONS, REDUCTIONS


def across(groups: Groups, layout: Layout, side: int) -> Layout | None:
    """Return the layout of one side of grouped axes given that of the other, or None if a group is torn apart.

    Args:
      groups: the axes of both sides that belong together.
      layout: the layout of one side.
      side: 0 if the layout is that of the input, 1 if it is that of the output.
    """
    placed: list[tuple[float, int, Sequence[int]]] = []
    position = -1.0
    for index, group in enumerate(groups):
        known, other = group[side], group[1 - side]
        places = [layout[axis] for axis in known]
        if places and places != list(range(places[0], places[0] + len(places))):
            return None
        position = places[0] if places else position + 0.5 / (len(groups) + 1)  # a new axis follows its predecessor
        placed.append((position, index, other))
    return inverse([axis for _, _, other in sorted(placed) for axis in other])


def _carried(
    node: ir.Node, value: ir.Value, layout: Layout, groups: Groups, adapt: Callable[[Editor, Layout, Layout], None]
) -> Carry | None:
    """Return a carry across grouped axes; an output whose axes stay in order is not permuted."""
    side = 0 if value is node.inputs[0] else 1
    other = across(groups, layout, side)
    if other is None or (side == 1 and value is not node.outputs[0]):
        return None
    before, after = (layout, other) if side == 0 else (other, layout)
    both = {node.inputs[0]: before, node.outputs[0]: after}
    layouts = {end: layout for end, layout in both.items() if list(layout) != sorted(layout)}
    return Carry(layouts, lambda editor: adapt(editor, before, after))


# Axes that are removed


@carries(*REDUCTIONS)
def _reduce(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    rank, axes_operand = rank_of(node.inputs[0]), operand(node, 1)
    axes = integers(node, "axes") if axes_operand is None else constant_of(axes_operand)
    if rank is None or axes is None or not len(axes) or value is axes_operand:
        return None
    hit = {int(axis) % rank for axis in axes}

    def adapt(editor: Editor, before: Layout, after: Layout) -> None:
        stored = sorted(before[axis] for axis in hit)
        if axes_operand is None:
            node.attributes["axes"] = ir.AttrInt64s("axes", stored)
        else:
            editor.replace_constant(node, 1, np.array(stored))

    return _without(node, value, layout, hit, integer(node, "keepdims", 1), adapt)


@carries(*POSITIONS)
def _arg_reduce(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    rank = rank_of(node.inputs[0])
    if rank is None:
        return None
    axis = integer(node, "axis", 0) % rank

    def adapt(editor: Editor, before: Layout, after: Layout) -> None:
        node.attributes["axis"] = ir.AttrInt64("axis", before[axis])

    return _without(node, value, layout, {axis}, integer(node, "keepdims", 1), adapt)


@carries("Gather")
def _gather(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    rank, indices = rank_of(node.inputs[0]), rank_of(node.inputs[1])
    if rank is None or indices not in (0, 1) or value is node.inputs[1]:
        return None
    axis = integer(node, "axis", 0) % rank

    def adapt(editor: Editor, before: Layout, after: Layout) -> None:
        node.attributes["axis"] = ir.AttrInt64("axis", before[axis])

    return _without(node, value, layout, {axis}, indices, adapt)


def _without(
    node: ir.Node,
    value: ir.Value,
    layout: Layout,
    hit: set[int],
    kept: int,
    adapt: Callable[[Editor, Layout, Layout], None],
) -> Carry | None:
    """Carry a layout through an operator that removes some axes, or keeps them in place."""
    if not kept and value is not node.inputs[0]:
        return None  # the output does not tell the places of the removed axes
    rank, groups, place = rank_of(node.inputs[0]) or 0, [], 0
    for axis in range(rank):
        stays = bool(kept) or axis not in hit
        groups.append(([axis], [place] if stays else []))
        place += stays
    return _carried(node, value, layout, groups, adapt)


# Axes of size one, and axes split and merged


@carries("Squeeze", "Unsqueeze")
def _ones(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    axes, short = constant_of(operand(node, 1)), 1 if node.op_type == "Squeeze" else 0
    rank = rank_of(node.outputs[0] if short == 0 else node.inputs[0])
    if axes is None or rank is None or value is operand(node, 1):
        return None
    ones, place = {int(axis) % rank for axis in axes}, 0
    groups: Groups = []
    for axis in range(rank):
        narrow = [] if axis in ones else [place]
        groups.append((narrow, [axis]) if short == 0 else ([axis], narrow))
        place += axis not in ones

    def adapt(editor: Editor, before: Layout, after: Layout) -> None:
        long = before if short == 1 else after
        editor.replace_constant(node, 1, np.array(sorted(long[axis] for axis in ones)))

    return _carried(node, value, layout, groups, adapt)


@carries("Reshape")
def _reshape(node: ir.Node, value: ir.Value, layout: Layout) -> Carry | None:
    """Carry a layout through axes that are split, merged with neighbours, or of size one."""
    old, new = dims_of(node.inputs[0]), dims_of(node.outputs[0])
    groups = None if old is None or new is None else axis_groups(old, new)
    if old is None or new is None or groups is None or value is node.inputs[1]:
        return None
    sources = {new_axis: old_axes[0] for old_axes, new_axes in groups if len(old_axes) == 1 for new_axis in new_axes}
    known = all(isinstance(dim, int) or (axis in sources and old[sources[axis]] == dim) for axis, dim in enumerate(new))
    sizes = None if known else _sizes(node)
    if not known and sizes is None:
        return None

    def adapt(editor: Editor, before: Layout, after: Layout) -> None:
        if sizes is not None:
            node.replace_input_with(1, _joined(editor, node, permuted(sizes, after)))
            return
        stored = permuted(
            [dim if isinstance(dim, int) else (before[sources[axis]],) for axis, dim in enumerate(new)], after
        )
        node.replace_input_with(1, _target(editor, node, stored))
        node.attributes.pop("allowzero", None)
        if 0 in stored:
            node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)

    return _carried(node, value, layout, groups, adapt)


def _sizes(node: ir.Node) -> list[ir.Value | np.ndarray] | None:
    """Return the entries of a Reshape's shape operand one by one, or None if they are not known as such."""
    target = source(node, 1)
    joined = target.producer()
    sizes: list[ir.Value | np.ndarray] = []
    for piece in joined.inputs if is_op(joined, "Concat") else (target,):
        array = constant_of(piece)
        if piece is None or (array is None and dims_of(piece) != [1]):
            return None
        if array is not None and 0 in array and not integer(node, "allowzero", 0):
            return None  # the size of the operand's axis in this place, which will be another axis
        sizes += [piece] if array is None else list(array[:, None])
    return sizes


def _joined(editor: Editor, node: ir.Node, sizes: Sequence[ir.Value | np.ndarray]) -> ir.Value:
    """Return the shape operand of a Reshape that has these entries."""
    arrays = [size for size in sizes if isinstance(size, np.ndarray)]
    if len(arrays) == len(sizes):
        return editor.constant(node.graph, np.concatenate(arrays), "shape")
    pieces = [x if isinstance(x, ir.Value) else editor.constant(node.graph, x, "size") for x in sizes]
    return editor.insert(node.graph, "Concat", pieces, before=node, like=source(node, 1), shape=[len(sizes)], axis=0)


def _target(editor: Editor, node: ir.Node, dims: Sequence[int | tuple[int]]) -> ir.Value:
    """Return the shape operand of a Reshape; an unknown size is given as the axis of its input that has it."""
    inferred = sum(isinstance(dim, tuple) for dim in dims) == 1 and 0 not in dims

    def size(dim: int | tuple[int]) -> ir.Value | np.ndarray:
        if isinstance(dim, int) or inferred:
            return np.array([dim if isinstance(dim, int) else -1])
        data, (axis,) = source(node), dim
        return editor.insert(
            node.graph,
            "Shape",
            [data],
            before=node,
            like=data,
            shape=[1],
            dtype=ir.DataType.INT64,
            start=axis,
            end=axis + 1,
        )

    return _joined(editor, node, [size(dim) for dim in dims])
