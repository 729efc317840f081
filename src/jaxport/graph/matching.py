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

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from jaxport.graph.axis_groups import axis_groups
from jaxport.graph.editing import Dim, constant_of, dims_of, integer, integers, is_op, operand, rank_of, source
from jaxport.onnx_facts import VIEWS

T = TypeVar("T")
Axis = Hashable | None


@dataclass(frozen=True)
class Seen:
    """A value with a label for each of its axes, as seen from a value computed from it.

    Attributes:
      value: the value behind all views.
      axes: the labels of its axes.
      entry: the value from which the views lead to it.
      sizes: the size along each label, including those that the views merge and split on the way.
    """

    value: ir.Value
    axes: tuple[Axis, ...]
    entry: ir.Value = field(compare=False)
    sizes: Mapping[Axis, Dim] = field(compare=False, default_factory=dict)

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
    def scalar(self) -> float | None:
        """The number that all its elements equal, or None."""
        array = constant_of(self.value)
        if array is None or not array.size or array.dtype == object:
            return None
        first = array.flat[0]
        return float(first) if array.size == 1 or bool((array == first).all()) else None

    def operands(self, *op_types: str) -> list[Seen] | None:
        """Return the operands of the elementwise operator that computes it, as they broadcast to it.

        Return None if it is computed by another operator than `op_types`, or the axes of an operand are unknown.
        """
        if not self.is_op(*op_types):
            return None
        dims = dims_of(self.value)
        operands = [_broadcast(value, dims, self.axes) for value in self.node.inputs]
        return None if dims is None or None in operands else operands  # pyright: ignore[reportReturnType]

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

    def contracted(self) -> tuple[Seen, Seen] | None:
        """Return the operands of the matrix product that computes it; the contracted axis gets a label of its own."""
        if not self.is_op("MatMul"):
            return None
        node, rank = self.node, len(self.axes)
        if rank < 2 or any(value is None or rank_of(value) != rank for value in node.inputs):
            return None
        batch, summed = self.axes[:-2], Reduced(node, rank - 1)
        left, right = (*batch, self.axes[-2], summed), (*batch, summed, self.axes[-1])
        return look(source(node), left), look(source(node, 1), right)


@dataclass(frozen=True)
class Reduced:
    """The label of an axis that a reduction or product removes, by its place in the (first) operand."""

    node: ir.Node
    place: int


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
    entry, dims = value, dims_of(value)
    axes = _without_ones(dims, axes)
    sizes = dict(zip(axes, dims or (), strict=False))
    while is_op(node := value.producer(), *VIEWS):
        behind = _through(node, source(node), axes)
        if behind is None:
            break
        value, dims = source(node), dims_of(source(node))
        axes = _without_ones(dims, behind)
        sizes.update(zip(axes, dims or (), strict=False))
    return Seen(value, axes, entry, sizes)


def _without_ones(dims: Sequence[Dim] | None, axes: Iterable[Axis]) -> tuple[Axis, ...]:
    if dims is None or 1 not in dims:
        return tuple(axes)
    return tuple(None if d == 1 else a for d, a in zip(dims, axes, strict=True))


def _through(node: ir.Node, viewed: ir.Value, axes: tuple[Axis, ...]) -> list[Axis] | None:
    """Return the labels of a view's operand, given those of its result."""
    if node.op_type == "Identity":
        return list(axes)
    if node.op_type == "Transpose":
        order = integers(node, "perm") or list(range(len(axes)))[::-1]
        return [axes[order.index(axis)] for axis in range(len(axes))]
    old, new = dims_of(viewed), dims_of(node.outputs[0])
    if old is None or new is None:
        return None
    if node.op_type == "Expand":
        broadcast = _broadcast(viewed, new, axes, behind=False)
        return None if broadcast is None else list(broadcast.axes)
    return _relabelled(old, new, axes)


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
        elif len(along) == 1:
            for axis, part in zip(wide, parts_of(along[0], len(wide)), strict=True):
                labels[axis] = part
        elif wide:  # several axes become several others
            return None
    return labels


def _broadcast(
    value: ir.Value | None, dims: Sequence[Dim] | None, axes: Sequence[Axis], behind: bool = True
) -> Seen | None:
    """Return an operand that broadcasts to some dims, seen along the axes of the result."""
    own = None if value is None else dims_of(value)
    if value is None or own is None or dims is None or len(own) > len(dims):
        return None
    start = len(dims) - len(own)
    if any(d not in (1, dims[start + i]) for i, d in enumerate(own)):
        return None
    labels = axes[start:]
    return look(value, labels) if behind else Seen(value, _without_ones(own, labels), value)


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
    axes: list[Axis] = []
    for whole, outside in zip(reduced.axes, of.axes, strict=True):
        parts = whole.parts if isinstance(whole, Joined) and whole != outside else (whole,)
        for inside, part in zip(parts, parts_of(outside, len(parts)) if len(parts) > 1 else [outside], strict=True):
            if isinstance(inside, Reduced) and inside != part:
                axes.append(part)
            elif inside != part:
                return None
    return tuple(axes) if axes and None not in axes else None


def between(result: ir.Value, leaves: Iterable[ir.Value]) -> set[ir.Node] | None:
    """Return the nodes that compute `result` from `leaves` and constants; None if it depends on anything else."""
    ends, nodes, stack = set(leaves), set(), [result]
    while stack:
        value = stack.pop()
        if value in ends or constant_of(value) is not None:
            continue
        node = value.producer()
        if node is None:
            return None
        if node not in nodes:
            nodes.add(node)
            data = node.inputs[:1] if is_op(node, *VIEWS) else node.inputs
            stack.extend(operand for operand in data if operand is not None)
    return nodes


def close(one: float, other: float, dtype: ir.DataType | None) -> bool:
    """Whether two numbers are equal up to the rounding of a dtype.

    >>> close(0.1, float(np.float32(0.1)), ir.DataType.FLOAT)
    True
    """
    epsilon = 1e-15 if dtype is ir.DataType.DOUBLE else 3e-7 if dtype is ir.DataType.FLOAT else 2e-3
    return one == other or bool(np.isclose(one, other, rtol=epsilon, atol=0))
