"""Remove movements that cancel: pairs of transposes, reshapes of reshapes, casts there and back.

1. Transpose of a Transpose: one Transpose, or none.
2. Reshape, Squeeze or Unsqueeze of another one of them: one of them, or none.
3. Unsqueeze, or Reshape, that restores the axes that a reduction removed: the reduction keeps them.
4. Cast of a Cast to a dtype that holds all values: the last one, or none; Cast to the operand's own dtype: none.
5. Cast between two movements: the movements adjoin behind the Cast.

`unit_axes`, after the layout pass, which wants Transposes:
6. Transpose that only moves axes of size one: a Squeeze and an Unsqueeze.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import (
    Editor,
    added_ones,
    begins_at,
    constant_of,
    dims_of,
    discard,
    integer,
    integers,
    is_op,
    nodes_of,
    operand,
    permutation,
    source,
    substitute,
)
from jaxport.graph.layout import inverse, moves_only_ones
from jaxport.onnx_facts import MOVEMENTS, REDUCTIONS, RESHAPING
from jaxport.onnx_facts.releases import missing


@begins_at({"Cast", "Transpose", *RESHAPING})
def tidy(model: ir.Model) -> str:
    """Remove movements that cancel, in the graph, its subgraphs and its functions."""
    editor = Editor(model)
    nodes = nodes_of(model, "Cast", "Transpose", *RESHAPING)
    changed = sum(_simplified(editor, node) for node in nodes if node.graph is not None)
    return f"{changed} nodes simplified" if changed else "nothing to do"


def _simplified(editor: Editor, node: ir.Node) -> bool:
    if is_op(node, "Transpose"):
        return _transpose(node)
    return _cast(node) if is_op(node, "Cast") else _kept_axes(node) or _view(editor, node)


def _transpose(node: ir.Node) -> bool:
    data, perm = source(node), list(permutation(node))
    before = data.producer()
    merged = is_op(before, "Transpose")
    if is_op(before, "Transpose"):
        data, perm = source(before), [permutation(before)[axis] for axis in perm]
    if perm == sorted(perm):
        if not substitute(node.outputs[0], data):  # an output that must be a value of its own
            node.op_type = "Identity"
            node.attributes.clear()
            node.replace_input_with(0, data)
        return True
    if merged:
        node.replace_input_with(0, data)
        discard(before)
        node.attributes["perm"] = ir.AttrInt64s("perm", perm)
    return merged


@begins_at({"Transpose"})
def unit_axes(model: ir.Model) -> str:
    """Replace Transposes that only move axes of size one, in the graph, its subgraphs and its functions."""
    editor, changed = Editor(model), 0
    for node in nodes_of(model, "Transpose"):
        if node.graph is None:
            continue
        data, result = source(node), node.outputs[0]
        dims = dims_of(result)
        if dims is not None and moves_only_ones(dims_of(data), inverse(permutation(node))):
            changed += substitute(result, editor.viewed(node.graph, data, dims, before=node))
    return f"{changed} Transposes became views" if changed else "nothing to do"


def _kept_axes(node: ir.Node) -> bool:
    """Make a reduction keep its axes, if a view restores them."""
    reduced, dims = source(node), dims_of(node.outputs[0])
    reduction = reduced.producer()
    if dims is None or not is_op(reduction, *REDUCTIONS) or integer(reduction, "keepdims", 1):
        return False
    axes_operand, before = operand(reduction, 1), dims_of(reduction.inputs[0])
    over = integers(reduction, "axes") if axes_operand is None else constant_of(axes_operand)
    if over is None or before is None or len(reduced.uses()) > 1 or reduced.is_graph_output():
        return False
    hit = {int(axis) % len(before) for axis in over}
    if dims != [1 if axis in hit else dim for axis, dim in enumerate(before)] or not substitute(
        node.outputs[0], reduced
    ):
        return False
    reduction.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
    reduced.shape = ir.Shape(dims)
    return True


def _view(editor: Editor, node: ir.Node) -> bool:
    """Reshape a value directly, without the reshapes in between."""
    data = source(node)
    while is_op(view := data.producer(), *RESHAPING):
        data = source(view)
    old, new = dims_of(data), dims_of(node.outputs[0])
    if old is None or new is None:
        return False
    if old == new and not any(isinstance(dim, ir.SymbolicDim) for dim in old):
        return substitute(node.outputs[0], data)
    if data is node.inputs[0]:
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
    operands = [data, editor.constant(node.graph, np.array(entries), name)]
    result = editor.insert(node.graph, op_type, operands, before=node, like=node.outputs[0], shape=new)
    return substitute(node.outputs[0], result)


def _cast(node: ir.Node) -> bool:
    data, to = source(node), node.attributes["to"].as_int()
    if data.dtype is not None and data.dtype == to:
        return substitute(node.outputs[0], data)
    before = data.producer()
    if is_op(before, *MOVEMENTS):
        return _before_movement(node, before)
    first = source(before) if is_op(before, "Cast") else None
    if first is None or first.dtype is None or data.dtype is None or not holds(data.dtype, first.dtype):
        return False
    if first.dtype == to:
        return substitute(node.outputs[0], first)
    node.replace_input_with(0, first)
    discard(before)
    return True


def _before_movement(node: ir.Node, movement: ir.Node) -> bool:
    """Cast a value before it is moved, if it is moved again afterwards, and the first movement serves nothing else."""
    moved, result, graph, data = movement.outputs[0], node.outputs[0], node.graph, source(movement)
    is_between = not result.is_graph_output() and all(is_op(user, *MOVEMENTS) for user in result.consumers())
    is_alone = len(moved.uses()) == 1 and not moved.is_graph_output() and movement.graph is graph
    has_kernel = result.dtype is not None and result.dtype.numpy() not in missing(movement.op_type)
    if graph is None or not has_kernel or not is_between or not is_alone or constant_of(data) is not None:
        return False
    result.replace_all_uses_with(moved)
    node.replace_input_with(0, data)
    movement.replace_input_with(0, result)
    moved.type, result.shape = result.type, data.shape
    graph.remove(movement)
    graph.insert_after(node, movement)
    return True


def holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether a dtype holds all values of another."""
    try:
        one, other = wide.numpy(), narrow.numpy()
    except TypeError:  # NumPy lacks the dtype
        return False
    if other.itemsize == 1 and other.kind != "b":  # what `np.can_cast` says of types of few bits is not so
        return "O" not in (one.kind, other.kind) and one.kind != "b" and _holds_values(one, other)
    inexact = other.kind in "iu" and other.itemsize == 8 and one.kind not in "iu"  # NumPy calls this safe
    return "O" not in (one.kind, other.kind) and np.can_cast(other, one, "safe") and not inexact


@functools.cache
def _holds_values(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether a dtype holds each value of one of at most 8 bits, and the sign of its zeros."""
    if jnp.issubdtype(narrow, np.integer):
        limits = ml_dtypes.iinfo(narrow)
        values = np.arange(limits.min, limits.max + 1).astype(narrow)
    else:
        values = np.arange(2 ** ml_dtypes.finfo(narrow).bits, dtype=np.uint8).view(narrow)
    try:
        with np.errstate(all="ignore"):
            before, after = (np.real(array).astype(np.float64) for array in (values, values.astype(wide)))
    except TypeError:  # older releases of ml_dtypes lack the cast
        return False
    return np.array_equal(before, after, equal_nan=True) and bool(
        (np.signbit(before) == np.signbit(after))[before == 0].all()
    )
