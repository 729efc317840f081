"""Slices whose position depends on data while their size does not: entries of a cache at a position that is an
input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, is_op
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.resolving.registry import lookup
from jaxport.onnx_facts import RESHAPING

DOMAIN = "jaxport"
OPEN = 2**31 - 1
"""An end from which on a slice has no end."""

MOST_AXES = 16
DEEPEST = 50


class _IntegerRead(NamedTuple):
    """An integer: an element of a tensor that is not known, or zero, plus a known number."""

    origin: ir.Value | None
    place: int
    plus: int


def place_slices(body: Body) -> None:
    """Let slices and updates of one size be traced, whatever their positions are.

    1. The end of such a slice is its start and a number. It is given its extent.
    2. Such an update is `Concat(x[:start], new, x[start + size:])`. It becomes one operator.
    3. The size may be a value of the graph, which is known while the program is traced: a sum or a quotient of sizes.
       Then both become an operator that has it as an input.

    ONNX cuts off what is outside an axis, so the start has to be clipped to where it fits, or the file has to declare
    the size of the result.
    """
    for node in body.nodes:
        if is_op(node.node, "Slice") and 3 <= len(node.inputs) <= 5:
            node.extent = _extent(node)
            if node.extent is None:
                _as_window(node)
    parts = {
        node.outputs[0]: part
        for node in body.nodes
        if is_op(node.node, "Slice") and 4 <= len(node.inputs) <= 5 and (part := _part(node)) is not None
    }
    spared: set[ir.Value | None] = set()
    for node in body.nodes:
        if is_op(node.node, "Concat") and len(node.inputs) == 3:
            spared |= _as_update(node, parts)
    if spared:
        body.nodes[:] = [node for node in body.nodes if node.outputs[0] not in spared]


class _SideOfPosition(NamedTuple):
    """The part of a tensor before or behind a position on one axis."""

    whole: ir.Value
    position: ir.Value
    axis: int
    is_first: bool


def _part(node: BoundNode) -> _SideOfPosition | None:
    data, starts, ends, axes, steps = (*node.inputs, None, None)[:5]
    along = None if axes is None else _numbers(axes)
    stepped = steps is not None and set(_numbers(steps) or [0]) != {1}
    if data is None or starts is None or ends is None or along is None or len(along) != 1 or stepped:
        return None
    start, end = constant_of(starts), constant_of(ends)
    if start is not None and end is None and not start.any():
        return _SideOfPosition(data, ends, along[0], True)
    if start is None and end is not None and end.item() >= OPEN:
        return _SideOfPosition(data, starts, along[0], False)
    return None


def _as_update(node: BoundNode, parts: Mapping[ir.Value | None, _SideOfPosition]) -> set[ir.Value | None]:
    """Make a Concat of two parts and what is between them an update; return the parts that nothing needs then."""
    (before, new, behind), axis = node.inputs, node.attributes.get("axis")
    first, last = parts.get(before), parts.get(behind)
    if first is None or last is None or not first.is_first or last.is_first or new is None or not isinstance(axis, int):
        return set()
    starts, ends = _elements(first.position), _elements(last.position)
    target = lookup(DOMAIN, "UpdatedSlice", 1)
    if first.whole is not last.whole or not first.axis == last.axis == axis or target is None:
        return set()
    if starts is not None and ends is not None and len(starts) == len(ends) == 1 and starts[0][:2] == ends[0][:2]:
        size = ends[0].plus - starts[0].plus
        if size < 0 or not (_fits(first.position, first.whole, axis, size) or _is_as_long(node, first.whole, axis)):
            return set()
        node.inputs, node.attributes = (first.whole, new, first.position), {"axis": axis, "size": size}
    else:
        added, highest = _added(first.position, last.position), _highest(first.position)
        if added is None or len(highest) > 1 or not (highest or _is_as_long(node, first.whole, axis)):
            return set()
        node.inputs, node.attributes = (first.whole, new, first.position, added, *highest), {"axis": axis}
    node.target = target
    return {part for part in (before, behind) if part is not None and _is_only_read_by(part, node.node)}


def _is_as_long(node: BoundNode, whole: ir.Value, axis: int) -> bool:
    """Whether the file says that the result is as long as the tensor that is updated."""
    shape = whole.shape
    return shape is not None and -len(shape) <= axis < len(shape) and _declared(node, axis, shape[axis])


def _as_window(node: BoundNode) -> None:
    """Make a slice from `start` to `start + size` an operator that takes the size, if it is one of the graph's
    values.
    """
    data, starts, ends, axes, steps = (*node.inputs, None, None)[:5]
    if data is None or constant_of(starts) is not None or (steps is not None and set(_numbers(steps) or [0]) != {1}):
        return
    added, highest, target = _added(starts, ends), _highest(starts), lookup(DOMAIN, "Window", 1)
    if added is not None and highest and target is not None:
        node.target, node.inputs, node.attributes = target, (data, starts, added, axes, *highest), {}


def _added(starts: ir.Value | None, ends: ir.Value | None) -> ir.Value | None:
    """Return the value whose sum with the starts is the ends."""
    positions, node = _elements(starts), _source(ends)
    if node is None or not is_op(node, "Add"):
        return None
    for start, added in (node.inputs, reversed(node.inputs)):
        if start is starts or (positions is not None and _elements(start) == positions):
            return added
    return None


def _highest(starts: ir.Value | None) -> list[ir.Value]:
    """Return the upper bounds of starts that are clipped and not negative, all of them or one after another; else none.

    Remainders of a size, and what is left of the size beside them, are below it or equal to it.
    """
    node = _source(starts)
    if node is None:
        return []
    size, remainder = (node.inputs[0], _source(node.inputs[1])) if is_op(node, "Sub") else (None, node)
    if is_op(remainder, "Mod") and not int(remainder.attributes.get_int("fmod", 0)):
        divisor = remainder.inputs[1]
        bound = divisor if size is None or size is divisor else None
        return [bound] if bound is not None and _is_size(bound) else []
    if is_op(node, "Concat"):
        parts = [_highest(part) for part in node.inputs]
        return [bound for part in parts for bound in part] if all(len(part) == 1 for part in parts) else []
    low, high = node.inputs[1:] if is_op(node, "Clip") and len(node.inputs) == 3 else (None, None)
    least = None if low is None else _numbers(low)
    return [high] if high is not None and least and min(least) >= 0 else []


def _is_size(value: ir.Value | None) -> bool:
    """Whether a value is a size, or a product of some: no number below 0."""
    numbers, node = None if value is None else _numbers(value), _source(value)
    if numbers is not None or is_op(node, "Shape", "Size"):
        return numbers is None or min(numbers, default=0) > 0
    return is_op(node, "Mul") and all(map(_is_size, node.inputs))


def _source(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes the elements of a value, which others only reshape or cast."""
    node = None if value is None else value.producer()
    for _ in range(DEEPEST):
        if not is_op(node, *_MOVING):
            break
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node


