"""Interval analysis: the range of an integer value's elements, derived from its origin, may make a clamp redundant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxport.export import dims
from jaxport.export.shapes import Unknown, shape_of
from jaxport.export.value import Origin, Value, beside
from jaxport.onnx_facts import SELECTIONS

#: How many nodes back an origin is followed.
DEPTH = 24


class Interval(NamedTuple):
    """The smallest and the largest value, both included; either may be a symbolic dim."""

    low: dims.Dim
    high: dims.Dim


def within(value: Value, low: dims.Dim, high: dims.Dim) -> bool:
    """Whether all elements of an integer value are known to lie in `low` to `high`."""
    bounds = interval(value)
    return _at_most(low, bounds.low) and _at_most(bounds.high, high)


def interval(value: Value) -> Interval:
    """Return the range of an integer or boolean value: that of its dtype if nothing more is known.

    >>> interval(Value(np.int32, (2,), constant=np.array([3, -1], np.int32)))
    Interval(low=-1, high=3)
    >>> interval(Value(np.uint8, (2,)))
    Interval(low=0, high=255)
    """
    return _interval(value, {}, DEPTH)


def _interval(value: Value, known: dict[int, Interval], depth: int) -> Interval:
    if value.constant is not None and value.constant.size:
        return Interval(int(value.constant.min()), int(value.constant.max()))
    limits = _limits(value.dtype)
    origin = value.origin
    rule = RULES.get(origin.op_type) if origin is not None else None
    if origin is None or rule is None or not depth:
        return limits
    if id(value) not in known:
        operands = [x for x in origin.operands if x is not None]
        ranges = [_interval(x, known, depth - 1) if x.dtype.kind in "iub" else _limits(x.dtype) for x in operands]
        try:
            bounds = rule(origin, ranges)
        except Unknown:  # an unknown shape
            bounds = None
        # Arithmetic that may leave the dtype wraps, so nothing is known. No dim is that large.
        known[id(value)] = bounds if bounds is not None and _fits(bounds, limits) else limits
    return known[id(value)]


def _limits(dtype: np.dtype) -> Interval:
    if dtype.kind == "b":
        return Interval(0, 1)
    bounds = np.iinfo(dtype if dtype.kind in "iu" else np.int64)
    return Interval(int(bounds.min), int(bounds.max))


def _fits(interval: Interval, limits: Interval) -> bool:
    return all(not dims.is_static(end) or limits.low <= end <= limits.high for end in interval)


def _at_most(a: dims.Dim, b: dims.Dim) -> bool:
    return dims.known(lambda: a <= b)


def _larger(a: dims.Dim, b: dims.Dim) -> dims.Dim | None:
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


IntervalRule = Callable[[Origin, Sequence[Interval]], Interval | None]


def _arithmetic(function: Callable[..., Interval | None]) -> IntervalRule:
    return lambda origin, operands: function(*operands)


def _position(index: int, default_axis: int) -> IntervalRule:
    """Return the rule for positions along an axis of the first operand, which are the result at `index`."""

    def rule(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
        axis = origin.attributes.get("axis", default_axis)
        return Interval(0, shape_of(origin.operands[0])[axis] - 1) if origin.result == index else None

    return rule


def _range(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    start, limit, step = operands
    return Interval(start.low, limit.high - 1) if step == (1, 1) else None


def _shape(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    source = origin.operands[0]
    sizes = shape_of(source)[origin.attributes.get("start") : origin.attributes.get("end")]
    return Interval(sizes[0], sizes[0]) if len(sizes) == 1 else None


def _clip(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    if len(operands) != 3:
        return None
    raised = _maximum(operands[0], operands[1])
    return _minimum(raised, operands[2]) if raised else None


def _concat(origin: Origin, operands: Sequence[Interval]) -> Interval | None:
    result: Interval | None = operands[0]
    for other in operands[1:]:
        result = _hull(result, other) if result else None
    return result


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
    **dict.fromkeys({*SELECTIONS, "Cast"}, lambda origin, operands: operands[0]),
    "Add": _arithmetic(lambda x, y: Interval(x.low + y.low, x.high + y.high)),
    "ArgMax": _position(0, 0),
    "ArgMin": _position(0, 0),
    "Clip": _clip,
    "Concat": _concat,
    "Max": _arithmetic(_maximum),
    "Min": _arithmetic(_minimum),
    "Mul": _arithmetic(_product),
    "Range": _range,
    "Shape": _shape,
    "Sub": _arithmetic(lambda x, y: Interval(x.low - y.high, x.high - y.low)),
    "TopK": _position(1, -1),
    "Where": _where,
}
