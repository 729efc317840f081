"""Store weights that have several forms once, and compute the other forms from it.

A token embedding table is looked up, and its transpose is the head of the model. A transposed or reshaped weight is a
view of the same memory, which distinguishes it from one that is merely equal. The stored form is the one in the order
of the memory; runtimes compute the others while loading.
"""

from __future__ import annotations

import collections

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import SMALL, Editor, constant_of, is_weight


def tied(model: ir.Model) -> str:
    """Store each weight of the main graph once; those of functions are constants inside them."""
    # The arrays are kept with their values: while all are alive, two arrays share memory only if they are tied.
    forms: dict[tuple, list[tuple[ir.Value, np.ndarray]]] = collections.defaultdict(list)
    for value in model.graph.initializers.values():
        array = constant_of(value)
        least = 0 if is_weight(value) else SMALL
        if array is not None and array.nbytes > least and value.uses() and not value.is_graph_output():
            forms[array.__array_interface__["data"][0], array.nbytes, value.dtype].append((value, array))
    editor, tied_forms = Editor(model), 0
    for group in forms.values():
        stored = next(((value, array) for value, array in group if array.flags.c_contiguous), None)
        if stored is None:
            continue
        for value, array in group:
            moved = None if value is stored[0] else _moved(editor, model.graph, *stored, value, array)
            if moved is not None:
                value.replace_all_uses_with(moved)
                tied_forms += 1
    return f"{tied_forms} forms of other weights" if tied_forms else "nothing to do"


def _moved(
    editor: Editor, graph: ir.Graph, stored: ir.Value, memory: np.ndarray, value: ir.Value, array: np.ndarray
) -> ir.Value | None:
    """Return a weight as a reshape and transpose of one with the same memory; None if no such view exists."""
    order = sorted(range(array.ndim), key=lambda axis: array.strides[axis], reverse=True)
    in_order = array.transpose(order)
    if not in_order.flags.c_contiguous:
        return None
    result = stored
    if in_order.shape != memory.shape:
        shape = editor.constant(graph, np.array(in_order.shape, np.int64), "shape")
        result = editor.insert(graph, "Reshape", [result, shape], like=value, shape=in_order.shape)
    perm = np.argsort(order).tolist()
    if perm != sorted(perm):
        after = result.producer()  # a Reshape; a weight has none
        result = editor.insert(graph, "Transpose", [result], after=after, like=value, shape=array.shape, perm=perm)
    return result