def _is_only_read_by(value: ir.Value, node: ir.Node) -> bool:
    return not value.is_graph_output() and all(user is node for user, _ in value.uses())


def _extent(node: BoundNode) -> tuple[int, ...] | None:
    data, starts, ends, axes, steps = (*node.inputs, None, None)[:5]
    if data is None or constant_of(starts) is not None or constant_of(ends) is not None:
        return None
    first, last = _elements(starts), _elements(ends)
    if first is None or last is None or len(first) != len(last):
        return None
    along = range(len(first)) if axes is None else _numbers(axes)
    if along is None or len(along) != len(first) or (steps is not None and set(_numbers(steps) or [0]) != {1}):
        return None
    sizes = []
    for start, end, axis in zip(first, last, along, strict=True):
        size = end.plus - start.plus
        if start[:2] != end[:2] or size < 0 or not (_declared(node, axis, size) or _fits(starts, data, axis, size)):
            return None
        sizes.append(size)
    return tuple(sizes)


def _numbers(value: ir.Value) -> list[int] | None:
    array = constant_of(value)
    return None if array is None else array.ravel().tolist()


def _declared(node: BoundNode, axis: int, size: int | ir.SymbolicDim) -> bool:
    """Whether the file says that the result has this size: a number or a name."""
    shape = node.node.outputs[0].shape
    named = isinstance(size, int) or size.value is not None
    return named and shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == size


