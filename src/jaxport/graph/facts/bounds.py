"""The ends of intervals: sizes and numbers, and what is known of their order."""

from __future__ import annotations

import math

from jaxport.graph.facts.facts import End
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import SizeSum


def larger(one: End | None, other: End | None) -> End | None:
    """Return the larger of two ends; None if that is not known."""
    if isinstance(one, float) and isinstance(other, float):
        return max(one, other)
    if isinstance(one, SizeSum) and isinstance(other, SizeSum):
        return one if is_at_least(one, other) else other if is_at_least(other, one) else None
    return None


def negative(end: End | None) -> End | None:
    """Return the opposite of an end."""
    return None if end is None else -end


def smaller(one: End | None, other: End | None) -> End | None:
    """Return the smaller of two ends; None if that is not known."""
    return negative(larger(negative(one), negative(other)))


def plus(one: End | None, other: End | None) -> End | None:
    """Return the sum of two ends; None if one is not known."""
    if isinstance(one, SizeSum) and isinstance(other, SizeSum):
        return one + other
    return one + other if isinstance(one, float) and isinstance(other, float) else None


def is_nonnegative(end: End | None) -> bool:
    """Whether an end is known not to be negative."""
    return is_at_least(end) if isinstance(end, SizeSum) else end is not None and end >= 0


def is_positive(end: End | None) -> bool:
    """Whether an end is known to be positive."""
    return is_at_least(end, 1) if isinstance(end, SizeSum) else end is not None and end > 0


def times(one: End | None, other: End | None) -> End | None:
    """Return the product of two ends; None if one is not known."""
    if isinstance(one, SizeSum) and isinstance(other, SizeSum):
        return one * other
    return one * other if isinstance(one, float) and isinstance(other, float) and math.isfinite(one * other) else None


def at_least(one: End | None, other: End | None) -> bool:
    """Whether an end is known not to be less than another."""
    if isinstance(one, SizeSum) and isinstance(other, SizeSum):
        return is_at_least(one, other)
    return isinstance(one, float) and isinstance(other, float) and one >= other
