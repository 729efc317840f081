"""Whether linear constraints have a solution in integers: Pugh's Omega test.

A constraint is a `LinearSum` that is zero, or one that is not negative. Equations are solved by Euclid's algorithm on their factors.
Of inequalities one variable after another is eliminated: exactly where a factor is 1, else by the solutions that surely remain
(the dark shadow), and by those between (splinters), so that the answer is that of trying all integers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product

__all__ = ["LinearSum", "TooMany", "has_solution"]

MOST_STEPS = 4000
"""Eliminations after which nothing is decided."""
MOST_CONSTRAINTS = 400

Key = Hashable
"""What stands for an integer."""


class TooMany(Exception):
    """A question takes too many steps to be answered."""


@dataclass(frozen=True)
class LinearSum:
    """A sum of integers with whole factors.

    Attributes:
      terms: the factor of each, none of which is zero.
      number: the number that is added.
    """

    terms: Mapping[Key, int]
    number: int = 0

    def __hash__(self) -> int:
        return hash((frozenset(self.terms.items()), self.number))

    def __add__(self, other: LinearSum | int) -> LinearSum:
        if isinstance(other, int):
            return LinearSum(self.terms, self.number + other)
        terms = dict(self.terms)
        for key, factor in other.terms.items():
            terms[key] = terms.get(key, 0) + factor
        return LinearSum({key: factor for key, factor in terms.items() if factor}, self.number + other.number)

    def __mul__(self, factor: int) -> LinearSum:
        return LinearSum({key: own * factor for key, own in self.terms.items() if factor}, self.number * factor)

    def __sub__(self, other: LinearSum | int) -> LinearSum:
        return self + other * -1

    def __neg__(self) -> LinearSum:
        return self * -1

    def replaced(self, key: Key, other: LinearSum) -> LinearSum:
        """Return the sum with another one in place of an integer."""
        factor = self.terms.get(key, 0)
        return (
            LinearSum({own: n for own, n in self.terms.items() if own != key}, self.number) + other * factor
            if factor
            else self
        )


def has_solution(zero: Iterable[LinearSum], not_negative: Iterable[LinearSum]) -> bool:
    """Whether there are integers for which sums are zero, and others are not negative.

    Raises:
      TooMany: that takes too many steps.

    >>> n, m = LinearSum({"n": 1}), LinearSum({"m": 1})
    >>> has_solution([n * 2 - m * 4 - 1], []), has_solution([n * 3 - m * 2], [n - 1, -n + 2])
    (False, True)
    """
    return _OmegaTest().has_solution([*zero], [*not_negative])


class _OmegaTest:
    def __init__(self) -> None:
        self.steps = 0

    def has_solution(self, zero: list[LinearSum], rest: list[LinearSum]) -> bool:
        self.steps += 1
        if self.steps > MOST_STEPS or len(rest) > MOST_CONSTRAINTS:
            raise TooMany
        while zero:
            equation = zero.pop()
            if not equation.terms:
                if equation.number:
                    return False
                continue
            divisor = math.gcd(*equation.terms.values())
            if equation.number % divisor:
                return False
            key, factor = min(equation.terms.items(), key=lambda item: (abs(item[1]), str(item[0])))
            # With `key` as another integer minus whole parts of the rest, factors of the rest become remainders.
            parts = {own: -(n // factor) for own, n in equation.terms.items() if own != key and n // factor}
            shift = LinearSum(parts, -(equation.number // factor))
            solved = shift if abs(factor) == divisor else shift + LinearSum({key: 1})
            zero = [one.replaced(key, solved) for one in (*zero, equation)]
            rest = [one.replaced(key, solved) for one in rest]
        tight = _tightened(rest)
        if tight is None:
            return False
        rest, equal = tight
        if equal:
            return self.has_solution(equal, rest)
        return self._eliminated(rest)

    def _eliminated(self, rest: list[LinearSum]) -> bool:
        """Whether inequalities of which none contradicts another have a solution."""
        signs: dict[Key, tuple[list[LinearSum], list[LinearSum]]] = {}
        for one in rest:
            for key, factor in one.terms.items():
                signs.setdefault(key, ([], []))[factor < 0].append(one)
        free = next((key for key, (low, high) in signs.items() if not low or not high), None)
        if free is not None:
            return self.has_solution([], [one for one in rest if free not in one.terms])
        if not signs:
            return True

        def cost(key: Key) -> tuple[bool, int]:
            low, high = signs[key]
            exact = all(one.terms[key] == 1 for one in low) or all(one.terms[key] == -1 for one in high)
            return not exact, len(low) * len(high)

        key = min(signs, key=cost)
        (low, high), others = signs[key], [one for one in rest if key not in one.terms]
        pairs = [(one, other, one.terms[key], -other.terms[key]) for one, other in product(low, high)]
        shadow = [*others, *(other * a + one * b for one, other, a, b in pairs)]
        if not cost(key)[0]:
            return self.has_solution([], shadow)
        if not self.has_solution([], shadow):
            return False
        if self.has_solution([], [*others, *(other * a + one * b - (a - 1) * (b - 1) for one, other, a, b in pairs)]):
            return True
        most = max(-other.terms[key] for other in high)
        return any(
            self.has_solution([one - n], rest)
            for one in low
            for n in range((most * one.terms[key] - most - one.terms[key]) // most + 1)
        )


def _tightened(rest: Iterable[LinearSum]) -> tuple[list[LinearSum], list[LinearSum]] | None:
    """Return inequalities in integers, each once, and the equations that two of them make; None if they contradict."""
    least: dict[frozenset[tuple[Key, int]], int] = {}
    for one in rest:
        if not one.terms:
            if one.number < 0:
                return None
            continue
        divisor = math.gcd(*one.terms.values())
        terms = frozenset((key, factor // divisor) for key, factor in one.terms.items())
        number = one.number // divisor
        least[terms] = min(least.get(terms, number), number)
    kept, equal = [], []
    for terms, number in least.items():
        opposite = least.get(frozenset((key, -factor) for key, factor in terms))
        if opposite is None or number + opposite > 0:
            kept.append(LinearSum(dict(terms), number))
        elif number + opposite < 0:
            return None
        else:
            equal.append(LinearSum(dict(terms), number))
    return kept, equal
