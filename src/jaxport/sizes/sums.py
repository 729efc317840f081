"""Expressions of sizes as sums of integers, with what is known of each of these."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from jaxport.jaxprs.dim_text import Expression
from jaxport.sizes.integers import LinearSum, TooMany

__all__ = ["MOST_CASES", "Facts", "SizeSums"]

MOST_CASES = 512
"""Combinations of what minima and maxima are in a question that is answered."""


@dataclass(frozen=True)
class _Quotient:
    """An integer that is a sum divided by a number or another sum, rounded down."""

    divided: LinearSum
    divisor: LinearSum


_Product = tuple[object, ...]
"""The integers whose product is one."""
Facts = frozenset[tuple[LinearSum, bool]]
"""Sums that are not negative, and those that are zero (True)."""
_NONE: Facts = frozenset()


class SizeSums:
    """The sums of integers that expressions of sizes are."""

    def constraints(self, facts: Facts) -> tuple[list[LinearSum], list[LinearSum]]:
        """Return the sums that are zero, and those that are not negative, with what is known of all integers in them."""
        zero, rest = [fact for fact, is_zero in facts if is_zero], [fact for fact, is_zero in facts if not is_zero]
        seen: set[object] = set()
        pending = [key for fact, _ in facts for key in fact.terms]
        while pending:
            key = pending.pop()
            if key in seen:
                continue
            seen.add(key)
            known = self._known(key)
            rest += known
            pending += [inner for fact in known for inner in fact.terms]
        return zero, rest

    def _known(self, key: object) -> list[LinearSum]:
        """Return sums that are not negative because of what an integer is."""
        own = LinearSum({key: 1})
        if isinstance(key, str):
            return [own - 1]
        if isinstance(key, _Quotient):
            if self.ends(key.divisor)[0] < 1:
                return []
            back = self.times(own, key.divisor)
            return [key.divided - back, back + key.divisor - 1 - key.divided]
        assert isinstance(key, tuple)
        first, rest = LinearSum({key[0]: 1}), LinearSum({key[1] if len(key) == 2 else key[1:]: 1})
        (low, high), (least, most) = self.ends(first), self.ends(rest)
        made = []
        for one, is_low in ((low, True), (high, False)):
            for other, is_least in ((least, True), (most, False)):
                if math.isfinite(one) and math.isfinite(other):  # (first - one) * (rest - other) has a known sign
                    whole = own - first * int(other) - rest * int(one) + int(one) * int(other)
                    made.append(whole if is_low is is_least else -whole)
        return made

    def ends(self, size: LinearSum) -> tuple[float, float]:
        """Return bounds of a sum."""
        low = high = float(size.number)
        for key, factor in size.terms.items():
            ends = sorted(factor * end for end in self._ends(key))
            low, high = low + ends[0], high + ends[1]
        return low, high

    def _ends(self, key: object) -> tuple[float, float]:
        if isinstance(key, str):
            return 1, math.inf
        if isinstance(key, _Quotient):
            (low, high), (least, _) = self.ends(key.divided), self.ends(key.divisor)
            if least < 1:
                return -math.inf, math.inf
            if not key.divisor.terms:
                return tuple(end if math.isinf(end) else end // key.divisor.number for end in (low, high))  # type: ignore[return-value]
            return min(low, 0) if low < 0 else 0, max(high, 0) if high < 0 else high // least if math.isfinite(
                high
            ) else high
        assert isinstance(key, tuple)
        ends = self._ends(key[0])
        for part in key[1:]:
            corners = [0.0 if 0 in (a, b) else a * b for a in ends for b in self._ends(part)]
            ends = min(corners), max(corners)
        return ends

    def values(self, node: Expression) -> list[tuple[LinearSum, Facts]]:
        """Return the sums that an expression may be, each with the constraints under which it is that."""
        match node.form:
            case "number":
                return [(LinearSum({}, node.value), _NONE)]
            case "name":
                return [(LinearSum({node.name: 1}), _NONE)]
            case "^":
                return (
                    self._folded("*", [node.parts[0]] * node.parts[1].value)
                    if node.parts[1].value
                    else [(LinearSum({}, 1), _NONE)]
                )
            case "neg":
                return [(-value, facts) for value, facts in self.values(node.parts[0])]
        return self._folded(node.form, node.parts)

    def _folded(self, form: str, parts: Sequence[Expression]) -> list[tuple[LinearSum, Facts]]:
        made = self.values(parts[0])
        for part in parts[1:]:
            others = self.values(part)
            if len(made) * len(others) > MOST_CASES:
                raise TooMany
            pairs = [(one, other, facts | more) for one, facts in made for other, more in others]
            made = list(
                dict.fromkeys(case for one, other, facts in pairs for case in self._cases(form, one, other, facts))
            )
        return made

    def _cases(self, form: str, one: LinearSum, other: LinearSum, facts: Facts) -> Iterator[tuple[LinearSum, Facts]]:
        match form:
            case "+":
                yield one + other, facts
            case "-":
                yield one - other, facts
            case "*":
                yield self.times(one, other), facts
            case "floordiv":
                yield self.divided(one, other), facts
            case "mod":
                yield one - self.times(self.divided(one, other), other), facts
            case _:
                difference = other - one if form == "min" else one - other
                if not difference.terms:
                    yield (one if difference.number >= 0 else other), facts
                    return
                yield one, facts | {(difference, False)}
                yield other, facts | {(-difference - 1, False)}

    def divided(self, one: LinearSum, other: LinearSum) -> LinearSum:
        """Return a quotient, rounded down: what is divided without remainder is so, the rest is an integer of its own."""
        if not other.terms and other.number < 0:
            one, other = -one, -other
        if not other.terms and other.number:
            divisor = other.number
            whole = LinearSum(
                {key: n // divisor for key, n in one.terms.items() if n // divisor}, one.number // divisor
            )
            rest = LinearSum({key: n % divisor for key, n in one.terms.items() if n % divisor}, one.number % divisor)
            if not rest.terms:
                return whole
            shared = math.gcd(divisor, *rest.terms.values())
            rest = LinearSum({key: n // shared for key, n in rest.terms.items()}, rest.number // shared)
            return whole + (
                LinearSum({_Quotient(rest, LinearSum({}, divisor // shared)): 1}) if divisor > shared else rest
            )
        if len(other.terms) == 1 and not other.number:
            ((key, factor),) = other.terms.items()
            whole, rest = LinearSum({}), LinearSum({}, one.number)
            for own, n in one.terms.items():
                left = _without(own, key)
                if left is None or n % factor:
                    rest += LinearSum({own: n})
                else:
                    whole += LinearSum({left: n // factor}) if left != () else LinearSum({}, n // factor)
            if not rest.terms and not rest.number:
                return whole
            return whole + LinearSum({_Quotient(rest, other): 1})
        return LinearSum({_Quotient(one, other): 1})

    def times(self, one: LinearSum, other: LinearSum) -> LinearSum:
        """Return a product, as a sum of products."""
        made = one * other.number + LinearSum(other.terms) * one.number
        for (key, n), (own, m) in product(one.terms.items(), other.terms.items()):
            parts = sorted((*_parts(key), *_parts(own)), key=str)
            made += LinearSum({tuple(parts): n * m})
        return made

    def text(self, size: LinearSum) -> str:
        """Return the text of a sum, positive terms first."""
        terms = sorted(size.terms.items(), key=lambda item: item[1] < 0)
        parts = [(n, self._text(key)) for key, n in terms]
        texts = [f"{'-' if n < 0 else '+'} {key if abs(n) == 1 else f'{abs(n)}*{key}'}" for n, key in parts]
        texts += [f"{'-' if size.number < 0 else '+'} {abs(size.number)}"] if size.number or not parts else []
        return re.sub(r"^- ", "-", " ".join(texts).removeprefix("+ "))

    def _text(self, key: object) -> str:
        if isinstance(key, _Quotient):
            return f"floordiv({self.text(key.divided)}, {self.text(key.divisor)})"
        return key if isinstance(key, str) else "*".join(map(self._text, key))  # type: ignore[arg-type]


def _parts(key: object) -> _Product:
    return key if isinstance(key, tuple) else (key,)


def _without(key: object, divisor: object) -> object | None:
    """Return a product without the factors of another one; None if it has not all of them."""
    parts = [*_parts(key)]
    for part in _parts(divisor):
        if part not in parts:
            return None
        parts.remove(part)
    return parts[0] if len(parts) == 1 else tuple(parts)
