"""Match computations in a graph, through views and in any order of operands.

A `Seen` is a value together with the axes along which it is seen from elsewhere: `axes[i]` is the label of its axis
`i`, or None if it has size one. Unsqueeze, Squeeze, Transpose, Expand and Reshapes that move ones only change labels,
so matchers look through them without confusing axes: the mean over the last axis differs from the mean over the one
before, whether the axis was kept, dropped, restored or moved.

>>> x = ir.Value(name="x", shape=ir.Shape(["B", 1, 4]), type=ir.TensorType(ir.DataType.FLOAT))
>>> Seen.whole(x).axes
(0, None, 2)
>>> turned = ir.node("Transpose", [x], {"perm": [2, 0, 1]}).outputs[0]
>>> turned.shape = ir.Shape([4, "B", 1])
>>> look(turned, ("row", "column", "ones"))
Seen(value=x, axes=('column', None, 'row'))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from jaxport.graph.axis_groups import axis_groups, common_parts
from jaxport.graph.editing import (
    Dim,
    constant_of,
    dims_of,
    integer,
    integers,
    is_op,
    number_of,
    operand,
    rank_of,
    size_in,
    source,
)
from jaxport.onnx_facts import VIEWS

T = TypeVar("T")
Axis = Hashable | None


@dataclass(unsafe_hash=True, slots=True)  # matchers make thousands, and one that is frozen takes three times as long
class Seen:
    """A value with a label for each of its axes, as seen from a value computed from it. No code changes one.

    Attributes:
      value: the value behind all views.
      axes: the labels of its axes.
      entry: the value from which the views lead to it.
      along: the labels and the dims of each value on the way.
    """

    value: ir.Value
    axes: tuple[Axis, ...]
    entry: ir.Value = field(compare=False)
    along: Sequence[tuple[tuple[Axis, ...], Sequence[Dim] | None]] = field(compare=False, default=())

    def __repr__(self) -> str:
        return f"Seen(value={self.value.name}, axes={self.axes})"

    @classmethod
    def whole(cls, value: ir.Value) -> Seen | None:
        """Return a value seen from itself, the axes labelled by their positions; None if its rank is unknown."""
        dims = dims_of(value)
        return None if dims is None else look(value, range(len(dims)))

    @property
    def node(self) -> ir.Node:
        """The node that computes it, which has to be known: `is_op` tells of which operator it is."""
        node = self.value.producer()
        assert node is not None
        return node

    def is_op(self, *op_types: str) -> bool:
        """Whether it is computed by one of these operators of the default domain."""
        return is_op(self.value.producer(), *op_types)

    @property
    def dims(self) -> Sequence[Dim] | None:
        """The dims of the value."""
        return self.along[-1][1] if self.along else dims_of(self.value)

    @property
    def sizes(self) -> dict[Axis, Dim]:
        """The size along each label, including those that the views merge and split on the way."""
        return {axis: dim for axes, dims in self.along for axis, dim in zip(axes, dims or (), strict=False)}

    @property
    def scalar(self) -> float | None:
        """The number that all its elements equal, or None; None for weights, too."""
        return number_of(self.value)

    @property
    def ungrouped(self) -> Seen:
        """It, seen through fewer views: none of its axes is merged of an axis and a part of another one."""
        value, along = self.entry, [*self.along[:1]]
        for axes, dims in self.along[1:]:
            if any(isinstance(part, Part) for axis in axes if isinstance(axis, Joined) for part in axis.parts):
                break
            node = value.producer()
            assert node is not None
            value = source(node)
            along.append((axes, dims))
        return Seen(value, along[-1][0], self.entry, along)

    def operands(self, *op_types: str) -> list[Seen] | None:
        """Return the operands of the elementwise operator that computes it, as they broadcast to it.

        Return None if it is computed by another operator than `op_types`, or the axes of an operand are unknown.
        """
        if not self.is_op(*op_types):
            return None
        dims = self.dims
        seen = [_broadcast(value, dims, self.axes) for value in self.node.inputs]
        operands = [operand for operand in seen if operand is not None]
        return operands if len(operands) == len(seen) else None

    def commuted(self, op_type: str, wanted: Callable[[Seen], T | None]) -> tuple[T, Seen] | None:
        """Return what `wanted` returns for one of two operands, and the other operand, in either order."""
        for one, other in _orders(self.operands(op_type)):
            match = wanted(one)
            if match is not None and match is not False:
                return match, other
        return None

    def reduced(self, *op_types: str) -> Seen | None:
        """Return the operand of the reduction that computes it; the reduced axes get labels of their own."""
        if not self.is_op(*op_types):
            return None
        node = self.node
        dims, axes = dims_of(node.inputs[0]), reduction_axes(node)
        if dims is None or axes is None:
            return None
        kept = iter(self.axes)
        keepdims = integer(node, "keepdims", 1)
        labels: list[Axis] = []
        for axis in range(len(dims)):
            if axis in axes and not keepdims:
                labels.append(Reduced(node, axis))
            else:
                label = next(kept)
                labels.append(Reduced(node, axis) if axis in axes else label)
        return look(source(node), labels)

    def reduced_by(self, node: ir.Node) -> tuple[Reduced, ...]:
        """Return the labels of its axes that a reduction removes, each once if the axis is seen in parts."""
        wholes = (axis.whole if isinstance(axis, Part) else axis for axis in self.axes)
        return tuple(dict.fromkeys(axis for axis in wholes if isinstance(axis, Reduced) and axis.node is node))

    def contracted(self, *, is_whole: bool = False) -> tuple[Seen, Seen] | None:
        """Return the operands of the matrix product that computes it; the contracted axis gets a label of its own.

        Views that would split this axis end the search if `is_whole`: `reshape(stack(a, b), (B, T, D)) @ k` contracts
        D.
        """
        if not self.is_op("MatMul"):
            return None
        node, rank = self.node, len(self.axes)
        if rank < 2 or any(value is None or rank_of(value) != rank for value in node.inputs):
            return None
        batch, summed = self.axes[:-2], Reduced(node, rank - 1, is_whole)
        left, right = (*batch, self.axes[-2], summed), (*batch, summed, self.axes[-1])
        return look(source(node), left), look(source(node, 1), right)


@dataclass(frozen=True)
class Reduced:
    """The label of an axis that a reduction or product removes, by its place in the (first) operand.

    Attributes:
      is_whole: whether matchers look at the axis as one, and not through views that split it.
    """

    node: ir.Node
    place: int
    is_whole: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Part:
    """The label of one of several axes that were merged into one."""

    whole: Axis
    place: int
    count: int


@dataclass(frozen=True)
class Joined:
    """The label of an axis that several were merged into."""

    parts: tuple[Axis, ...]


def joined(parts: Sequence[Axis]) -> Axis:
    """Return the label of merged axes: that of the whole if they are all parts of one."""
    first = parts[0]
    if isinstance(first, Part) and list(parts) == [Part(first.whole, i, first.count) for i in range(first.count)]:
        return first.whole
    return Joined(tuple(parts))


def parts_of(whole: Axis, count: int) -> list[Axis]:
    """Return the labels of the axes that were merged into one."""
    if isinstance(whole, Joined) and len(whole.parts) == count:
        return list(whole.parts)
    return [Part(whole, place, count) for place in range(count)]


def _orders(operands: Sequence[Seen] | None) -> Iterable[tuple[Seen, Seen]]:
    if operands is None or len(operands) != 2:
        return ()
    first, second = operands
    return ((first, second), (second, first))


def look(value: ir.Value, axes: Iterable[Axis]) -> Seen:
    """Look through `value` and all views behind it; `axes` are the labels of its axes."""
    return _look(value, dims_of(value), axes)


def _look(entry: ir.Value, dims: Sequence[Dim] | None, axes: Iterable[Axis]) -> Seen:
    value, axes = entry, _without_ones(dims, axes)
    along = [(axes, dims)]
    while is_op(node := value.producer(), *VIEWS):
        behind = source(node)
        old = dims_of(behind)
        labels = _through(node, old, dims, axes)
        if labels is None:
            break
        value, dims, axes = behind, old, _without_ones(old, labels)
        along.append((axes, dims))
    return Seen(value, axes, entry, along)


def _without_ones(dims: Sequence[Dim] | None, axes: Iterable[Axis]) -> tuple[Axis, ...]:
    if dims is None or 1 not in dims:
        return tuple(axes)
    return tuple(None if d == 1 else a for d, a in zip(dims, axes, strict=True))


def _through(
    node: ir.Node, old: Sequence[Dim] | None, new: Sequence[Dim] | None, axes: tuple[Axis, ...]
) -> Sequence[Axis] | None:
    """Return the labels of a view's operand with the dims `old`, given those of its result with the dims `new`."""
    if node.op_type == "Identity":
        return axes
    if node.op_type == "Transpose":
        order = integers(node, "perm") or list(range(len(axes)))[::-1]
        return [axes[order.index(axis)] for axis in range(len(axes))]
    if old is None or new is None:
        return None
    return _aligned(old, new, axes) if node.op_type == "Expand" else _relabelled(old, new, axes)