def _fits(starts: ir.Value | None, data: ir.Value, axis: int, size: int) -> bool:
    """Whether a start is clipped to where a slice of this size is inside the axis."""
    clip = _clip(starts)
    if clip is None or data.shape is None or not -len(data.shape) <= axis < len(data.shape):
        return False
    length, (low, high) = data.shape[axis], clip
    return isinstance(length, int) and low >= 0 and high + size <= length


def _clip(value: ir.Value | None) -> tuple[int, int] | None:
    """Return the bounds of a value that is clipped, and only reshaped or cast after that."""
    for _ in range(DEEPEST):
        node = None if value is None else value.producer()
        if is_op(node, "Clip") and len(node.inputs) == 3:
            bounds = [_numbers(bound) if bound is not None else None for bound in node.inputs[1:]]
            low, high = ([min(bound), max(bound)] if bound else None for bound in bounds)
            return (low[0], high[1]) if low and high else None
        if is_op(node, "Add") and any(constant_of(x) is not None and not np.any(constant_of(x)) for x in node.inputs):
            value = next(x for x in node.inputs if constant_of(x) is None)
        elif is_op(node, *_MOVING):
            value = node.inputs[0]
        else:
            return None
    return None


def _moved(
    first: Sequence[_IntegerRead] | None, second: Sequence[_IntegerRead] | None, sign: int
) -> Sequence[_IntegerRead] | None:
    """Return the elements of a sum (`sign` 1) or a difference (-1) with known numbers."""
    if first is None or second is None:
        return None
    if sign > 0 and all(element.origin is None for element in first):
        first, second = second, first
    length = max(len(first), len(second))
    if any(element.origin is not None for element in second) or {len(first), len(second)} - {1, length}:
        return None
    first, second = ([*part] * length if len(part) < length else part for part in (first, second))
    return [one._replace(plus=one.plus + sign * other.plus) for one, other in zip(first, second, strict=True)]


_MOVING = RESHAPING | {"Cast", "Identity"}
"""Operators that keep the elements of a vector of integers, and their order."""


def _elements(
    value: ir.Value | None, known: dict[ir.Value, Sequence[_IntegerRead] | None] | None = None, depth: int = 0
) -> Sequence[_IntegerRead] | None:
    """Return the elements of a scalar or a short vector of integers, or None if their number is not known."""
    known = {} if known is None else known
    if value is None or depth > DEEPEST:
        return None
    if value not in known:
        elements = _read(value, known, depth)
        known[value] = elements if elements is not None and len(elements) <= MOST_AXES else None
    return known[value]


def _read(
    value: ir.Value, known: dict[ir.Value, Sequence[_IntegerRead] | None], depth: int
) -> Sequence[_IntegerRead] | None:
    array = constant_of(value)
    if array is not None:
        if array.size > MOST_AXES or array.dtype.kind not in "iu":
            return None
        return [_IntegerRead(None, 0, int(number)) for number in array.ravel()]
    node = value.producer()
    if is_op(node, *_MOVING):
        return _elements(node.inputs[0], known, depth + 1)
    if is_op(node, "Concat"):
        parts = [_elements(part, known, depth + 1) for part in node.inputs]
        return None if None in parts else [element for part in parts for element in part or ()]
    if is_op(node, "Add", "Sub"):
        first, second = (_elements(operand, known, depth + 1) for operand in node.inputs)
        moved = _moved(first, second, -1 if node.op_type == "Sub" else 1)
        if moved is not None:
            return moved
    shape = value.shape
    if shape is None or any(not isinstance(size, int) for size in shape):
        return None
    count = int(np.prod([size for size in shape if isinstance(size, int)], dtype=np.int64))
    return [_IntegerRead(value, index, 0) for index in range(count)] if count <= MOST_AXES else None
