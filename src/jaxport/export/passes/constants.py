"""Nodes that could be computed now.

1. Small constants: everything elementwise, and what moves, joins and picks elements.
2. Large ones (weights): what only moves them, and slices of one that is used in slices alone, as NumPy views.

Integer and boolean arithmetic is exact, and so are the four operations and the square root of floats. Other functions
of floats are computed in double precision and rounded, which is as good as any runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.export import folding
from jaxport.export.passes.editing import Editor, constant_of, dims_of, graphs, substitute
from jaxport.export.value import SMALL

_IN_DOUBLE: dict[str, Callable[..., Any]] = {
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
_FLOATS: dict[str, Callable[..., Any]] = {
    **folding.COMPUTES,
    "Ceil": np.ceil,
    "Div": np.divide,
    "Floor": np.floor,
    "IsInf": np.isinf,
    "IsNaN": np.isnan,
    "Round": np.rint,
    "Tile": lambda x, repeats: np.tile(x, repeats.tolist()),
}


def constants(model: ir.Model) -> str:
    """Compute what depends on constants alone, in the graph, its subgraphs and its functions."""
    editor, folded = Editor(model), 0
    for graph in graphs(model):
        for node in list(graph):
            folded += _folded(editor, node)
    return f"{folded} nodes computed" if folded else "nothing to do"


def _folded(editor: Editor, node: ir.Node) -> bool:
    if node.domain or node.graph is None or node.op_type == "Constant" or not node.inputs or len(node.outputs) != 1:
        return False
    arrays = [constant_of(value) for value in node.inputs]
    if any(array is None for array, value in zip(arrays, node.inputs, strict=True) if value is not None):
        return False
    dtype = node.outputs[0].dtype
    result = None if dtype is None else _computed(node, arrays, dtype.numpy())
    if result is None:
        return False
    wish = node.inputs[0].name if node.op_type in folding.MOVES or node.op_type == "Slice" else node.outputs[0].name
    constant = editor.constant(node.graph, result, wish or "constant")
    return substitute(node.outputs[0], constant)


def _computed(node: ir.Node, arrays: list[np.ndarray | None], dtype: np.dtype) -> np.ndarray | None:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    small = sum(array.nbytes for array in arrays if array is not None) <= SMALL
    op_type, floating = node.op_type, dtype.kind not in "iub"
    if op_type in folding.MOVES or (op_type == "Slice" and not small and _only_sliced(node)):
        return {**folding.MOVES, "Slice": folding.COMPUTES["Slice"]}[op_type](*arrays, **attributes)
    if not small or any(array is not None and array.dtype == object for array in arrays):
        return None
    inexact = any(array is not None and array.dtype.kind not in "iub" for array in arrays)
    with np.errstate(all="ignore"):
        if op_type == "Cast":
            risky = inexact and not floating  # what is out of range is the runtime's to say
            result = None if risky else arrays[0].astype(dtype)  # pyright: ignore[reportOptionalMemberAccess]
        elif floating and op_type in _IN_DOUBLE:
            result = _IN_DOUBLE[op_type](*(None if a is None else a.astype(np.float64) for a in arrays)).astype(dtype)
        elif (table := _FLOATS if inexact or floating else folding.COMPUTES).get(op_type) is not None:
            try:
                result = np.asarray(table[op_type](*arrays, **attributes)).astype(dtype)
            except (ZeroDivisionError, IndexError, ValueError):
                return None  # left to the runtime, whose error or value it is
        else:
            return None
    return result if result is not None and result.nbytes <= 8 * SMALL else None


def _only_sliced(node: ir.Node) -> bool:
    """Whether a weight is used in slices alone that are not larger than it together."""
    weight = node.inputs[0]
    users = [user for user, _ in weight.uses()]
    if weight.is_graph_output() or any(user.op_type != "Slice" or user.domain for user in users):
        return False
    sizes = [dims_of(user.outputs[0]) or [None] for user in users]
    if any(not isinstance(dim, int) for dims in sizes for dim in dims):
        return False
    return sum(map(math.prod, sizes)) <= math.prod(dims_of(weight) or [])  # pyright: ignore[reportArgumentType]