def _relabelled(old: Sequence[Dim], new: Sequence[Dim], axes: Sequence[Axis]) -> list[Axis] | None:
    """Return the labels of a reshaped operand, given those of the result."""
    groups = axis_groups(old, new)
    if groups is None:
        return None
    labels: list[Axis] = [None] * len(old)
    for before, after in groups:
        wide = [axis for axis in before if old[axis] != 1]
        along = [axes[axis] for axis in after if new[axis] != 1]
        if len(wide) == 1 and along:
            labels[wide[0]] = along[0] if len(along) == 1 else joined(along)
        elif len(along) == 1 and not (isinstance(along[0], Reduced) and along[0].is_whole):
            for axis, part in zip(wide, parts_of(along[0], len(wide)), strict=True):
                labels[axis] = part
        elif wide:
            regrouped = _regrouped([old[axis] for axis in wide], [new[axis] for axis in after if new[axis] != 1], along)
            if regrouped is None:
                return None
            for axis, label in zip(wide, regrouped, strict=True):
                labels[axis] = label
    return labels


def _regrouped(old: Sequence[Dim], new: Sequence[Dim], along: Sequence[Axis]) -> list[Axis] | None:
    """Return the labels of axes that become others: `(B, 2*8)` is `(B*2, 8)`, with the heads in the batch."""
    parts = common_parts(old, new)
    if parts is None:
        return None
    labels: dict[tuple[int, int], Axis] = {}
    for place, whole in enumerate(along):
        own = [part for part in parts if part[1] == place]
        if len(own) > 1 and isinstance(whole, Reduced) and whole.is_whole:
            return None
        labels |= zip(own, parts_of(whole, len(own)) if len(own) > 1 else [whole], strict=True)
    merged = [[labels[part] for part in parts if part[0] == place] for place in range(len(old))]
    return [one[0] if len(one) == 1 else joined(one) for one in merged]


