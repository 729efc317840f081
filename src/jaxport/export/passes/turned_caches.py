"""Caches that a program has in another order of axes than its callers, as Flax has positions before heads.

    transpose(concat(transpose(past), rows))      concat(past, transpose(rows))

The same holds for rows in place of some of a static cache. A cache that is not turned is one buffer for past and
present, and attention to it is recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.export.generation import decoders
from jaxport.graph.editing import (
    Dim,
    Editor,
    begins_at,
    constant_of,
    dims_of,
    integer,
    is_op,
    permutation,
    source,
    sources,
    substitute,
)


@begins_at({"Concat"})
def turned_caches(model: ir.Model) -> str:
    """Write new rows into the caches of a decoder's step as they are passed."""
    if not decoders.is_step(value.name for value in model.graph.inputs):
        return "nothing to do"
    editor = Editor(model)
    count = sum(_turned(node, editor) for node in list(model.graph) if is_op(node, "Concat") and node.graph is not None)
    return f"{count} caches are not turned" if count else "nothing to do"


def _turned(node: ir.Node, editor: Editor) -> bool:
    """Join a cache with new rows in its own order, if the result is turned back; return whether it is."""
    result, dims = node.outputs[0], dims_of(node.outputs[0])
    found = [_cached(value) for value in sources(node)]
    orders = {one[1] for one in found if one is not None}
    if dims is None or len(orders) != 1 or len({one[0] for one in found if one is not None}) != 1:
        return False
    (order,) = orders
    axis, back = integer(node, "axis", 0) % len(dims), tuple(sorted(range(len(order)), key=order.__getitem__))
    ends = [user for user in result.consumers() if is_op(user, "Transpose") and permutation(user) == back]
    slices = [one[2] for one in found if one is not None and one[2] is not None]
    if not any(user.outputs[0].is_graph_output() for user in ends) or any(_axis(one) != axis for one in slices):
        return False

    def insert(op_type: str, inputs: Sequence[ir.Value], sizes: Sequence[Dim] | None, **attributes: Any) -> ir.Value:
        return editor.insert(
            node.graph, op_type, inputs, before=node, like=result, shape=sizes, dtype=result.dtype, **attributes
        )

    parts = []
    for value, cached in zip(sources(node), found, strict=True):
        own = dims_of(value)
        moved = None if own is None else [own[at] for at in back]
        if cached is None:
            parts.append(insert("Transpose", [value], moved, perm=back))
        elif cached[2] is None:
            parts.append(cached[0])
        else:
            along = editor.constant(node.graph, np.array([order[axis]], np.int64), "axis")
            bounds = [*sources(cached[2])[1:3], along, *sources(cached[2])[4:]]
            parts.append(insert("Slice", [cached[0], *bounds], moved))
    joined = insert("Concat", parts, [dims[at] for at in back], axis=order[axis])
    others = [(user, place) for user, place in result.uses() if user not in ends]
    if others:
        whole = insert("Transpose", [joined], dims, perm=order)
        for user, place in others:
            user.replace_input_with(place, whole)
    for user in ends:
        substitute(user.outputs[0], joined)
    return True


def _cached(value: ir.Value) -> tuple[ir.Value, tuple[int, ...], ir.Node | None] | None:
    """Return the input that a value is with its axes in another order, the order, and the Slice that takes some rows of
    it.
    """
    node = value.producer()
    part = node if is_op(node, "Slice") else None
    turned = node if part is None else source(part).producer()
    if not is_op(turned, "Transpose") or not source(turned).is_graph_input():
        return None
    return source(turned), permutation(turned), part


def _axis(part: ir.Node) -> int | None:
    """Return the only axis of a Slice; None if it is not known."""
    axes = constant_of(part.inputs[3]) if len(part.inputs) > 3 else None
    return int(axes.item()) % len(dims_of(source(part)) or ()) if axes is not None and axes.size == 1 else None
