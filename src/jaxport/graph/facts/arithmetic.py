"""Rules of arithmetic, and of the larger and the smaller of two values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Dim
from jaxport.graph.facts.bounds import is_nonnegative, is_positive, larger, negative, plus, smaller, times
from jaxport.graph.facts.facts import End, Facts, Operand, SeenNode
from jaxport.graph.facts.forms import Form, divided
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import SizeSum, size_sum


def present(operation: SeenNode) -> list[Operand]:
    """Return the operands that are not omitted."""
    return [operand for operand in operation.operands if operand is not None]


def form_over(operand: Operand, rank: int) -> Form | None:
    """Return the form of an operand that is broadcast to more axes."""
    form = operand.facts.form
    return None if form is None else form.over(rank)


def _by_elements(operation: SeenNode, function: Callable[[SizeSum, SizeSum], SizeSum]) -> np.ndarray | None:
    one, other = (operand.facts.elements for operand in present(operation))
    made = None if one is None or other is None else np.frompyfunc(function, 2, 1)(one, other)
    return None if made is None else np.asarray(made, object)  # of numbers it is not an array


def added(operation: SeenNode, sign: int) -> Facts:
    """Return what is known of a sum, or of a difference if the sign is negative."""
    one, other = present(operation)
    a, b = one.facts, other.facts
    rank, function = len(operation.dims), operator.add if sign > 0 else operator.sub
    forms = form_over(one, rank), form_over(other, rank)
    form = None if forms[0] is None or forms[1] is None else function(forms[0], forms[1])
    low, high = (b.low, b.high) if sign > 0 else (negative(b.high), negative(b.low))
    up, down = (b.never_infinite, b.never_minus_infinite)[::sign]
    # Infinities of both signs, one in each operand, have no sum.
    never_nan = a.never_nan and b.never_nan and (a.never_infinite or down) and (a.never_minus_infinite or up)
    kept: frozenset[int] = frozenset()
    if b.is_finite or (a.is_finite and sign > 0):
        kept = _kept_over(one if b.is_finite else other, operation.dims)
    bounded = _are_bounded(operation)
    return Facts(
        form=form,
        elements=_by_elements(operation, function),
        low=plus(a.low, low) if bounded else None,
        high=plus(a.high, high) if bounded else None,
        never_nan=never_nan,
        never_infinite=a.never_infinite and up,
        never_minus_infinite=a.never_minus_infinite and down,
        never_negative_zero=a.never_negative_zero or (sign > 0 and b.never_negative_zero),
        is_integral=a.is_integral and b.is_integral,
        kept=kept,
    )


def _are_bounded(operation: SeenNode) -> bool:
    """Whether arithmetic does not wrap: floats do not, integers do not if both ends of all operands are known."""
    ends = [end for operand in present(operation) for end in (operand.facts.low, operand.facts.high)]
    return operation.dtype.is_floating_point() or None not in ends


def _kept_over(operand: Operand, dims: Sequence[Dim]) -> frozenset[int]:
    """Return the axes of a result along which each row has an element for which the operand is not negative
    infinite.
    """
    if operand.dims is None:
        return frozenset()
    ahead = len(dims) - len(operand.dims)
    return frozenset(axis + ahead for axis in operand.facts.kept)


def multiplied(operation: SeenNode) -> Facts:
    """Return what is known of a product."""
    one, other = present(operation)
    a, b = one.facts, other.facts
    rank, form = len(operation.dims), None
    for factor, rest in ((a, other), (b, one)):
        own = form_over(rest, rank)
        if own is not None and factor.form is not None and factor.form.is_uniform:
            form = own * factor.form.constant
    is_finite = a.is_finite and b.is_finite
    is_square = one.identity == other.identity and operation.dtype.is_floating_point()
    low: End | None = 0.0 if is_square else None
    high: End | None = None
    if is_nonnegative(a.low) and is_nonnegative(b.low) and _are_bounded(operation):
        low, high = times(a.low, b.low), times(a.high, b.high)
    return Facts(
        form=form,
        elements=_by_elements(operation, operator.mul),
        low=low,
        high=high,
        never_nan=is_finite,
        never_infinite=is_finite,
        never_minus_infinite=is_finite or is_square or low is not None,
        never_negative_zero=is_square
        or (is_nonnegative(a.low) and is_nonnegative(b.low) and a.never_negative_zero and b.never_negative_zero)
        or any(
            x.is_integral and x.never_negative_zero and is_normal(y.low, operation.dtype) for x, y in ((a, b), (b, a))
        ),
        is_integral=a.is_integral and b.is_integral,
    )


def is_normal(low: End | None, dtype: ir.DataType) -> bool:
    """Whether a bound is so large that no product of a number above it with a whole number but zero is rounded to
    zero.
    """
    return (
        isinstance(low, float)
        and dtype.is_floating_point()
        and low >= float(ml_dtypes.finfo(dtype.numpy()).smallest_normal)
    )


def quotient(operation: SeenNode) -> Facts:
    """Return what is known of a quotient; that of integers is rounded down, as for positive ones."""
    one, other = present(operation)
    a, b, rank = one.facts, other.facts, len(operation.dims)
    if operation.dtype.is_integer():
        form, divisor = form_over(one, rank), b.form
        if form is None or divisor is None or not divisor.is_uniform or not is_at_least(divisor.constant, 1):
            is_plain = is_nonnegative(a.low) and is_positive(b.low)
            return Facts(low=size_sum(0), high=a.high) if is_plain else Facts()
        parts = divided(form, divisor.constant, operation.dims)
        return Facts(form=None if parts is None else parts[0])
    is_finite = a.is_finite and b.is_finite and (is_positive(b.low) or is_positive(negative(b.high)))
    low = 0.0 if is_nonnegative(a.low) and is_positive(b.low) else None
    return Facts(low=low, never_nan=is_finite, never_infinite=is_finite, never_minus_infinite=is_finite)


def remainder(operation: SeenNode) -> Facts:
    """Return what is known of the remainder of integers."""
    one, other = present(operation)
    form, divisor = form_over(one, len(operation.dims)), other.facts.form
    if not operation.dtype.is_integer() or divisor is None or not divisor.is_uniform:
        return Facts()
    if not is_at_least(divisor.constant, 1):
        return Facts()
    parts = None if form is None else divided(form, divisor.constant, operation.dims)
    rest = None if parts is None else parts[1]
    is_plain = not operation.integer("fmod", 0) or is_nonnegative(one.facts.low)
    return Facts(form=rest, low=size_sum(0) if is_plain else None, high=divisor.constant - 1)


def opposite(operation: SeenNode) -> Facts:
    """Return what is known of `-x`."""
    (x,) = present(operation)
    facts, form = x.facts, x.facts.form
    return Facts(
        form=None if form is None else form * -1,
        low=negative(facts.high),
        high=negative(facts.low),
        never_nan=facts.never_nan,
        never_infinite=facts.never_minus_infinite,
        never_minus_infinite=facts.never_infinite,
        is_integral=facts.is_integral,
    )


def absolute(operation: SeenNode) -> Facts:
    """Return what is known of `abs(x)`."""
    (x,) = present(operation)
    facts, zero = x.facts, 0.0 if operation.dtype.is_floating_point() else size_sum(0)
    form = facts.form if is_nonnegative(facts.low) else None
    if form is None and facts.form is not None and is_nonnegative(negative(facts.high)):
        form = facts.form * -1
    return Facts(
        form=form,
        low=zero
        if operation.dtype.is_floating_point() or facts.low is not None
        else None,  # the least integer has no opposite
        high=facts.high if is_nonnegative(facts.low) else None,
        never_nan=facts.never_nan,
        never_infinite=facts.never_infinite and facts.never_minus_infinite,
        never_minus_infinite=True,
        never_negative_zero=True,
        is_integral=facts.is_integral,
    )


def extreme(operation: SeenNode, operands: Sequence[Operand], is_larger: bool) -> Facts:
    """Return what is known of the larger or the smaller of operands, one after the other."""
    first, *others = operands
    facts, dims = first.facts, operation.dims
    choose = larger if is_larger else smaller
    for other in others:
        b = other.facts
        never_nan = facts.never_nan and b.never_nan
        low, high = choose(facts.low, b.low), choose(facts.high, b.high)
        if is_larger and low is None:
            low = facts.low if b.low is None else b.low
        if not is_larger and high is None:
            high = facts.high if b.high is None else b.high
        facts = Facts(
            form=_extreme_form(facts, b, dims, is_larger),
            low=low if never_nan else None,
            high=high if never_nan else None,
            never_nan=never_nan,
            never_infinite=_all_or_any(not is_larger, facts.never_infinite, b.never_infinite),
            never_minus_infinite=_all_or_any(is_larger, facts.never_minus_infinite, b.never_minus_infinite),
            never_negative_zero=facts.never_negative_zero and b.never_negative_zero,
            is_integral=facts.is_integral and b.is_integral,
        )
    return facts if others else replace(facts, form=form_over(first, len(dims)))


def _all_or_any(is_any: bool, one: bool, other: bool) -> bool:
    return one or other if is_any else one and other


def _extreme_form(a: Facts, b: Facts, dims: Sequence[Dim], is_larger: bool) -> Form | None:
    """Return the form of the larger or smaller of two values, if it is the same one everywhere."""
    one, other = (None if facts.form is None else facts.form.over(len(dims)) for facts in (a, b))
    if one is not None and other is not None:
        above = one - other if is_larger else other - one
        return one if above.is_at_least(0, dims) else other if (above * -1).is_at_least(0, dims) else None
    ends = ((a.low, b.high), (b.low, a.high)) if is_larger else ((b.low, a.high), (a.low, b.high))
    wins = [isinstance(x, SizeSum) and isinstance(y, SizeSum) and is_at_least(x, y) for x, y in ends]
    return one if wins[0] else other if wins[1] else None


def clipped(operation: SeenNode) -> Facts:
    """Return what is known of a value between two bounds."""
    x, low, high = (*operation.operands, None, None)[:3]
    if x is None:
        return Facts()
    if {"min", "max"} & {*operation.attributes}:
        return Facts(never_nan=x.facts.never_nan)
    raised = x if low is None else replace(x, facts=extreme(operation, [x, low], True), dims=operation.dims)
    return raised.facts if high is None else extreme(operation, [raised, high], False)
