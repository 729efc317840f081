"""Integers of a graph as sums of sizes and positions, and conditions on them as inequalities.

A mask such as `keys <= queries + past` compares positions along two axes with sizes that have names. Written as a sum,
it says which keys a query sees, however the graph spells it: by casts, shifts, or sizes read from shapes.

>>> x = ir.Value(name="x", shape=ir.Shape(["T - S", 4]), type=ir.TensorType(ir.DataType.FLOAT))
>>> node = ir.node("Shape", [x], {"start": 0, "end": 1})
>>> node.outputs[0].shape, node.outputs[0].dtype = ir.Shape([1]), ir.DataType.INT64
>>> past = affine(look(node.outputs[0], [None]))
>>> past == size_sum("T") - size_sum("S"), str(past)
(True, 'T - S')
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Dim, constant_of, dims_of, integer, is_op, size_in, source
from jaxport.graph.matching import Axis, Seen, look
from jaxport.onnx_facts import ARITHMETIC, CHOICES, COMPARISONS, SIGN_CHANGES
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import Key, SizeSum, size_sum

_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.INT16, ir.DataType.INT8})

_ORDERED = COMPARISONS - {"Equal"}
_COMPARE = {
    "Equal": operator.eq, "Greater": operator.gt, "GreaterOrEqual": operator.ge, "Less": operator.lt,
    "LessOrEqual": operator.le,
}  # fmt: skip


@dataclass(frozen=True)
class Position:
    """The position along an axis: 0, 1, 2, …"""

    axis: Axis


def _is_size(key: Key) -> bool:
    """Whether a term is neither a position nor another value."""
    return not isinstance(key, Position | Seen)


def values_in(sum_: SizeSum) -> list[Seen]:
    """Return the terms of a sum that are neither sizes nor positions."""
    return [key for key in sum_.terms if isinstance(key, Seen)]


@dataclass(frozen=True)
class Known:
    """What is known of sizes: the sums that are not negative, such as the sizes of the inputs of a graph.

    >>> known = Known((size_sum("T") - size_sum("S"),))
    >>> (
    ...     known.is_positive_or_zero(size_sum("T") - size_sum("S") + 2),
    ...     known.is_positive_or_zero(size_sum("S") - size_sum("T")),
    ... )
    (True, False)
    """

    sums: tuple[SizeSum, ...] = ()

    @classmethod
    def of(cls, graph: ir.Graph, sums: Iterable[SizeSum] = ()) -> Known:
        """Return what the inputs of a graph tell: their sizes are not negative."""
        dims = {dim for value in graph.inputs for dim in dims_of(value) or () if isinstance(dim, str)}
        return cls((*(size_sum(dim) for dim in sorted(dims)), *sums))

    def is_positive_or_zero(self, sum_: SizeSum) -> bool:
        """Whether a sum of sizes is known not to be negative; sizes with a name alone are at least 1."""
        return all(map(_is_size, sum_.terms)) and is_at_least(sum_, given=self.sums)

    def is_at_least(self, sum_: SizeSum, sizes: Mapping[Axis, Dim]) -> bool:
        """Whether a sum is known not to be negative, for all positions along axes of these sizes."""
        for key, factor in sum_.terms.items():
            if isinstance(key, Position):
                if key.axis not in sizes:
                    return False
                last = size_sum(sizes[key.axis]) - 1
                sum_ = sum_.without(key) + (last * factor if factor < 0 else 0)
        return self.is_positive_or_zero(sum_)


NOTHING = Known()


def affine(seen: Seen, known: Known = NOTHING) -> SizeSum:
    """Return an integer of a graph as a sum; what is not understood is a term of its own."""
    return _affine(seen, known) or SizeSum({seen: 1})


def _affine(seen: Seen, known: Known) -> SizeSum | None:
    value = seen.value
    if value.dtype not in _INTEGERS:
        return None
    array, text = constant_of(value), size_in(value)
    if array is not None:
        return _constant(array, seen.axes)
    if text is not None:
        return size_sum(text)
    node = value.producer()
    if node is None or node.domain:
        return None
    match node.op_type:
        case "Cast":
            inner = look(source(node), seen.axes)
            return None if inner.value.dtype not in _INTEGERS else affine(inner, known)
        case "Shape":
            dims = dims_of(node.inputs[0])
            along = range(len(dims or ()))[slice(integer(node, "start", 0), integer(node, "end", len(dims or ())))]
            return size_sum(dims[along[0]]) if dims is not None and len(along) == 1 else None
        case "Gather":
            return _gathered_size(node)
        case "Range":
            start, _, step = (look(source(node, place), ()) for place in range(3))
            return affine(start, known) + SizeSum({Position(seen.axes[0]): 1}) if step.scalar == 1 else None
    if node.op_type in CHOICES:
        return _chosen(seen, known)
    operands = seen.operands(*ARITHMETIC, *SIGN_CHANGES)
    if operands is None:
        return None
    sums = [affine(operand, known) for operand in operands]
    match node.op_type:
        case "Add":
            return sums[0] + sums[1]
        case "Sub":
            return sums[0] - sums[1]
        case "Neg":
            return sums[0] * -1
        case "Mul":
            return next((other * one.number for one, other in (sums, sums[::-1]) if not one.terms), None)
    return None


def _constant(array: np.ndarray, axes: Sequence[Axis]) -> SizeSum | None:
    """Return a number, or the positions along the only axis of a constant."""
    if not array.size:
        return None
    flat = array.ravel()
    if (flat == flat[0]).all():
        return SizeSum({}, int(flat[0]))
    along = [axis for axis in axes if axis is not None]
    if len(along) == 1 and (flat == flat[0] + np.arange(flat.size)).all():
        return SizeSum({Position(along[0]): 1}, int(flat[0]))
    return None


def _gathered_size(node: ir.Node) -> SizeSum | None:
    """Return the size that is read from a whole shape."""
    shape, place = source(node).producer(), constant_of(node.inputs[1])
    if not is_op(shape, "Shape") or shape.attributes or place is None or place.size != 1:
        return None
    dims = dims_of(shape.inputs[0])
    return None if dims is None else size_sum(dims[int(place.ravel()[0])])


def _chosen(seen: Seen, known: Known) -> SizeSum | None:
    """Return the operand that a choice is known to be."""
    node = seen.node
    if node.op_type == "Where":
        condition, one, other = seen.operands("Where") or (None, None, None)
        if condition is None or one is None or other is None:
            return None
        for holds, chosen in ((True, one), (False, other)):
            terms = conjunction(condition, known, holds)
            if all(term.sum is not None and known.is_positive_or_zero(term.sum) for term in terms):
                return affine(chosen, known)
        return None
    if len(node.inputs) < 2 or not is_op(node, "Clip", "Max", "Min"):
        return None
    x = affine(look(source(node), seen.axes), known)
    limits = [
        None if value is None else affine(look(value, seen.axes if value.shape else ()), known)
        for value in node.inputs[1:]
    ]
    lows, highs = {"Clip": (limits[:1], limits[1:]), "Max": (limits, []), "Min": ([], limits)}[node.op_type]
    inside = [x - low for low in lows if low is not None] + [high - x for high in highs if high is not None]
    if all(map(known.is_positive_or_zero, inside)):
        return x
    (limit,) = limits if node.op_type != "Clip" and len(limits) == 1 else (None,)
    beyond = None if limit is None else limit - x if node.op_type == "Max" else x - limit
    return limit if beyond is not None and known.is_positive_or_zero(beyond) else None


@dataclass(frozen=True)
class Condition:
    """A condition.

    Attributes:
      seen: a value of bools.
      holds: false if its negation is meant.
      sum: what is not negative exactly where the condition is true; None if it is no comparison of integers.
    """

    seen: Seen
    holds: bool
    sum: SizeSum | None = None


def conjunction(seen: Seen, known: Known = NOTHING, holds: bool = True) -> list[Condition]:
    """Return conditions that are all true exactly where a condition is.

    Args:
      seen: a value of bools.
      known: what is known of sizes.
      holds: whether the condition is meant, or its negation.
    """
    if (operands := seen.operands("Not")) is not None:
        return conjunction(operands[0], known, not holds)
    joint = seen.operands("And" if holds else "Or")
    if joint is not None:
        return [term for operand in joint for term in conjunction(operand, known, holds)]
    if seen.is_op("Cast") and source(seen.node).dtype is ir.DataType.BOOL:
        return conjunction(look(source(seen.node), seen.axes), known, holds)
    chosen = _between_numbers(seen)
    if chosen is not None:
        return conjunction(chosen[0], known, holds == chosen[1])
    compared = seen.operands(*_ORDERED)
    if compared is not None and all(operand.value.dtype in _INTEGERS for operand in compared):
        # Where it holds, `left - right`, or `right - left`, is at least zero, or one.
        sign, least = 1 if seen.is_op("Greater", "GreaterOrEqual") else -1, int(seen.is_op("Greater", "Less"))
        left, right = (affine(operand, known) for operand in compared)
        difference = (left - right) * sign - least
        return [Condition(seen, holds, difference if holds else difference * -1 - 1)]
    array = constant_of(seen.value)
    if array is not None and array.dtype == bool and (array == holds).all():
        return []
    return [Condition(seen, holds)]


def _between_numbers(seen: Seen) -> tuple[Seen, bool] | None:
    """Return the condition, and whether it is meant or its negation, that a comparison with one of two chosen numbers
    is.

    `where(later, low, 0) < 0` is `later`.
    """
    sides = seen.operands(*COMPARISONS)
    for place, side in enumerate(sides or ()):
        condition, one, other = side.operands("Where") or (None, None, None)
        number = (sides or [])[1 - place].scalar
        if condition is None or one is None or other is None or number is None:
            continue
        pair = [part.scalar for part in (one, other)]
        if None in pair:
            continue
        compare = _COMPARE[seen.node.op_type]
        truths = [compare(*((part, number) if place == 0 else (number, part))) for part in pair]
        if truths[0] != truths[1]:
            return condition, truths[0]
    return None
