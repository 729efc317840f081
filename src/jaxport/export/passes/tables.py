"""Tables: floats that depend on nothing but constants are stored in place of what computes them.

1. `jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 1000))[t]`: 40 nodes are one `Gather` of a constant.

Such a program computes its table in each call otherwise, if its runtime does not. It runs when the passes that
recognise computations, such as rotary embeddings by their `Range`, are done. Weights of the user are not computed with,
and what is longer than the nodes are worth stays.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.constants import known
from jaxport.graph.editing import Editor, constant_of, dims_of, discard, is_op, nodes_of, static_dims

#: The bytes of a table, at most, and the nodes that it replaces, at least.
LARGEST, FEWEST = 1 << 14, 4


def tables(model: ir.Model) -> str:
    """Store tables of floats, in the graph, its subgraphs and its functions."""
    editor, memory, stored = Editor(model), {}, 0
    for node in nodes_of(model):
        if node.graph is None or len(node.outputs) != 1 or not _is_read(node.outputs[0], memory):
            continue
        array = known(node.outputs[0], memory)
        if array is None or array.nbytes > LARGEST or _count(node) < FEWEST:
            continue
        value = node.outputs[0]
        value.replace_all_uses_with(editor.constant(node.graph, np.ascontiguousarray(array), value.name or "table"))
        discard(node)
        stored += 1
    return f"{stored} tables stored" if stored else "nothing to do"


def _is_read(value: ir.Value, memory: dict[ir.Value, np.ndarray | None]) -> bool:
    """Whether a value is floats, and read by what does not depend on constants only."""
    sizes = static_dims(dims_of(value))
    if value.dtype is None or not value.dtype.is_floating_point() or sizes is None or math.prod(sizes) < 2:
        return False
    if value.is_graph_output() or constant_of(value) is not None:
        return False
    return any(known(output, memory) is None for user, _ in value.uses() for output in user.outputs)


def _count(node: ir.Node) -> int:
    """Return how many nodes compute a value, those of other readers included; none if it repeats one number."""
    seen, stack = {node}, [node]
    while stack:
        for value in stack.pop().inputs:
            before = None if value is None or constant_of(value) is not None else value.producer()
            if before is not None and before not in seen:
                seen.add(before)
                stack.append(before)
    return 0 if is_op(node, "Expand") else len(seen)
