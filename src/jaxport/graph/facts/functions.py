"""Rules of functions of floats, of conversions, and of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from jaxport.graph.facts.arithmetic import present
from jaxport.graph.facts.bounds import is_nonnegative, is_positive, negative
from jaxport.graph.facts.facts import EXACT, Facts, Number, Operand, SeenNode
from jaxport.graph.facts.forms import ALWAYS, NEVER, uniform
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import SizeSum, size_sum

Rule = Callable[[SeenNode], Facts]


LARGEST_EXPONENT = 80.0
"""A number whose exponential no floating-point type of 32 bits or more makes infinite."""


def cast(operation: SeenNode) -> Facts:
    """Return what is known of a value in another dtype."""
    (x,) = present(operation)
    facts, before, after = x.facts, x.dtype, operation.dtype
    if before is None:
        return Facts()
    choice = facts.choice
    if after.is_floating_point():
        return _cast_to_float(facts, before, after)
    if after is ir.DataType.BOOL:
        if choice is None or any(map(math.isnan, choice[1:])):
            return Facts()
        one, other = map(bool, choice[1:])
        band = (ALWAYS if one else NEVER) if one == other or choice[0].is_always else None
        return Facts(band=band, choice=(choice[0], one, other))
    if str(after.numpy()) not in EXACT and before is ir.DataType.BOOL and choice is not None:
        return Facts(choice=(choice[0], int(choice[1]), int(choice[2])), low=facts.low, high=facts.high)
    if before.is_floating_point() or str(after.numpy()) not in EXACT:
        return Facts()
    keeps = before is ir.DataType.BOOL or (str(before.numpy()) in EXACT and before.numpy().kind == after.numpy().kind)
    if not keeps:
        return Facts()
    integers = None if choice is None else (choice[0], int(choice[1]), int(choice[2]))
    return Facts(
        form=facts.form, elements=facts.elements, columns=facts.columns, choice=integers, low=facts.low, high=facts.high
    )


def _cast_to_float(facts: Facts, before: ir.DataType, after: ir.DataType) -> Facts:
    """Return what is known of a value that is rounded to a type, and may become infinite or zero in it."""

    def rounded(number: Number) -> float:
        with np.errstate(over="ignore"):
            return float(np.asarray(number).astype(after.numpy()))

    ends = (end.value if isinstance(end, SizeSum) else end for end in (facts.low, facts.high))
    low, high = (None if end is None else rounded(end) for end in ends)
    choice = facts.choice
    narrows = before.is_floating_point() and after.itemsize < before.itemsize
    return Facts(
        choice=None if choice is None else (choice[0], rounded(choice[1]), rounded(choice[2])),
        low=low,
        high=high,
        never_nan=facts.never_nan,
        never_infinite=facts.never_infinite and (high is None or math.isfinite(high)),
        never_minus_infinite=facts.never_minus_infinite and (low is None or math.isfinite(low)),
        never_negative_zero=facts.never_negative_zero and not narrows,
        is_integral=facts.is_integral,
        kept=facts.kept if choice is None and not narrows else frozenset(),
    )


FINITE = Facts(never_nan=True, never_infinite=True, never_minus_infinite=True)
NO_NEGATIVE_ZERO = Facts(never_negative_zero=True)
UNIT = replace(FINITE, low=0.0, high=1.0, never_negative_zero=True)


def if_finite(facts: Facts = FINITE, otherwise: Facts | None = None) -> Rule:
    """Return the rule of an operator whose result has some facts if all operands are finite."""

    def rule(operation: SeenNode) -> Facts:
        return facts if all(x.facts.is_finite for x in present(operation)) else otherwise or Facts()

    return rule


def if_not_nan(facts: Facts, otherwise: Facts | None = None) -> Rule:
    """Return the rule of an operator whose result has some facts if no operand has a NaN."""

    def rule(operation: SeenNode) -> Facts:
        return facts if all(x.facts.never_nan for x in present(operation)) else otherwise or Facts()

    return rule


def softmax(operation: SeenNode) -> Facts:
    """Return what is known of shares: none is NaN if each row has a score that is not minus infinity."""
    (x,) = present(operation)
    rank, single = len(operation.dims), operation.version is None or operation.version >= 13
    axis = operation.integer("axis", -1 if single else 1) % max(rank, 1)
    facts = x.facts
    is_row = single or axis == rank - 1
    safe = facts.never_nan and facts.never_infinite and is_row and axis in facts.kept
    return UNIT if facts.is_finite or safe else NO_NEGATIVE_ZERO


def exponential(operation: SeenNode) -> Facts:
    """Return what is known of `exp(x)`."""
    (x,) = present(operation)
    bounded = isinstance(x.facts.high, float) and x.facts.high <= LARGEST_EXPONENT
    return Facts(
        low=0.0 if x.facts.never_nan else None,
        never_nan=x.facts.never_nan,
        never_infinite=x.facts.never_nan and bounded and operation.dtype.itemsize >= 4,
        never_minus_infinite=True,
        never_negative_zero=True,
    )


def root(operation: SeenNode) -> Facts:
    """Return what is known of a square root."""
    (x,) = present(operation)
    if not is_nonnegative(x.facts.low) or not x.facts.never_nan:
        return Facts()
    low = math.sqrt(x.facts.low) if isinstance(x.facts.low, float) else 0.0
    finite = x.facts.never_infinite
    return Facts(low=low, never_nan=True, never_infinite=finite, never_minus_infinite=True)


def reciprocal(operation: SeenNode) -> Facts:
    """Return what is known of `1 / x`."""
    (x,) = present(operation)
    safe = x.facts.is_finite and (is_positive(x.facts.low) or is_positive(negative(x.facts.high)))
    return replace(FINITE, low=0.0 if is_positive(x.facts.low) else None) if safe else Facts()


def logarithm(operation: SeenNode) -> Facts:
    """Return what is known of a logarithm."""
    (x,) = present(operation)
    return FINITE if x.facts.is_finite and is_positive(x.facts.low) else Facts()


def power(operation: SeenNode) -> Facts:
    """Return what is known of a value raised to a whole power."""
    base, exponent = present(operation)
    number = exponent.facts.number
    if number is None or not base.facts.is_finite or number != int(number) or number < 0:
        return Facts()
    even = int(number) % 2 == 0
    return replace(FINITE, low=0.0 if even and operation.dtype.is_floating_point() else None, never_negative_zero=even)


def whole(operation: SeenNode) -> Facts:
    """Return what is known of a rounded value."""
    (x,) = present(operation)
    f = x.facts
    return Facts(never_nan=f.never_nan, never_infinite=f.never_infinite, never_minus_infinite=f.never_minus_infinite,
                 is_integral=True)  # fmt: skip


def rectified(operation: SeenNode) -> Facts:
    """Return what is known of `max(x, 0)`."""
    (x,) = present(operation)
    low = 0.0 if operation.dtype.is_floating_point() else size_sum(0)
    known = x.facts.never_nan
    return Facts(low=low if known else None, high=x.facts.high if is_nonnegative(x.facts.high) else None,
                 never_nan=known, never_infinite=x.facts.never_infinite, never_minus_infinite=True,
                 is_integral=x.facts.is_integral)  # fmt: skip


def normalized(operation: SeenNode) -> Facts:
    """Return what is known of a normalized value."""
    epsilon = operation.attributes.get("epsilon", 1e-5)
    positive = isinstance(epsilon, float) and epsilon > 0
    is_main = operation.place == 0
    return FINITE if positive and is_main and all(x.facts.is_finite for x in present(operation)) else Facts()


def reduced(operation: SeenNode) -> Facts:
    """Return what is known of sums and means."""
    x = present(operation)[0]
    if not x.facts.is_finite or not _has_elements(x):
        return Facts()
    low = 0.0 if operation.dtype.is_floating_point() and is_nonnegative(x.facts.low) else None
    return replace(FINITE, low=low)


def _has_elements(operand: Operand) -> bool:
    return operand.dims is not None and all(is_at_least(size_sum(dim), 1) for dim in operand.dims)


def reduced_extreme(operation: SeenNode) -> Facts:
    """Return what is known of the largest or smallest elements along axes."""
    x = present(operation)[0]
    if x.dims is None or not _has_elements(x):  # of nothing it is infinite
        return Facts()
    facts, band = x.facts, x.facts.band
    is_over_all = operation.operand(1) is None and "axes" not in operation.attributes
    axes = [*range(len(x.dims))] if is_over_all else operation.axes(1, len(x.dims)) or []
    if band is not None and not band.is_always and not band.is_never:
        keeps = operation.op_type == "ReduceMax" and any(band.keeps_some(axis, x.dims) for axis in axes)
        band = ALWAYS if keeps and not operation.integer("noop_with_empty_axes", 0) else None
    return replace(
        facts, form=None if facts.form is None or not facts.form.is_uniform
        else uniform(facts.form.constant, len(operation.dims)),
        band=band, choice=facts.choice if facts.number is not None else None, elements=None, columns=(),
        kept=frozenset(),
        is_nan_of=None,
    )  # fmt: skip
