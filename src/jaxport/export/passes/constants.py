"""Constant folding.

1. Small constants that are not weights: elementwise operators, and those that move, join and select elements.
2. Constants of any size: operators that only move elements, and slices that divide a constant among them, as NumPy
  views.
   Nothing else is computed from weights, the parameters and statistics of the user's model: they would be lost.
3. Weights that are only used in a narrower floating-point type (float32 parameters of a model that computes in
   float16): they are stored in that type.

`known` also computes larger ones, for passes that need their values, and `tables` stores them at last.

Integer and boolean arithmetic is exact, and so are the four operations and the square root of floats. Other functions
of floats are computed in double precision and rounded, which is as good as any runtime.
"""

from __future__ import annotations

import collections
import math

import numpy as np
import onnx_ir as ir

from jaxport.export.emit import folding
from jaxport.graph.editing import (
    PARAMETER,
    SMALL,
    Editor,
    Held,
    constant_of,
    dims_of,
    graphs,
    held,
    is_op,
    is_weight,
    nodes_of,
    numpy_dtype,
    set_dtype,
    source,
    static_dims,
    substitute,
)
from jaxport.jaxprs import PythonFunction

#: The largest constant, in bytes, that is computed for a pass that asks for it.
LARGE = 1 << 20


def _reduction(function: PythonFunction) -> PythonFunction:
    """Return a reduction whose axes are an operand, or an attribute in older operator sets; over all if absent."""

    def reduced(
        x: np.ndarray, axes: np.ndarray | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> np.ndarray:
        if axes is None or not len(axes):
            return x if noop_with_empty_axes else function(x, None, keepdims=bool(keepdims))
        return function(x, tuple(int(axis) for axis in axes), keepdims=bool(keepdims))

    return reduced


def _padded(
    x: np.ndarray,
    pads: np.ndarray,
    value: np.ndarray | None = None,
    axes: np.ndarray | None = None,
    *,
    mode: str = "constant",
) -> np.ndarray:
    if mode != "constant" or (pads < 0).any():
        raise ValueError(mode)
    widths, along = np.zeros((x.ndim, 2), np.int64), slice(None) if axes is None else axes
    widths[along] = pads.reshape(2, -1).T
    return np.pad(x, widths, constant_values=np.zeros((), x.dtype) if value is None else value)


def _cumulated(x: np.ndarray, axis: np.ndarray, *, exclusive: int = 0, reverse: int = 0) -> np.ndarray:
    if exclusive:
        raise ValueError("exclusive")
    along = int(axis)
    return np.flip(np.cumsum(np.flip(x, along), along), along) if reverse else np.cumsum(x, along, dtype=x.dtype)


_IN_DOUBLE: dict[str, PythonFunction] = {
    "Cos": np.cos,
    "Exp": np.exp,
    "Log": np.log,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sin": np.sin,
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
}
_INTEGERS: dict[str, PythonFunction] = {**folding.COMPUTES, "Range": np.arange}
_FLOATS: dict[str, PythonFunction] = {
    **folding.COMPUTES,
    "Ceil": np.ceil,
    "CumSum": _cumulated,
    "Div": np.divide,
    "Floor": np.floor,
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
    "ReduceSum": _reduction(np.add.reduce),
    "IsInf": np.isinf,
    "IsNaN": np.isnan,
    "Pad": _padded,
    "Relu": lambda x: np.maximum(x, 0),
    "Round": np.rint,
    "Tile": lambda x, repeats: np.tile(x, repeats.tolist()),
}


def constants(model: ir.Model) -> str:
    """Fold nodes that depend on constants only, in the graph, its subgraphs and its functions."""
    editor, folded = Editor(model), 0
    forms = collections.Counter(held(value) for graph in graphs(model) for value in graph.initializers.values())
    for node in nodes_of(model):
        folded += _recast(node) or _folded(editor, node, forms)
    return f"{folded} nodes computed" if folded else "nothing to do"


def _folded(editor: Editor, node: ir.Node, forms: collections.Counter[Held | None]) -> bool:
    if node.domain or node.graph is None or node.op_type == "Constant" or not node.inputs or len(node.outputs) != 1:
        return False
    if node.inputs[0] is None:  # a loop without a number of steps
        return False
    arrays = [constant_of(value) for value in node.inputs]
    if any(array is None for array, value in zip(arrays, node.inputs, strict=True) if value is not None):
        return False
    dtype = node.outputs[0].dtype
    weight = source(node)
    if any(map(is_weight, node.inputs)) and node.op_type not in folding.MOVES:
        return False
    result = None if dtype is None else _computed(node, arrays, dtype.numpy())
    if result is None:
        return False
    is_only, whole = len(weight.uses()) == 1, held(weight)
    moves = node.op_type in folding.MOVES
    if whole is not None and not (is_only and forms[whole] <= 1) and not np.may_share_memory(result, arrays[0]):
        return False  # a copy of a weight that is used elsewhere would be untied
    if moves and _is_own(weight) and is_only:  # keeps the name
        weight.const_value = ir.Tensor(result, dtype=weight.dtype, name=weight.name)
        weight.shape = ir.Shape(result.shape)
        return substitute(node.outputs[0], weight)
    forms[whole] += 1
    wish = weight.name if moves or node.op_type == "Slice" else node.outputs[0].name
    constant = editor.constant(node.graph, result, wish or "constant", weight if moves else None)
    return substitute(node.outputs[0], constant)


def _recast(node: ir.Node) -> bool:
    """Store a weight in the floating-point type that all its users cast it to."""
    weight = node.inputs[0] if is_op(node, "Cast") else None
    if weight is None or not _is_own(weight) or node.graph is None:
        return False
    users, before, after = [user for user, _ in weight.uses()], weight.dtype, node.outputs[0].dtype
    if before is None or after is None or not (before.is_floating_point() and after.is_floating_point()):
        return False
    if any(not is_op(u, "Cast") or u.outputs[0].dtype != after or u.outputs[0].is_graph_output() for u in users):
        return False
    array = constant_of(weight)
    if array is None or (after.itemsize >= before.itemsize and array.nbytes > SMALL):
        return False
    with np.errstate(over="ignore"):
        weight.const_value = ir.Tensor(array.astype(after.numpy()), dtype=after, name=weight.name)
    set_dtype(weight, after)
    for user in users:
        substitute(user.outputs[0], weight)
    return True


def _is_own(weight: ir.Value) -> bool:
    """Whether a constant is an initializer of the model that may be stored in another form under its name."""
    return weight.is_initializer() and not weight.is_graph_output() and bool(weight.meta.get(PARAMETER))


def _computed(node: ir.Node, arrays: list[np.ndarray | None], dtype: np.dtype) -> np.ndarray | None:
    """Return the result if the operands are small or are only moved, else None."""
    if node.op_type in folding.MOVES:
        return _result(node, arrays, dtype)
    if node.op_type == "Range":  # passes recognise it
        return None
    if sum(array.nbytes for array in arrays if array is not None) > SMALL:
        return _result(node, arrays, dtype) if node.op_type == "Slice" and _only_sliced(node) else None
    result = _result(node, arrays, dtype)
    return result if result is not None and result.nbytes <= 8 * SMALL else None


def _result(node: ir.Node, arrays: list[np.ndarray | None], dtype: np.dtype) -> np.ndarray | None:
    """Return the result of a node, of any size; None if it is left to the runtime."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    op_type, floating = node.op_type, dtype.kind not in "iub"
    moving = {**folding.MOVES, "Slice": folding.COMPUTES["Slice"]}
    if op_type in moving:
        return moving[op_type](*arrays, **attributes)
    if any(array is not None and array.dtype == object for array in arrays):
        return None
    inexact = any(array is not None and array.dtype.kind not in "iub" for array in arrays)
    with np.errstate(all="ignore"):
        if op_type == "Cast":
            (array,) = arrays
            risky = inexact and not floating and not _fits(array, dtype)  # for the runtime to decide
            return None if risky or array is None else array.astype(dtype)
        if floating and op_type in _IN_DOUBLE:
            return _IN_DOUBLE[op_type](*(None if a is None else a.astype(np.float64) for a in arrays)).astype(dtype)
        function = (_FLOATS if inexact or floating else _INTEGERS).get(op_type)
        try:
            return None if function is None else np.asarray(function(*arrays, **attributes)).astype(dtype)
        except (ZeroDivisionError, IndexError, ValueError):
            return None  # the error or value is left to the runtime


def _fits(array: np.ndarray | None, dtype: np.dtype) -> bool:
    """Whether an integer dtype holds all elements of a float array after truncation."""
    if array is None or dtype.kind not in "iu" or not np.isfinite(array).all():
        return False
    limits = np.iinfo(dtype)
    truncated = np.trunc(array.astype(np.float64))
    return bool(((truncated >= limits.min) & (truncated < limits.max)).all())


def known(
    value: ir.Value | None,
    memory: dict[ir.Value, np.ndarray | None],
    weights: bool = False,
    largest: int | None = LARGE,
) -> np.ndarray | None:
    """Return the array of a value that depends on constants only; None if it is too large.

    `memory` caches the arrays of other values of the graph. What depends on arrays that the user has a name for is not
    known, unless it is asked for `weights`, too. `largest` is the number of bytes of the largest array; None for any.
    """
    stack = [] if value is None else [value]
    while stack:  # a chain of operations may be longer than Python's stack
        last = stack[-1]
        if last in memory:
            stack.pop()
        elif not _may_be_known(last, largest):
            memory[last] = constant_of(last) if weights or not last.meta.get(PARAMETER) else None
        elif unseen := [x for x in _node_of(last).inputs if x is not None and x not in memory]:
            stack += unseen
        else:
            memory[last] = _known(last, memory)
    return None if value is None else memory[value]


def _may_be_known(value: ir.Value, largest: int | None) -> bool:
    """Whether a value is computed, and small enough to be folded."""
    node, dims = value.producer(), static_dims(dims_of(value))
    if constant_of(value) is not None or node is None or node.domain or not node.inputs or len(node.outputs) != 1:
        return False
    if value.dtype is None or dims is None:
        return False
    return largest is None or math.prod(dims) * value.dtype.itemsize <= largest


def _known(value: ir.Value, memory: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    node = _node_of(value)
    arrays = [None if x is None else memory[x] for x in node.inputs]
    if any(x is not None and array is None for x, array in zip(node.inputs, arrays, strict=True)):
        return None
    return _result(node, arrays, numpy_dtype(value))


def _node_of(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _only_sliced(node: ir.Node) -> bool:
    """Whether a weight is only used in slices that together are not larger than it."""
    weight = source(node)
    users = [user for user, _ in weight.uses()]
    if weight.is_graph_output() or any(user.op_type != "Slice" or user.domain for user in users):
        return False
    slices = [dims for user in users if (dims := static_dims(dims_of(user.outputs[0]))) is not None]
    whole = static_dims(dims_of(weight))
    return len(slices) == len(users) and whole is not None and sum(map(math.prod, slices)) <= math.prod(whole)
