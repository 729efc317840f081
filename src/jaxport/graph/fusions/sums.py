"""A value as a sum of products, along labelled axes: what einsums, one-hot codes, scatters and loops over experts have
in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, dims_of, integer, integers, is_op, rank_of, source
from jaxport.graph.fusions.scores import unrounded
from jaxport.graph.matching import Axis, Reduced, Seen, look

#: The most products of a sum that are looked at.
MOST = 1024


@dataclass(frozen=True)
class Chosen:
    """The label of an axis of which elements are chosen by an index: several for a token, or one.

    Attributes:
      index: the index.
      axes: the labels of its axes.
    """

    index: ir.Value
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class At:
    """The label of an axis of which one element is taken, whose number is known."""

    number: int


@dataclass(frozen=True)
class Term:
    """A term of a sum.

    Attributes:
      factors: its factors.
      weights: a matrix, or a stack of them, that multiplies `operand`; a bias if that is None.
      operand: what the matrix multiplies.
      scale: a number that multiplies everything.
    """

    factors: tuple[Seen, ...] = ()
    weights: Seen | None = None
    operand: Seen | None = None
    scale: float = 1.0

    def times(self, other: Term) -> Term | None:
        """Return the product of two products; None if both have weights."""
        if self.weights is not None and other.weights is not None:
            return None
        first = self if self.weights is not None else other
        scale = self.scale * other.scale
        return Term((*self.factors, *other.factors), first.weights, first.operand, scale)


def products(seen: Seen) -> list[Term]:
    """Return the terms of a value: sums and products are multiplied out down to the first matrix of weights."""
    terms: list[Term] = []
    for term in _terms(seen):
        terms += _multiplied_out(term)
    return terms


def _terms(seen: Seen) -> Iterator[Seen]:
    """Yield the terms of a sum; a sum that is used elsewhere, too, is one term."""
    waiting, is_whole = [seen], True
    while waiting:
        term = unrounded(waiting.pop())
        operands = term.operands("Add") if is_whole or is_used_once(term) else None
        is_whole = False
        if operands is None:
            yield term
        else:
            waiting += operands[::-1]


def is_used_once(seen: Seen) -> bool:
    """Whether a value, and what is seen of it, has a single use."""
    return all(len(value.uses()) == 1 and not value.is_graph_output() for value in (seen.value, seen.entry))


def _multiplied_out(seen: Seen) -> list[Term]:
    number = _number(seen)
    if number is not None:
        return [Term(scale=number)] if number else []
    if (weights := stack(seen)) is not None:
        return [Term(weights=weights)]
    if (chosen := seen.operands("Where")) is not None and chosen[2].scalar == 0:
        return [replace(one, factors=(chosen[0], *one.factors)) for one in products(chosen[1])]
    if seen.is_op("Cast") and source(seen.node).dtype is ir.DataType.BOOL:
        return [Term((look(source(seen.node), seen.axes),))]
    if (picked := _picked(seen)) is not None:
        return products(picked)
    if (summed := seen.reduced("ReduceSum")) is not None:
        return products(summed)
    sides = seen.operands("Mul") or multiplied(seen)
    if sides is None or len(sides) != 2:
        return [Term((seen,))]
    for one, other in (sides, sides[::-1]):
        if seen.is_op("MatMul") and (weights := stack(one)) is not None:
            return [Term(weights=weights, operand=other)]
    left, right = products(sides[0]), products(sides[1])
    combined = [one.times(other) for one in left for other in right] if len(left) * len(right) <= MOST else [None]
    known = [one for one in combined if one is not None]
    return known if len(known) == len(combined) else [Term((seen,))]


def _number(seen: Seen) -> float | None:
    """Return the number that a value is, or zero if all its elements are."""
    number, array = seen.scalar, constant_of(seen.value)
    return number if number is not None and array is not None and (array.size == 1 or not number) else None


def multiplied(seen: Seen) -> tuple[Seen, Seen] | None:
    """Return the operands of a matrix product of any two ranks; the contracted axis gets a label of its own."""
    if not seen.is_op("MatMul"):
        return None
    left, right = source(seen.node), source(seen.node, 1)
    ranks, summed = (rank_of(left), rank_of(right)), Reduced(seen.node, (rank_of(left) or 0) - 1)
    if None in ranks or min(ranks[0] or 0, ranks[1] or 0) < 2 or max(ranks[0] or 0, ranks[1] or 0) != len(seen.axes):
        return None
    *batch, row, column = seen.axes
    sides = [(left, [*batch, row, summed]), (right, [*batch, summed, column])]
    first, second = (look(value, labels[len(labels) - (rank_of(value) or 0) :]) for value, labels in sides)
    return first, second


def stack(seen: Seen) -> Seen | None:
    """Return weights along one axis or more, or those that an index chooses of a stack; None for anything else."""
    if _is_weights(seen.value):
        return seen if any(axis is not None for axis in seen.axes) else None
    picked = _picked(seen)
    return picked if picked is not None and _is_weights(picked.value) else None


def _is_weights(value: ir.Value) -> bool:
    """Whether a value is a constant of floats, a part of one, or several joined."""
    array, node = constant_of(value), value.producer()
    if array is not None:
        return np.issubdtype(array.dtype, np.floating) and array.size > 1
    if not is_op(node, "Concat", "Slice"):
        return False
    data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return all(one is not None and _is_weights(look_behind(one)) for one in data)


def look_behind(value: ir.Value) -> ir.Value:
    """Return the value behind all views of it, whatever its axes."""
    return look(value, range(rank_of(value) or 0)).value


def _picked(seen: Seen) -> Seen | None:
    """Return what elements are taken from, the axis of which is labelled by the index that chooses them."""
    if seen.is_op("Gather"):
        data, index = source(seen.node), source(seen.node, 1)
        rank, count = rank_of(data), rank_of(index)
        if rank is None or count is None:
            return None
        place = integer(seen.node, "axis", 0) % rank
        number, along = constant_of(index), seen.axes[place : place + count]
        if number is not None and (number.size != 1 or _is_weights(data)):
            return None
        label = At(int(number.item())) if number is not None else chosen_by(look(index, along))
        return None if label is None else look(data, [*seen.axes[:place], label, *seen.axes[place + count :]])
    if seen.is_op("GatherND"):
        data, index = source(seen.node), source(seen.node, 1)
        dims, batch = dims_of(index), integer(seen.node, "batch_dims", 0)
        if dims is None or dims[-1] != 1 or not batch:
            return None
        count = len(dims) - 1
        label = chosen_by(look(index, [*seen.axes[:count], None]))
        return None if label is None else look(data, [*seen.axes[:batch], label, *seen.axes[count:]])
    return None


def chosen_by(index: Seen) -> Chosen | None:
    """Return the label of an axis that an index chooses of; None for a constant."""
    index = plain_index(index)
    return None if constant_of(index.value) is not None else Chosen(index.value, index.axes)


def plain_index(seen: Seen) -> Seen:
    """Return an index before it is cast, counted from the end if it is negative, and bounded from below by zero."""
    while True:
        if seen.is_op("Cast"):
            seen = look(source(seen.node), seen.axes)
        elif (bounded := seen.commuted("Max", lambda one: one.scalar == 0)) is not None:
            seen = bounded[1]
        elif (wrapped := _wrapped(seen)) is not None:
            seen = wrapped
        else:
            return seen


def _wrapped(seen: Seen) -> Seen | None:
    """Return `i` of `where(i < 0, i + count, i)`."""
    chosen = seen.operands("Where")
    tested = None if chosen is None else chosen[0].operands("Less")
    if chosen is None or tested is None or tested[1].scalar != 0 or tested[0] != chosen[2]:
        return None
    added = chosen[1].commuted("Add", lambda one: one == chosen[2])
    return chosen[2] if added is not None else None


def selected(seen: Seen, axis: Axis) -> tuple[Seen, np.ndarray] | None:
    """Return what every n-th element along an axis, or a part of it, is taken from, and the places of these.

    The axis has the label `("whole", axis)` there.
    """
    if not seen.is_op("Slice", "Split", "Gather") or axis not in seen.axes:
        return None
    node, data = seen.node, source(seen.node)
    place, size = seen.axes.index(axis), (dims_of(data) or ())[seen.axes.index(axis) :][:1]
    if len(size) != 1 or not isinstance(size[0], int):
        return None
    places = _places(node, seen.value, place, size[0], rank=len(seen.axes))
    labels = [("whole", axis) if label == axis else label for label in seen.axes]
    return None if places is None else (look(data, labels), places)


def _places(node: ir.Node, value: ir.Value, place: int, size: int, rank: int) -> np.ndarray | None:
    """Return the places along an axis that a node takes, if it takes all of every other axis."""
    constants = [constant_of(one) for one in node.inputs[1:]]
    everything = np.arange(size)
    if is_op(node, "Gather"):
        is_along = integer(node, "axis", 0) % rank == place and constants[0] is not None and constants[0].ndim == 1
        return everything[constants[0]] if is_along and constants[0] is not None else None
    if is_op(node, "Split"):
        index = list(node.outputs).index(value)
        count = len(node.outputs)
        sizes: Sequence[int] | None = [size // count] * count if not constants else None
        if constants and constants[0] is not None:
            sizes = constants[0].tolist()
        if sizes is None or integer(node, "axis", 0) % rank != place or sum(sizes) != size:
            return None
        start = sum(sizes[:index])
        return everything[start : start + sizes[index]]
    if len(constants) < 3 or any(one is None or one.size != 1 for one in constants) or integers(node, "axes"):
        return None
    start, end, axis, step = (int(one.item()) for one in (*constants, np.ones(1))[:4] if one is not None)
    return everything[start:end:step] if axis % rank == place else None