def _broadcast(value: ir.Value | None, dims: Sequence[Dim] | None, axes: Sequence[Axis]) -> Seen | None:
    """Return an operand that broadcasts to some dims, seen along the axes of the result."""
    own = dims_of(value)
    labels = None if own is None or dims is None else _aligned(own, dims, axes)
    return None if value is None or labels is None else _look(value, own, labels)


def _aligned(own: Sequence[Dim], dims: Sequence[Dim], axes: Sequence[Axis]) -> Sequence[Axis] | None:
    """Return the labels of a value that broadcasts to some dims with these labels; None if it does not."""
    start = len(dims) - len(own)
    if start < 0:
        return None
    for dim, wide in zip(own, dims[start:], strict=True):
        if dim != wide and dim != 1:
            return None
    return axes[start:]


def reduction_axes(node: ir.Node) -> set[int] | None:
    """Return the axes of a reduction, or None if they are unknown."""
    dims, axes_operand = dims_of(node.inputs[0]), operand(node, 1)
    axes = integers(node, "axes") if axes_operand is None else constant_of(axes_operand)
    if dims is None or (axes is None and (axes_operand is not None or integer(node, "noop_with_empty_axes", 0))):
        return None
    return set(range(len(dims))) if axes is None or not len(axes) else {int(axis) % len(dims) for axis in axes}


def over(reduced: Seen, of: Seen) -> tuple[Axis, ...] | None:
    """Return the labels in `of` that a reduction goes over, if its operand `reduced` is the same value as `of`.

    Return None if they are two values, or differ in an axis that is kept. A part of a split axis may be reduced.
    """
    if reduced.value is not of.value:
        return None
    axes: dict[Axis, None] = {}
    for whole, outside in zip(reduced.axes, of.axes, strict=True):
        parts = whole.parts if isinstance(whole, Joined) and whole != outside else (whole,)
        for label, part in zip(parts, parts_of(outside, len(parts)) if len(parts) > 1 else [outside], strict=True):
            inside, beside = _wholes(label, part)
            if isinstance(inside, Reduced) and inside != beside:
                axes[beside] = None
            elif inside != beside:
                return None
    return tuple(axes) if axes and None not in axes else None


def _wholes(one: Axis, other: Axis) -> tuple[Axis, Axis]:
    """Return the labels of the axes that two labels are the same part of, or the labels themselves."""
    if isinstance(one, Part) and isinstance(other, Part) and (one.place, one.count) == (other.place, other.count):
        return one.whole, other.whole
    return one, other


def between(result: ir.Value, leaves: Iterable[ir.Value]) -> list[ir.Node] | None:
    """Return the nodes that compute `result` from `leaves`, constants and sizes; None if it depends on anything
    else.
    """
    ends, nodes, stack = set(leaves), dict[ir.Node, None](), [result]
    while stack:
        value = stack.pop()
        if value in ends or constant_of(value) is not None or size_in(value) is not None:
            continue
        node = value.producer()
        if node is None:
            return None
        if is_op(node, "Shape"):
            continue
        if node not in nodes:
            nodes[node] = None
            data = node.inputs[:1] if is_op(node, *VIEWS) else node.inputs
            stack.extend([operand for operand in data if operand is not None])
    return list(nodes)


def close(one: float, other: float, dtype: ir.DataType | None) -> bool:
    """Whether two numbers are equal up to the rounding of a dtype.

    >>> close(0.1, float(np.float32(0.1)), ir.DataType.FLOAT)
    True
    """
    epsilon = 1e-15 if dtype is ir.DataType.DOUBLE else 3e-7 if dtype is ir.DataType.FLOAT else 2e-3
    return one == other or bool(np.isclose(one, other, rtol=epsilon, atol=0))
