"""Whether linear constraints have a solution in integers: Pugh's Omega test.

A constraint is a `SizeSum` that is zero, or one that is not negative. Equations are solved by Euclid's algorithm on
their factors. Of inequalities one variable after another is eliminated: exactly where a factor is 1, else by the
solutions that surely remain (the dark shadow), and by those between (splinters), so that the answer is that of trying
all integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product

from jaxport.sizes.sums import Key, SizeSum

MOST_STEPS = 4000
"""Eliminations after which nothing is decided."""
MOST_CONSTRAINTS = 400


class TooMany(Exception):
    """A question takes too many steps to be answered."""


def has_solution(zero: Iterable[SizeSum], not_negative: Iterable[SizeSum]) -> bool:
    """Whether there are integers for which sums are zero, and others are not negative.

    Raises:
      TooMany: that takes too many steps.

    >>> n, m = SizeSum({"n": 1}), SizeSum({"m": 1})
    >>> has_solution([n * 2 - m * 4 - 1], []), has_solution([n * 3 - m * 2], [n - 1, -n + 2])
    (False, True)
    """
    return _OmegaTest().has_solution([*zero], [*not_negative])


class _OmegaTest:
    def __init__(self) -> None:
        self.steps = 0

    def has_solution(self, zero: list[SizeSum], rest: list[SizeSum]) -> bool:
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
            shift = SizeSum(parts, -(equation.number // factor))
            solved = shift if abs(factor) == divisor else shift + SizeSum({key: 1})
            zero = [one.replaced(key, solved) for one in (*zero, equation)]
            rest = [one.replaced(key, solved) for one in rest]
        tight = _tightened(rest)
        if tight is None:
            return False
        rest, equal = tight
        if equal:
            return self.has_solution(equal, rest)
        return self._eliminated(rest)

    def _eliminated(self, rest: list[SizeSum]) -> bool:
        """Whether inequalities of which none contradicts another have a solution."""
        signs: dict[Key, tuple[list[SizeSum], list[SizeSum]]] = {}
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


def _tightened(rest: Iterable[SizeSum]) -> tuple[list[SizeSum], list[SizeSum]] | None:
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
            kept.append(SizeSum(dict(terms), number))
        elif number + opposite < 0:
            return None
        else:
            equal.append(SizeSum(dict(terms), number))
    return kept, equal
