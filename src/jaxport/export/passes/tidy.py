"""Movements that cancel: pairs of transposes, reshapes of reshapes, casts there and back.

1. Transpose of a Transpose: one Transpose, or none.
2. Transpose that moves axes of size one alone: a Squeeze and an Unsqueeze.
3. Reshape, Squeeze or Unsqueeze of another one of them: one of them, or none.
4. Unsqueeze of what a reduction took away: the reduction keeps it.
5. Cast of a Cast to a dtype that holds all values: the last one, or none; Cast to the dtype at hand: none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.editing import (
    Dim,
    Editor,
    constant_of,
    dims_of,
    discard,
    graphs,
    integer,
    is_op,
    operand,
    substitute,
)
from jaxport.export.passes.layout_ops import inverse, moves_only_ones

VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ReduceLogSumExp")


def tidy(model: ir.Model) -> str:
    """Remove movements that cancel, in the graph, its subgraphs and its functions."""
    editor = Editor(model)
    nodes = [node for graph in graphs(model) for node in graph if not node.domain]
    changed = sum(_simplified(editor, node) for node in nodes if node.graph is not None)
    return f"{changed} nodes simplified" if changed else "nothing to do"


def _simplified(editor: Editor, node: ir.Node) -> bool:
    match node.op_type:
        case "Transpose":
            return _transpose(editor, node)
        case "Reshape" | "Squeeze" | "Unsqueeze":
            return _kept_axes(node) or _view(editor, node)
        case "Cast":
            return _cast(node)
    return False


def _transpose(editor: Editor, node: ir.Node) -> bool:
    source, perm = node.inputs[0], list(node.attributes["perm"].as_ints())
    before = source.producer()
    merged = is_op(before, "Transpose")
    if merged:
        inner = before.attributes["perm"].as_ints()
        source, perm = before.inputs[0], [inner[axis] for axis in perm]
    if perm == sorted(perm):
        return substitute(node.outputs[0], source)
    dims = dims_of(node.outputs[0])
    if dims is not None and moves_only_ones(dims_of(source), inverse(perm)):
        return substitute(node.outputs[0], editor.viewed(node.graph, source, dims, before=node))
    if merged:
        node.replace_input_with(0, source)
        discard(before)
        node.attributes["perm"] = ir.AttrInt64s("perm", perm)
    return merged


def _kept_axes(node: ir.Node) -> bool:
    """A reduction that keeps its axes instead of an Unsqueeze that brings them back."""
    source, axes = node.inputs[0], constant_of(operand(node, 1))
    reduction = source.producer()
    if node.op_type != "Unsqueeze" or axes is None or not is_op(reduction, *REDUCTIONS) or len(source.uses()) > 1:
        return False
    dims, given = dims_of(node.outputs[0]), operand(reduction, 1)
    reduced = (
        reduction.attributes["axes"].as_ints()
        if given is None and "axes" in reduction.attributes
        else constant_of(given)
    )
    if integer(reduction, "keepdims", 1) or dims is None or reduced is None or source.is_graph_output():
        return False
    if len(axes) != len(reduced) or {int(a) % len(dims) for a in axes} != {int(a) % len(dims) for a in reduced}:
        return False
    if not substitute(node.outputs[0], source):
        return False
    reduction.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
    source.shape = ir.Shape(dims)
    return True


def _view(editor: Editor, node: ir.Node) -> bool:
    """The same elements in another shape, straight from where the shape was changed first."""
    source = node.inputs[0]
    while is_op(source.producer(), *VIEWS):
        source = source.producer().inputs[0]
    old, new = dims_of(source), dims_of(node.outputs[0])
    if old is None or new is None:
        return False
    if old == new and not any(isinstance(dim, ir.SymbolicDim) for dim in old):
        return substitute(node.outputs[0], source)
    if source is node.inputs[0]:
        return False
    added, dropped = added_ones(old, new), added_ones(new, old)
    if added is not None:
        op_type, name, entries = "Unsqueeze", "axes", added
    elif dropped is not None:
        op_type, name, entries = "Squeeze", "axes", dropped
    elif sum(not isinstance(dim, int) for dim in new) <= 1 and 0 not in new:
        op_type, name, entries = "Reshape", "shape", [dim if isinstance(dim, int) else -1 for dim in new]
    else:
        return False
    operands = [source, editor.constant(node.graph, np.array(entries), name)]
    view = editor.insert(node.graph, op_type, operands, before=node, like=node.outputs[0], shape=new)
    return substitute(node.outputs[0], view)


def added_ones(short: Sequence[Dim], long: Sequence[Dim]) -> list[int] | None:
    """The axes of size one that make `long` of `short`, or None where other axes differ too.

    >>> added_ones(["B", 4], ["B", 1, 4, 1])
    [1, 3]
    """
    axes, place = [], 0
    for axis, dim in enumerate(long):
        if place < len(short) and short[place] == dim:
            place += 1
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return axes if place == len(short) else None


def _cast(node: ir.Node) -> bool:
    source, to = node.inputs[0], node.attributes["to"].as_int()
    if source.dtype is not None and source.dtype == to:
        return substitute(node.outputs[0], source)
    before = source.producer()
    first = before.inputs[0] if is_op(before, "Cast") else None
    if first is None or first.dtype is None or source.dtype is None or not holds(source.dtype, first.dtype):
        return False
    if first.dtype == to:
        return substitute(node.outputs[0], first)
    node.replace_input_with(0, first)
    discard(before)
    return True


def holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether a dtype holds all values of another."""
    try:
        one, other = wide.numpy(), narrow.numpy()
    except TypeError:  # strings and the like
        return False
    inexact = other.kind in "iu" and other.itemsize == 8 and one.kind not in "iu"  # which NumPy calls safe
    return np.can_cast(other, one, "safe") and not inexact
