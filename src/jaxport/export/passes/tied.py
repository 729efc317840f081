"""Weights that are stored in several forms: one of them, and what moves it into the others.

A table of words is looked up, and transposed it is the head of the model. A transposed or reshaped weight is a view of
the same memory, which tells it from one that is merely equal. The form that stays is the one in the order of the memory;
runtimes compute the others while loading.
"""

from __future__ import annotations

import collections

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.editing import Editor, constant_of
from jaxport.export.value import SMALL


def tied(model: ir.Model) -> str:
    """Store each weight of the main graph once; those of functions are constants inside of them."""
    forms: dict[tuple, list[ir.Value]] = collections.defaultdict(list)
    for value in model.graph.initializers.values():
        array = constant_of(value)
        if array is not None and array.nbytes > SMALL and value.uses() and not value.is_graph_output():
            forms[array.__array_interface__["data"][0], array.nbytes, value.dtype].append(value)
    editor, found = Editor(model), 0
    for values in forms.values():
        kept = next((value for value in values if _array(value).flags.c_contiguous), None)
        for value in values:
            result = None if kept is None or value is kept else _moved(editor, model.graph, kept, value)
            if result is not None:
                value.replace_all_uses_with(result)
                found += 1
    return f"{found} forms of other weights" if found else "nothing to do"


def _array(value: ir.Value) -> np.ndarray:
    array = constant_of(value)
    assert array is not None
    return array


def _moved(editor: Editor, graph: ir.Graph, kept: ir.Value, value: ir.Value) -> ir.Value | None:
    """A weight as that on the same memory, reshaped and transposed; None where it sees the memory another way."""
    array = _array(value)
    order = sorted(range(array.ndim), key=lambda axis: array.strides[axis], reverse=True)
    stored = array.transpose(order)
    if not stored.flags.c_contiguous:
        return None
    result, perm = kept, np.argsort(order).tolist()
    if perm != sorted(perm):
        result = editor.insert(graph, "Transpose", [result], like=value, shape=array.shape, perm=perm)
    if stored.shape != _array(kept).shape:
        shape = editor.constant(graph, np.array(stored.shape, np.int64), "shape")
        reshaped = editor.insert(graph, "Reshape", [kept, shape], like=value, shape=stored.shape)
        if result is kept:
            return reshaped
        result.producer().replace_input_with(0, reshaped)  # pyright: ignore[reportOptionalMemberAccess]
    return result
