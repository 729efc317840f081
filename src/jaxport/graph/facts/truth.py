"""Rules of truth values, and of what they choose between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jaxport.graph.facts.arithmetic import form_over, present
from jaxport.graph.facts.bounds import larger, smaller
from jaxport.graph.facts.facts import End, Facts, Operand, SeenNode, kept_in
from jaxport.graph.facts.forms import ALWAYS, NEVER, Band, Form
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import SizeSum

Rule = Callable[[SeenNode], Facts]


def chosen(operation: SeenNode) -> Facts:
    """Return what is known of a choice between two values."""
    condition, one, other = present(operation)
    band, a, b, rank = condition.facts.band, one.facts, other.facts, len(operation.dims)
    if band is not None and (band.is_always or band.is_never):
        return _broadcast(one if band.is_always else other, rank)
    forms, choice, kept = (form_over(one, rank), form_over(other, rank)), None, frozenset[int]()
    if band is not None:
        band = band_over(band, rank)
        if a.number is not None and b.number is not None:
            choice = band, a.number, b.number
        keeping = band if a.never_minus_infinite else band.inverse() if b.never_minus_infinite else None
        kept = frozenset() if keeping is None else kept_in(keeping, operation.dims)
    is_guard = condition.facts.is_nan_of is not None and condition.facts.is_nan_of == other.identity
    return Facts(
        form=forms[0] if forms[0] == forms[1] else None,
        choice=choice,
        low=smaller(a.low, b.low),
        high=larger(a.high, b.high),
        never_nan=a.never_nan and (b.never_nan or is_guard),
        never_infinite=a.never_infinite and b.never_infinite,
        never_minus_infinite=a.never_minus_infinite and b.never_minus_infinite,
        never_negative_zero=a.never_negative_zero and b.never_negative_zero,
        is_integral=a.is_integral and b.is_integral,
        kept=kept,
    )


def _broadcast(operand: Operand, rank: int) -> Facts:
    """Return what is known of an operand that is broadcast to more axes."""
    facts, choice = operand.facts, operand.facts.choice
    return replace(
        facts, form=form_over(operand, rank), band=None if facts.band is None else band_over(facts.band, rank),
        elements=None,
        choice=None if choice is None else (band_over(choice[0], rank), *choice[1:]), kept=frozenset(), columns=(),
    )  # fmt: skip


def band_over(band: Band, rank: int) -> Band:
    """Return the band of truth values that are broadcast to more axes."""
    return replace(band, conditions=frozenset(form.over(rank) for form in band.conditions))


def comparison(name: str) -> Rule:
    """Return the rule of a comparison."""

    def compared(operation: SeenNode) -> Facts:
        one, other = present(operation)
        if one.identity == other.identity and one.dtype is not None and not one.dtype.is_floating_point():
            return Facts(band=NEVER if name in ("Less", "Greater") else ALWAYS)
        a, b = form_over(one, len(operation.dims)), form_over(other, len(operation.dims))
        if a is not None and b is not None:
            return Facts(band=Band.where(_conditions(name, a - b), operation.dims))
        return Facts(band=_by_bounds(name, one.facts, other.facts))

    return compared


def _conditions(name: str, difference: Form) -> list[Form]:
    """Return the forms that are not negative where a comparison of a difference with zero holds."""
    above, below = difference, difference * -1
    return {
        "Greater": [above.shifted(-1)],
        "GreaterOrEqual": [above],
        "Less": [below.shifted(-1)],
        "LessOrEqual": [below],
        "Equal": [above, below],
    }[name]


def _by_bounds(name: str, a: Facts, b: Facts) -> Band | None:
    """Return where a comparison holds if the intervals of its sides alone decide it."""
    if not a.never_nan or not b.never_nan:
        return None
    if name in ("Less", "LessOrEqual"):
        return _by_bounds({"Less": "Greater", "LessOrEqual": "GreaterOrEqual"}[name], b, a)

    def surely(low: End | None, high: End | None, is_strict: bool) -> bool:
        if isinstance(low, SizeSum) and isinstance(high, SizeSum):
            return is_at_least(low, high + int(is_strict))
        return isinstance(low, float) and isinstance(high, float) and (low > high if is_strict else low >= high)

    if name == "Equal":
        return NEVER if surely(a.low, b.high, True) or surely(b.low, a.high, True) else None
    is_strict = name == "Greater"
    return ALWAYS if surely(a.low, b.high, is_strict) else NEVER if surely(b.low, a.high, not is_strict) else None


def both(operation: SeenNode) -> Facts:
    """Return where both of two truth values hold."""
    bands = [None if x.facts.band is None else band_over(x.facts.band, len(operation.dims)) for x in present(operation)]
    known = [band for band in bands if band is not None]
    if any(band.is_never for band in known):
        return Facts(band=NEVER)
    if len(known) < len(bands):
        return Facts()
    return Facts(band=Band.where((form for band in known for form in band.conditions), operation.dims))


def either(operation: SeenNode) -> Facts:
    """Return where one of two truth values holds."""
    one, other = (
        None if x.facts.band is None else band_over(x.facts.band, len(operation.dims)) for x in present(operation)
    )
    if any(band is not None and band.is_always for band in (one, other)):
        return Facts(band=ALWAYS)
    if one is not None and one.is_never:
        return Facts(band=other)
    return Facts(band=one if one == other or (other is not None and other.is_never) else None)


def opposite_of(operation: SeenNode) -> Facts:
    """Return where a truth value does not hold."""
    (x,) = present(operation)
    return Facts(band=None if x.facts.band is None else x.facts.band.inverse())


def is_nan(operation: SeenNode) -> Facts:
    """Return where a value is NaN."""
    (x,) = present(operation)
    return Facts(band=NEVER if x.facts.never_nan else None, is_nan_of=x.identity)


def is_infinite(operation: SeenNode) -> Facts:
    """Return where a value is infinite."""
    (x,) = present(operation)
    return Facts(band=NEVER if x.facts.never_infinite and x.facts.never_minus_infinite else None)
