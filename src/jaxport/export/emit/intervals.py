"""Interval analysis: the range of a value's elements, derived from its origin, may make a clamp redundant.

The range of floats is that of the elements that are not NaN, up to rounding.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from jaxport.export.emit.shapes import Unknown, shape_of, vector_of
from jaxport.export.emit.value import Origin, Value, beside
from jaxport.jaxprs import Dim, dims
from jaxport.onnx_facts import RANGES, RESHAPING, ROUNDING_TO_ZERO, SELECTIONS, UNSIGNED

#: How many nodes back an origin is followed.
DEPTH = 24


End: TypeAlias = Dim | float


class Interval(NamedTuple):
    """The smallest and the largest value, both included; either may be a symbolic dim."""

    low: End
    high: End


ANY_FLOAT = Interval(-math.inf, math.inf)


def within(value: Value, low: Dim, high: Dim) -> bool:
    """Whether all elements of an integer value are known to lie in `low` to `high`."""
    bounds = interval(value)
    return _at_most(low, bounds.low) and _at_most(bounds.high, high)


def lies_within(value: Value, low: float, high: float) -> bool:
    """Whether all elements that are not NaN are known to lie between two numbers, without these."""
    bounds = interval(value)
    return _at_most(low, bounds.low) and _at_most(bounds.high, high) and low != bounds.low and high != bounds.high


def above_minus_infinity(value: Value) -> bool:
    """Whether no element of a floating-point value is minus infinity; some may be NaN.

    >>> above_minus_infinity(Value(np.float32, (2,), constant=np.array([3, -1], np.float32)))
    True
    """
    return _at_most(-float(ml_dtypes.finfo(value.dtype).max), interval(value).low)


def is_finite(value: Value) -> bool:
    """Whether no element of a floating-point value is infinite; some may be NaN.

    >>> is_finite(Value(np.float32, (2,), constant=np.array([3, np.inf], np.float32)))
    False
    """
    return above_minus_infinity(value) and _at_most(interval(value).high, float(ml_dtypes.finfo(value.dtype).max))


def is_never_negative_zero(value: Value) -> bool:
    """Whether no element of a floating-point value is -0.0.

    >>> is_never_negative_zero(Value(np.float32, (2,), constant=np.array([3, -0.0], np.float32)))
    False
    """
    return _is_never_negative_zero(value, DEPTH)


def _is_never_negative_zero(value: Value, depth: int) -> bool:
    if value.constant is not None:
        return not np.any((value.constant == 0) & np.signbit(value.constant))
    origin = value.origin
    if origin is None or not depth:
        return False
    operands = [x for x in origin.operands if x is not None]
    if origin.op_type in SELECTIONS | {"Cast", "ReduceSum"}:
        operands = operands[:1]
    known = [_is_never_negative_zero(x, depth - 1) for x in operands]
    if origin.op_type == "Add":  # -0.0 is the sum of two of them alone
        return any(known)
    if origin.op_type in ROUNDING_TO_ZERO:  # what is negative may be rounded to -0.0
        return all(known) and all(_at_most(0, interval(x).low) for x in operands)
    return origin.op_type in UNSIGNED or (origin.op_type in SELECTIONS and all(known))


def interval(value: Value) -> Interval:
    """Return the range of a value: that of its dtype if nothing more is known.

    >>> interval(Value(np.int32, (2,), constant=np.array([3, -1], np.int32)))
    Interval(low=-1, high=3)
    >>> interval(Value(np.uint8, (2,)))
    Interval(low=0, high=255)
    """
    return _interval(value, {}, DEPTH)


def _interval(value: Value, known: dict[Value, Interval], depth: int) -> Interval:
    integral = value.dtype.kind in "iub"
    if value.constant is not None and value.constant.size:
        number = int if integral else float
        return Interval(number(value.constant.min()), number(value.constant.max()))
    limits = _limits(value.dtype) if integral else ANY_FLOAT
    origin = value.origin
    if origin is None or not depth:
        return limits
    if value not in known:
        bounds = _computed(origin, known, depth)
        if bounds is None and not integral and origin.op_type in RANGES:
            bounds = Interval(*RANGES[origin.op_type])
        # Arithmetic that may leave the dtype wraps, or becomes infinite, so nothing is known. No dim is that large.
        known[value] = bounds if bounds is not None and _fits(bounds, value.dtype) else limits
    return known[value]


def _computed(origin: Origin, known: dict[Value, Interval], depth: int) -> Interval | None:
    """Return the range that follows from those of the operands, or None."""
    rule = RULES.get(origin.op_type)
    if rule is None:
        return None
    ranges = [_interval(x, known, depth - 1) for x in origin.operands if x is not None]
    try:
        return rule(origin, ranges)
    except Unknown:  # an unknown shape
        return None


def _limits(dtype: np.dtype) -> Interval:
    """Return the least and the greatest finite number of a dtype."""
    if dtype.kind == "b":
        return Interval(0, 1)
    if dtype.kind in "iu":
        return Interval(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return Interval(float(ml_dtypes.finfo(dtype).min), float(ml_dtypes.finfo(dtype).max))


def _fits(interval: Interval, dtype: np.dtype) -> bool:
    """Whether a range lies in a dtype: integers may be symbolic, and floats infinite."""
    limits = _limits(dtype)
    if dtype.kind in "iub":
        return all(not dims.is_static(end) or _lies_in(limits, end) for end in interval)
    numbers = all(isinstance(end, float) or dims.is_static(end) for end in interval)
    return numbers and all((isinstance(end, float) and math.isinf(end)) or _lies_in(limits, end) for end in interval)


def _lies_in(limits: Interval, end: End) -> bool:
    return operator.le(limits.low, end) and operator.le(end, limits.high)


def _at_most(a: End, b: End) -> bool:
    return dims.known(lambda: operator.le(a, b))


def _larger(a: End, b: End) -> End | None:
    """Return the larger end, or None if that is undecided."""
    return b if _at_most(a, b) else a if _at_most(b, a) else None


def _negative(x: Interval) -> Interval:
    return Interval(-x.high, -x.low)


def _hull(x: Interval, y: Interval) -> Interval | None:
    """Return the smallest interval that contains both."""
    low, high = _larger(-x.low, -y.low), _larger(x.high, y.high)
    return None if low is None or high is None else Interval(-low, high)


def _maximum(x: Interval, y: Interval) -> Interval | None:
    low, high = _larger(x.low, y.low), _larger(x.high, y.high)
    if low is None:  # both are lower bounds: a symbolic one says more
        low = y.low if dims.is_static(x.low) else x.low
    return None if high is None else Interval(low, high)


def _minimum(x: Interval, y: Interval) -> Interval | None:
    negated = _maximum(_negative(x), _negative(y))
    return None if negated is None else _negative(negated)


def _product(x: Interval, y: Interval) -> Interval | None:
    if not _at_most(0, x.low) or not _at_most(0, y.low):
        return None
    return Interval(x.low * y.low, x.high * y.high)


def _quotient(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    """Return the range of a quotient of floats that are not negative: a share of a sum is one at most."""
    part, total = origin.operands
    if _is_integral(part) or not all(_at_most(0, operand.low) for operand in operands):
        return None
    return Interval(0.0, 1.0 if _is_share(part, total) else math.inf)


def _is_share(part: Value | None, total: Value | None) -> bool:
    """Whether a value is among the elements whose sum is another, which stands beside all of them."""
    summed = _behind(total, RESHAPING | {"Cast"})
    if part is None or summed is None or summed.origin is None or summed.origin.op_type != "ReduceSum":
        return False
    operand, axes, *_ = (*summed.origin.operands, None)
    one, other = _behind(part, {"Cast"}), _behind(operand, {"Cast"})
    if one is None or other is None or one.identity != other.identity:
        return False
    reduced = {axis % len(shape_of(part)) for axis in vector_of(axes)}
    rows = [1 if axis in reduced else dim for axis, dim in enumerate(shape_of(part))]
    aligned = (1,) * (len(rows) - len(shape_of(total))) + shape_of(total)
    return len(aligned) == len(rows) and all(map(dims.same, aligned, rows))


def _behind(value: Value | None, through: Set[str]) -> Value | None:
    """Return what a value is before some operators."""
    while value is not None and value.origin is not None and value.origin.op_type in through:
        value = value.origin.operands[0]
    return value


IntervalRule = Callable[[Origin, Sequence[Interval]], Interval | None]


def _pairwise(function: Callable[..., Interval | None]) -> IntervalRule:
    """Return the rule for a function of the ranges of two operands, or of one after the other."""

    def rule(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
        result, *others = operands
        for other in others:
            bounds = function(result, other)
            if bounds is None:
                return None
            result = bounds
        return result

    return rule


def _position(index: int, default_axis: int) -> IntervalRule:
    """Return the rule for positions along an axis of the first operand, which are the result at `index`."""

    def rule(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
        axis = origin.attributes.get("axis", default_axis)
        return Interval(0, shape_of(origin.operands[0])[axis] - 1) if origin.result == index else None

    return rule


def _range(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    start, limit, step = operands
    return Interval(start.low, limit.high - 1) if step == (1, 1) and _is_integral(origin.operands[0]) else None


def _cast(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    """Return the range of the operand; an integer made of a NaN may be any."""
    return (
        operands[0] if _is_integral(origin.operands[0]) or np.dtype(origin.attributes["to"]).kind not in "iub" else None
    )


def _is_integral(operand: Value | None) -> bool:
    return operand is not None and operand.dtype.kind in "iub"


def _shape(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    source = origin.operands[0]
    sizes = shape_of(source)[origin.attributes.get("start") : origin.attributes.get("end")]
    return Interval(sizes[0], sizes[0]) if len(sizes) == 1 else None


def _clip(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    data, *bounds = operands
    low, high = (*origin.operands[1:], None, None)[:2]
    raised = _maximum(data, bounds[0]) if low is not None else data
    return _minimum(raised, bounds[-1]) if raised and high is not None else raised


def _where(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    """Return the hull of both branches; `i` for `where(i < 0, i + n, i)` with a non-negative `i`."""
    condition, _, plain = origin.operands
    bound = beside(condition, "Less", plain)
    is_zero = bound is not None and bound.constant is not None and not bound.constant.any()
    if is_zero and _at_most(0, operands[2].low):
        return operands[2]
    return _hull(*operands[1:])


#: How the range of an operator's result follows from those of its operands.
RULES: Mapping[str, IntervalRule] = {
    **dict.fromkeys(SELECTIONS, lambda origin, operands: operands[0]),
    "Add": _pairwise(lambda x, y: Interval(x.low + y.low, x.high + y.high)),
    "ArgMax": _position(0, 0),
    "ArgMin": _position(0, 0),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _pairwise(_hull),
    "Div": _quotient,
    "Max": _pairwise(_maximum),
    "Min": _pairwise(_minimum),
    "Mul": _pairwise(_product),
    "Neg": lambda origin, operands: _negative(operands[0]),
    "Range": _range,
    "ReduceSum": lambda origin, operands: (
        Interval(0.0, math.inf) if not _is_integral(origin.operands[0]) and _at_most(0, operands[0].low) else None
    ),
    "Shape": _shape,
    "Sub": _pairwise(lambda x, y: Interval(x.low - y.high, x.high - y.low)),
    "TopK": _position(1, -1),
    "Where": _where,
}
