"""Integers of a graph as sums of sizes and positions, and conditions on them as inequalities.

A mask such as `keys <= queries + past` compares positions along two axes with sizes that have names. Written as a sum,
it says which keys a query sees, however the graph spells it: by casts, shifts, or sizes read from shapes.

>>> x = ir.Value(name="x", shape=ir.Shape(["T - S", 4]), type=ir.TensorType(ir.DataType.FLOAT))
>>> node = ir.node("Shape", [x], {"start": 0, "end": 1})
>>> node.outputs[0].shape, node.outputs[0].dtype = ir.Shape([1]), ir.DataType.INT64
>>> past = affine(look(node.outputs[0], [None]))
>>> past == size("T") - size("S"), str(past)
(True, 'T - S')
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.graph.editing import Dim, constant_of, dims_of, integer, is_op, size_in, source
from jaxport.graph.matching import Axis, Seen, look
from jaxport.jaxprs import dim_text
from jaxport.onnx_facts import ARITHMETIC, CHOICES, COMPARISONS, SIGN_CHANGES

_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.INT16, ir.DataType.INT8})

_ORDERED = COMPARISONS - {"Equal"}
_COMPARE = {
    "Equal": operator.eq, "Greater": operator.gt, "GreaterOrEqual": operator.ge, "Less": operator.lt, "LessOrEqual": operator.le,
}  # fmt: skip


@dataclass(frozen=True)
class Position:
    """The position along an axis: 0, 1, 2, …"""

    axis: Axis


@dataclass(frozen=True)
class Affine:
    """A sum of integers with whole factors.

    Attributes:
      terms: the factor of each size (its text), position and other value (as seen); none is zero.
      number: the number that is added.
    """

    terms: Mapping[Hashable, int]
    number: int = 0

    def __hash__(self) -> int:
        return hash((frozenset(self.terms.items()), self.number))

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.number + other)
        terms = {key: self.factor(key) + other.factor(key) for key in (*self.terms, *other.terms)}
        return Affine({key: factor for key, factor in terms.items() if factor}, self.number + other.number)

    def __mul__(self, factor: int) -> Affine:
        return Affine({key: own * factor for key, own in self.terms.items() if factor}, self.number * factor)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + other * -1

    def __str__(self) -> str:
        parts = [*((factor, str(key)) for key, factor in self.terms.items()), (self.number, "1")]
        texts = [
            f"{'-' if factor < 0 else '+'} {abs(factor) if key == '1' else key if abs(factor) == 1 else f'{abs(factor)}*{key}'}"
            for factor, key in parts
            if factor
        ]
        return " ".join(texts).removeprefix("+ ") or "0"

    def factor(self, key: Hashable) -> int:
        """Return the factor of a size, a position or a value."""
        return self.terms.get(key, 0)

    def without(self, *keys: Hashable) -> Affine:
        """Return the sum of the other terms."""
        return Affine({key: factor for key, factor in self.terms.items() if key not in keys}, self.number)

    @property
    def values(self) -> list[Seen]:
        """The terms that are neither sizes nor positions."""
        return [key for key in self.terms if isinstance(key, Seen)]


def size(dim: Dim) -> Affine:
    """Return a dim as a sum; a part that is not linear is one term, named by its text.

    >>> str(size("2*B + floordiv(T, 2) - 1"))
    '2*B + floordiv(T, 2) - 1'
    """
    if isinstance(dim, int):
        return Affine({}, dim)
    text = str(dim)
    try:
        return _read(text)
    except InvalidArgument:  # a dim of a file that is only a name
        return Affine({text: 1})


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> Affine:
    return _linear(dim_text.parse(text))


def _linear(expression: dim_text.Expression) -> Affine:
    match expression.form:
        case "number":
            return Affine({}, expression.value)
        case "name":
            return Affine({expression.name: 1})
        case "neg":
            return _linear(expression.parts[0]) * -1
        case "+" | "-" as sign:
            left, right = map(_linear, expression.parts)
            return left + right if sign == "+" else left - right
        case "*":
            left, right = map(_linear, expression.parts)
            if not left.terms or not right.terms:
                return right * left.number if not left.terms else left * right.number
    return Affine({_text(expression): 1})


def _text(expression: dim_text.Expression) -> str:
    match expression.form:
        case "number":
            return str(expression.value)
        case "name":
            return expression.name
        case "neg":
            return f"-{_text(expression.parts[0])}"
        case "+" | "-" | "*" | "^" as sign:
            return f"({f' {sign} '.join(map(_text, expression.parts))})"
        case name:
            return f"{name}({', '.join(map(_text, expression.parts))})"


@dataclass(frozen=True)
class Known:
    """What is known of sizes: the sums that are not negative, such as the sizes of the inputs of a graph.

    >>> known = Known((size("T") - size("S"),))
    >>> known.is_positive_or_zero(size("T") - size("S") + 2), known.is_positive_or_zero(size("S") - size("T"))
    (True, False)
    """

    sums: tuple[Affine, ...] = ()

    @classmethod
    def of(cls, graph: ir.Graph, sums: Iterable[Affine] = ()) -> Known:
        """Return what the inputs of a graph tell: their sizes are not negative."""
        dims = {dim for value in graph.inputs for dim in dims_of(value) or () if isinstance(dim, str)}
        return cls((*(size(dim) for dim in sorted(dims)), *sums))

    def is_positive_or_zero(self, sum_: Affine) -> bool:
        """Whether a sum of sizes is known not to be negative; sizes with a name alone are at least 1."""
        if not all(isinstance(key, str) for key in sum_.terms):
            return False
        useful = [one for one in self.sums if len(one.terms) > 1]
        few = [(), *((one,) for one in useful), *itertools.combinations_with_replacement(useful, 2)]
        return any(_is_plain(functools.reduce(Affine.__sub__, removed, sum_)) for removed in few)

    def is_at_least(self, sum_: Affine, sizes: Mapping[Axis, Dim]) -> bool:
        """Whether a sum is known not to be negative, for all positions along axes of these sizes."""
        for key, factor in sum_.terms.items():
            if isinstance(key, Position):
                if key.axis not in sizes:
                    return False
                last = size(sizes[key.axis]) - 1
                sum_ = sum_.without(key) + (last * factor if factor < 0 else 0)
        return self.is_positive_or_zero(sum_)


def _is_plain(sum_: Affine) -> bool:
    return all(factor > 0 for factor in sum_.terms.values()) and sum_.number + sum(sum_.terms.values()) >= 0


NOTHING = Known()


def affine(seen: Seen, known: Known = NOTHING) -> Affine:
    """Return an integer of a graph as a sum; what is not understood is a term of its own."""
    return _affine(seen, known) or Affine({seen: 1})


def _affine(seen: Seen, known: Known) -> Affine | None:
    value = seen.value
    if value.dtype not in _INTEGERS:
        return None
    array, text = constant_of(value), size_in(value)
    if array is not None:
        return _constant(array, seen.axes)
    if text is not None:
        return size(text)
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
            return size(dims[along[0]]) if dims is not None and len(along) == 1 else None
        case "Gather":
            return _gathered_size(node)
        case "Range":
            start, _, step = (look(source(node, place), ()) for place in range(3))
            return affine(start, known) + Affine({Position(seen.axes[0]): 1}) if step.scalar == 1 else None
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


def _constant(array: np.ndarray, axes: Sequence[Axis]) -> Affine | None:
    """Return a number, or the positions along the only axis of a constant."""
    if not array.size:
        return None
    flat = array.ravel()
    if (flat == flat[0]).all():
        return Affine({}, int(flat[0]))
    along = [axis for axis in axes if axis is not None]
    if len(along) == 1 and (flat == flat[0] + np.arange(flat.size)).all():
        return Affine({Position(along[0]): 1}, int(flat[0]))
    return None


def _gathered_size(node: ir.Node) -> Affine | None:
    """Return the size that is read from a whole shape."""
    shape, place = source(node).producer(), constant_of(node.inputs[1])
    if not is_op(shape, "Shape") or shape.attributes or place is None or place.size != 1:
        return None
    dims = dims_of(shape.inputs[0])
    return None if dims is None else size(dims[int(place.ravel()[0])])


def _chosen(seen: Seen, known: Known) -> Affine | None:
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
    sum: Affine | None = None


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
    """Return the condition, and whether it is meant or its negation, that a comparison with one of two chosen numbers is.

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
