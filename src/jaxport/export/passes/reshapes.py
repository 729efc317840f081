"""Move Reshapes that split axes, or add some of size one, behind the arithmetic with constants that follows.

A projection to several heads splits its result before a bias is added, and merges it again before it is used. With the
Reshape behind the addition, the product and its bias are adjacent, and the two Reshapes cancel.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.simplify import BROADCASTING
from jaxport.graph.axis_groups import Groups, axis_groups
from jaxport.graph.editing import (
    Dim,
    Editor,
    begins_at,
    constant_of,
    dims_of,
    is_op,
    is_weight,
    nodes_of,
    source,
    static_dims,
)


@begins_at({"Reshape", "Unsqueeze"})
def reshapes(model: ir.Model) -> str:
    """Move Reshapes behind arithmetic with constants, in the graph, its subgraphs and its functions."""
    editor, moved = Editor(model), 0
    for node in reversed(nodes_of(model, "Reshape", "Unsqueeze")):  # one behind another goes first
        while _moved(editor, node):
            moved += 1
    return f"{moved} moved" if moved else "nothing to do"


def _moved(editor: Editor, node: ir.Node) -> bool:
    """Move a Reshape or Unsqueeze behind its only user."""
    graph, whole, result = node.graph, source(node), node.outputs[0]
    old, new = dims_of(whole), dims_of(result)
    if old is None or new is None or len(result.uses()) != 1 or result.is_graph_output():
        return False
    ((user, place),) = result.uses()
    groups = axis_groups(old, new)
    if groups is None or graph is None or user.graph is not graph or not is_op(user, *BROADCASTING):
        return False
    if any(len(before) > 1 for before, _ in groups) or dims_of(user.outputs[0]) != new:
        return False
    constants = [i for i in range(len(user.inputs)) if i != place]
    merged = {i: array for i in constants if (array := _merged(user.inputs[i], groups, new)) is not None}
    if len(merged) < len(constants):
        return False
    for index, array in merged.items():
        editor.replace_constant(user, index, array)
    user.replace_input_with(place, whole)
    after = user.outputs[0]
    after.replace_all_uses_with(result, replace_graph_outputs=True)
    after.shape, result.type = ir.Shape(old), after.type
    node.replace_input_with(0, after)
    graph.remove(node)
    graph.insert_after(user, node)
    return True


def _merged(value: ir.Value | None, groups: Groups, new: list[Dim]) -> np.ndarray | None:
    """Return a constant operand in the form that broadcasts to the shape before the split; no weight is repeated for
    it.
    """
    array = constant_of(value)
    if array is None or array.ndim > len(new):
        return None
    aligned = array.reshape([1] * (len(new) - array.ndim) + list(array.shape))
    spread, dims = list(aligned.shape), []
    for before, after in groups:
        if any(aligned.shape[axis] != 1 for axis in after):
            sizes = static_dims([new[axis] for axis in after])
            if sizes is None:
                return None
            for axis, size in zip(after, sizes, strict=True):
                spread[axis] = size
        size = math.prod(spread[axis] for axis in after)
        dims.extend([size] if before else [])
    merged = np.broadcast_to(aligned, spread).reshape(dims)
    if merged.size != array.size and is_weight(value):
        return None
    leading = next((axis for axis, size in enumerate(merged.shape) if size != 1), merged.ndim)
    return merged.reshape(merged.shape[leading:])
