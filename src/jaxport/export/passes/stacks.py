"""Read what was joined before it was joined: parts of a Concat that are single operands of it.

1. Slice of the rows that one operand has: that operand.
2. Split into the operands: the operands.
3. Gather of one element that is the only one of an operand: that operand, without the axis.

A loop over layers stacks their caches, and takes them apart again step by step; written out, nothing is left of the
stack.
"""

from __future__ import annotations

import itertools

import onnx_ir as ir

from jaxport.graph.editing import (
    Editor,
    begins_at,
    constant_of,
    dims_of,
    discard,
    integer,
    is_op,
    nodes_of,
    source,
    sources,
    substitute,
)


@begins_at({"Concat"}, {"Slice", "Split", "Gather"})
def stacks(model: ir.Model) -> str:
    """Replace parts of joined values by the values, in the graph, its subgraphs and its functions."""
    editor, replaced = Editor(model), 0
    for node in nodes_of(model, "Slice", "Split", "Gather"):
        if node.graph is None:
            continue
        whole = source(node)
        joined = whole.producer()
        axis = _axis(node)
        if not is_op(joined, "Concat") or axis is None or joined.graph is not node.graph:
            continue
        rank = len(dims_of(whole) or ())
        if rank and axis % rank == integer(joined, "axis", 0) % rank:
            replaced += _replaced(editor, node, joined, axis % rank)
            discard(joined)
    return f"{replaced} parts of joined values are these values" if replaced else "nothing to do"


def _axis(node: ir.Node) -> int | None:
    """Return the only axis along which a node takes a part."""
    if not is_op(node, "Slice"):
        return integer(node, "axis", 0)
    axes = constant_of(node.inputs[3]) if len(node.inputs) > 3 else None
    steps = constant_of(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else None
    return int(axes[0]) if axes is not None and len(axes) == 1 and (steps is None or steps.tolist() == [1]) else None


def _replaced(editor: Editor, node: ir.Node, joined: ir.Node, axis: int) -> bool:
    """Replace the results of a node by operands of the Concat that it takes parts of; return whether they were."""
    operands = sources(joined)
    sizes = [(dims_of(value) or [None] * (axis + 1))[axis] for value in operands]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        return False
    ends = [*itertools.accumulate(known)]
    spans = {(end - size, end): value for value, size, end in zip(operands, known, ends, strict=True) if size}
    if is_op(node, "Split"):
        wanted = [(dims_of(value) or [None] * (axis + 1))[axis] for value in node.outputs]
        return wanted == known and all([*map(substitute, node.outputs, operands)])
    if is_op(node, "Slice"):
        bounds = [constant_of(value) for value in node.inputs[1:3]]
        numbers = [int(bound[0]) for bound in bounds if bound is not None and len(bound) == 1]
        part = range(ends[-1])[slice(*numbers)] if len(numbers) == len(bounds) else range(0)
        value = spans.get((part.start, part.stop))
        return value is not None and substitute(node.outputs[0], value)
    place = constant_of(node.inputs[1])
    if place is None or place.shape or not -ends[-1] <= int(place) < ends[-1]:
        return False
    number = int(place) % ends[-1]
    value, dims = spans.get((number, number + 1)), dims_of(node.outputs[0])
    if value is None or dims is None:
        return False
    return substitute(node.outputs[0], editor.viewed(node.graph, value, dims, before=node))
