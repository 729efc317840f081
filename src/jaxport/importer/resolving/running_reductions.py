"""Running maxima, minima and products along an axis of an open size, which ONNX has as a loop only.

The loop joins what is twice as far away in each step: `x = max(x, pad(x[:-distance], distance, -inf))`, while the distance is
below the size. How often depends on the size, so that the loop cannot be traced where that has a name; JAX's function can, has
a gradient, and is one line of source.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, is_op, number_of
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.resolving.registry import lookup
from jaxport.onnx_facts import RESHAPING

__all__ = ["name_running_reductions"]

DOMAIN = "jaxport"
DEEPEST = 20
LOOP_INPUTS = ("M", "cond", "x", "distance")
_MOVING = RESHAPING | {"Cast", "Identity"}
_JOINED = {"Max": "cummax", "Min": "cummin", "Mul": "cumprod"}
"""The functions of `jax.lax` by the operator that joins two elements."""


class _Shift(NamedTuple):
    """Elements moved along an axis, with a number where none arrive."""

    x: ir.Value
    distance: ir.Value
    axis: int
    is_backward: bool
    fill: float


class _Reduction(NamedTuple):
    """A running reduction: how a step moves what it joins, the function of `jax.lax`, and the size of the axis."""

    shift: _Shift
    function: str
    size: ir.Value


def name_running_reductions(body: Body) -> None:
    """Let loops that are running reductions be traced at open sizes."""
    loops = [node for node in body.nodes if is_op(node.node, "Loop") and len(node.inputs) == len(LOOP_INPUTS)]
    conditions = {node.node: node.inputs[1] for node in loops}
    named = {node.node for node in loops if _is_named(node)}
    needless = {
        value
        for value in (conditions[node] for node in named)
        if value is not None and not value.is_graph_output() and {*value.consumers()} <= named
    }
    if needless:
        body.nodes[:] = [node for node in body.nodes if node.outputs[0] not in needless]


def _is_named(node: BoundNode) -> bool:
    """Make a loop one operator if it is a running reduction, and return whether it is."""
    times, starts, _, first = node.inputs
    inner, target = node.attributes.get("body"), lookup(DOMAIN, "RunningReduction", 1)
    last = node.node.outputs[1]
    if not isinstance(inner, Body) or times is not None or target is None or starts is None or number_of(first) != 1:
        return False
    found = None if last.uses() or last.is_graph_output() else _reduction(inner)
    if found is None or not _begins(starts, found.size):
        return False
    node.target, node.inputs = target, (None, None, *node.inputs[2:], found.size)
    node.outputs = node.outputs[:1]
    shift = found.shift
    node.attributes |= {"function": found.function, "axis": shift.axis, "reverse": int(shift.is_backward)}
    return True


def _begins(condition: ir.Value, size: ir.Value) -> bool:
    """Whether a condition holds if there is more than one element; of one element a step changes nothing."""
    limit, is_true = _limit(condition.producer()), constant_of(condition)
    if limit is None:
        return is_true is not None and bool(is_true.all())
    return number_of(limit[0]) == 1 and _plain(limit[1]) is _plain(size)


def _limit(node: ir.Node | None) -> tuple[ir.Value | None, ir.Value | None] | None:
    """Return what is below what; None if the node is another comparison."""
    return (node.inputs[0], node.inputs[1]) if is_op(node, "Less") else None


def _reduction(body: Body) -> _Reduction | None:
    """Return what all steps of a loop are."""
    (_, _, x, distance), (goes_on, joined, twice) = body.inputs, body.outputs
    doubled, join, limit = twice.producer(), joined.producer(), _limit(goes_on.producer())
    if not is_op(doubled, "Add") or any(term is not distance for term in doubled.inputs):
        return None
    if limit is None or limit[0] is not twice or limit[1] is None or not is_op(join, *_JOINED) or len(join.inputs) != 2:
        return None
    for kept, moved in (join.inputs, reversed(join.inputs)):
        shift = _shift(moved) if kept is x else None
        if shift is not None and shift.x is x and shift.distance is distance and _is_neutral(join.op_type, shift):
            return _Reduction(shift, _JOINED[join.op_type], limit[1])
    return None


def _is_neutral(joined_by: str, shift: _Shift) -> bool:
    """Whether what is joined with the number of a shift stays what it is."""
    dtype = None if shift.x.dtype is None else shift.x.dtype.numpy()
    if dtype is None or joined_by == "Mul":
        return dtype is not None and shift.fill == 1
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-np.inf, np.inf)
    return shift.fill == float(low if joined_by == "Max" else high)


def _shift(value: ir.Value | None) -> _Shift | None:
    """Return what a value is if it is a `Pad` of as many elements as a `Slice` has taken."""
    pad = None if value is None else value.producer()
    if not is_op(pad, "Pad") or len(pad.inputs) != len(("data", "pads", "value")) or pad.inputs[0] is None:
        return None
    if pad.attributes.get_string("mode", "constant") != "constant":
        return None
    cut, pads = pad.inputs[0].producer(), pad.inputs[1]
    scaled, fill = None if pads is None else pads.producer(), number_of(pad.inputs[2])
    if not is_op(cut, "Slice") or len(cut.inputs) != len(("data", "starts", "ends", "axes")) or fill is None:
        return None
    x, starts, ends, axes = cut.inputs
    along = None if axes is None else constant_of(axes)
    if not is_op(scaled, "Mul") or x is None or x.shape is None or along is None or along.size != 1:
        return None
    for by, sides in (scaled.inputs, reversed(scaled.inputs)):
        found = None if sides is None else constant_of(sides)
        distance = _plain(by)
        if found is None or distance is None or found.shape != (2 * len(x.shape),) or sorted(found)[-2:] != [0, 1]:
            continue
        end, axis = divmod(int(found.argmax()), len(x.shape))
        if found.min() < 0 or axis != int(along.item()) % len(x.shape) or _taken(starts, ends) != (distance, bool(end)):
            continue
        return _Shift(x, distance, axis, bool(end), float(fill))
    return None


def _taken(starts: ir.Value | None, ends: ir.Value | None) -> tuple[ir.Value | None, bool] | None:
    """Return how many elements a slice leaves out, and whether these are the first ones."""
    start, end = (None if place is None else constant_of(place) for place in (starts, ends))
    if start is None and end is not None and end.size == 1 and end.item() >= np.iinfo(np.int32).max:
        return _plain(starts), True
    negated = None if ends is None else ends.producer()
    if start is not None and start.size == 1 and start.item() == 0 and is_op(negated, "Neg"):
        return _plain(negated.inputs[0]), False
    return None


def _plain(value: ir.Value | None) -> ir.Value | None:
    """Return the value whose one element another value is."""
    for _ in range(DEEPEST):
        node = None if value is None else value.producer()
        if not is_op(node, *_MOVING):
            break
        value = node.inputs[0]
    return value
