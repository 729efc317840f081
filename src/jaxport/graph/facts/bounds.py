"""The ends of intervals: sizes and numbers, and what is known of their order."""

from __future__ import annotations

import math

from jaxport.graph.facts.facts import End
from jaxport.graph.facts.polynomials import SizePolynomial


def larger(one: End | None, other: End | None) -> End | None:
    """Return the larger of two ends; None if that is not known."""
    if isinstance(one, float) and isinstance(other, float):
        return max(one, other)
    if isinstance(one, SizePolynomial) and isinstance(other, SizePolynomial):
        return one if one.is_at_least(other) else other if other.is_at_least(one) else None
    return None


def negative(end: End | None) -> End | None:
    """Return the opposite of an end."""
    return None if end is None else -end


def smaller(one: End | None, other: End | None) -> End | None:
    """Return the smaller of two ends; None if that is not known."""
    return negative(larger(negative(one), negative(other)))


def plus(one: End | None, other: End | None) -> End | None:
    """Return the sum of two ends; None if one is not known."""
    if isinstance(one, SizePolynomial) and isinstance(other, SizePolynomial):
        return one + other
    return one + other if isinstance(one, float) and isinstance(other, float) else None


def is_nonnegative(end: End | None) -> bool:
    """Whether an end is known not to be negative."""
    return end.is_at_least(0) if isinstance(end, SizePolynomial) else end is not None and end >= 0


def is_positive(end: End | None) -> bool:
    """Whether an end is known to be positive."""
    return end.is_at_least(1) if isinstance(end, SizePolynomial) else end is not None and end > 0


def times(one: End | None, other: End | None) -> End | None:
    """Return the product of two ends; None if one is not known."""
    if isinstance(one, SizePolynomial) and isinstance(other, SizePolynomial):
        return one * other
    return one * other if isinstance(one, float) and isinstance(other, float) and math.isfinite(one * other) else None


def at_least(one: End | None, other: End | None) -> bool:
    """Whether an end is known not to be less than another."""
    if isinstance(one, SizePolynomial) and isinstance(other, SizePolynomial):
        return one.is_at_least(other)
    return isinstance(one, float) and isinstance(other, float) and one >= other
