"""Positions of the first condition that holds, as `jnp.select` finds them: `argmax(stack([a, b, c]))`.

    jnp.select([x > 1, x > 0], [u, v], w)    is    select_n(argmax(stack([False, x > 1, x > 0])), w, u, v)

What is chosen by such a position is chosen by the conditions themselves: `where(x > 1, u, where(x > 0, v, w))`, without
the stack, its reduction, and the comparisons of its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxport.export.emit.value import Value
from jaxport.jaxprs import dims

if TYPE_CHECKING:
    from jaxport.export.emit.emitter import Emitter


def conditions(op: Emitter, position: Value) -> list[Value] | None:
    """Return the booleans of which `position` is the first that holds, or the first of all if none does; None if it is
    not.
    """
    reduced = _before(position, "Cast") or position
    origin = reduced.origin
    if origin is None or origin.op_type != "ArgMax" or origin.attributes.get("keepdims", 1):
        return None
    if origin.attributes.get("select_last_index"):
        return None  # an operator of an imported model
    axis, stacked = origin.attributes.get("axis", 0), _before(origin.operands[0], "Cast")
    if stacked is None or stacked.dtype != bool or stacked.origin is None or stacked.origin.op_type != "Concat":
        return None
    parts = [part for part in stacked.origin.operands if part is not None and part.shape is not None]
    is_stacked = stacked.origin.attributes["axis"] == axis and len(parts) == len(stacked.origin.operands)
    if not is_stacked or not all(dims.same(part.shape[axis], 1) for part in parts if part.shape):
        return None
    return [_without(op, part, axis) for part in parts]


def _before(value: Value | None, op_type: str) -> Value | None:
    """Return the first operand of the operator that computes a value, if it is of that type."""
    return value.origin.operands[0] if value is not None and value.origin and value.origin.op_type == op_type else None


def _without(op: Emitter, part: Value, axis: int) -> Value:
    """Return a condition before it was given the axis of the stack; one number if all of it is that."""
    expanded = _before(part, "Expand")
    for constant in (part.constant, None if expanded is None else expanded.constant):
        if constant is not None and constant.size and (constant == constant.flat[0]).all():
            return op.const(bool(constant.flat[0]), np.bool_)
    before = _before(part, "Unsqueeze")
    return before if before is not None and before.rank == part.rank - 1 else op.squeeze(part, (axis,))
