"""Comparisons of sizes: whether they hold always or never, and under which simplest condition.

Names are sizes, and 1 or more. A quotient and a remainder by a number are decided exactly, as are minima, maxima and
sums: each is an integer with linear constraints. A product of names is an integer of its own, of which the bounds of
its factors say something; what is decided of it is right, but not everything is decided.

Presburger libraries decide the same (`islpy` in less time), but have no wheels for Windows, and are 8 MB of machine
code for what are some hundred questions a model.
"""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from jaxport.errors import InvalidArgument
from jaxport.jaxprs.dim_text import parse, symbols
from jaxport.sizes.integers import TooMany, has_solution
from jaxport.sizes.sums import Key, SizeSum, ends, expression_sum, extremes, known, substituted

MOST_CASES = 512
"""Combinations of what minima, maxima and comparisons are in a question that is answered."""

LARGEST_BOUND = 2**40
"""A size up to which a bound is looked for."""
LARGEST_FACTOR = 4096
"""What a size has to be a multiple of, if that is looked for."""
MOST_TRIES = 32
"""Values of a size that are tried where a product has to be a number."""

_OPPOSITE = {"==": "!=", "!=": "==", ">=": "<", "<": ">=", "<=": ">", ">": "<="}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True)
class SizeComparison:
    """Two sizes and how they compare.

    Attributes:
      left, right: expressions, as JAX prints them.
      symbol: `==`, `!=`, `<`, `<=`, `>` or `>=`.

    >>> asked = SizeComparison.of("8*floordiv(floordiv(h, 4), 2) == h")
    >>> asked.always(), asked.never(), [str(one) for one in asked.condition()]
    (False, False, ['mod(h, 8) == 0'])
    """

    left: str
    symbol: str
    right: str

    @classmethod
    def of(cls, text: str) -> SizeComparison:
        """Return the comparison in a text.

        >>> SizeComparison.of("length <= 512").right
        '512'
        """
        left, symbol, right = re.split("([<>!=]=|[<>])", text)
        return cls(left.strip(), symbol, right.strip())

    def __str__(self) -> str:
        return f"{self.left} {self.symbol} {self.right}"

    @property
    def names(self) -> frozenset[str]:
        """The names of sizes."""
        return symbols(self.left) | symbols(self.right)

    @property
    def opposite(self) -> SizeComparison:
        """What holds where this does not."""
        return SizeComparison(self.left, _OPPOSITE[self.symbol], self.right)

    @property
    def factors(self) -> list[int]:
        """The numbers of which a size can have to be a multiple: divisors of what is divided by, one after another.

        >>> SizeComparison.of("floordiv(floordiv(n, 2), 3) == m").factors
        [2, 3, 6]
        """
        numbers = [int(number) for number in re.findall(r",\s*(\d+)\)", f"{self.left} {self.right}")]
        period = math.prod(number for number in numbers if number)
        return [n for n in range(2, period + 1) if period % n == 0] if period <= LARGEST_FACTOR else []

    def with_size(self, name: str, size: str) -> SizeComparison:
        """Return the comparison with an expression in place of a name.

        >>> str(SizeComparison.of("2*floordiv(h, 2) == h").with_size("h", "2*n"))
        '2*floordiv((2*n), 2) == (2*n)'
        """
        left, right = (re.sub(rf"\b{name}\b(?!\()", f"({size})", side) for side in (self.left, self.right))
        return SizeComparison(left, self.symbol, right)

    def always(self, given: Iterable[SizeComparison] = ()) -> bool:
        """Whether it is known to hold for all sizes for which others hold.

        >>> SizeComparison.of("floordiv(floordiv(n - 127, 64) - 6, 3) + 2 == floordiv(n - 127, 192)").always()
        True
        >>> SizeComparison.of("mod(n, 64) >= 1").always([SizeComparison.of("mod(n, 64) == 3")])
        True
        """
        return _is_empty((self.opposite, *given))

    def never(self, given: Iterable[SizeComparison] = ()) -> bool:
        """Whether it is known to hold for no sizes for which others hold.

        >>> SizeComparison.of("2*n == 2*m + 1").never()
        True
        """
        return _is_empty((self, *given))

    def condition(self, given: Sequence[SizeComparison] = ()) -> tuple[SizeComparison, ...] | None:
        """Return the simplest comparisons that together hold exactly where this one does; none if it holds always.

        These are bounds of a size, a remainder, one size in terms of others, or an inequality of a sum.

        Returns:
          None if it holds for no sizes, or if there is no such condition.

        >>> [str(one) for one in SizeComparison.of("floordiv(h - 2, 2) + 1 >= 1").condition()]
        ['h >= 2']
        >>> [str(one) for one in SizeComparison.of("min(8, past + seq) == past + seq").condition()]
        ['past + seq <= 8']
        >>> [str(one) for one in SizeComparison.of("8 == first + second").condition()]
        ['first + second == 8']
        >>> SizeComparison.of("mod(n, 6) >= 3").condition()
        """
        if self.always(given):
            return ()
        if self.never(given):
            return None
        searches = _bounds, _remainder, _regime, _linear
        return next((found for search in searches if (found := search(self, given))), None)

    def end(self, given: Sequence[SizeComparison], name: str, beyond: bool) -> int | None:
        """Return the least number from which on it holds for a size, or the largest one up to which it does.

        >>> table = SizeComparison.of("min(n, 8192) == n")
        >>> table.end([], "n", False), table.end([], "n", True), SizeComparison.of("5000 - n <= 0").end([], "n", True)
        (8192, None, 5000)
        """
        symbol = ">=" if beyond else "<="
        return _end(lambda number: self.always((*given, SizeComparison(name, symbol, str(number)))), beyond)

    @staticmethod
    def solution(asked: Sequence[SizeComparison], names: Sequence[str]) -> dict[str, int] | None:
        """Return the smallest sizes for which comparisons hold, the first name first; None if there are none, or none
        are found.

        >>> SizeComparison.solution(
        ...     [*map(SizeComparison.of, ["a + b == 8", "mod(b, 3) == 0", "b*c == 12"])], ["a", "b", "c"]
        ... )
        {'a': 2, 'b': 6, 'c': 2}
        """
        if not names:
            return {} if all(one.always() for one in asked) else None
        name, least = names[0], 0
        for _ in range(MOST_TRIES):  # of products not everything is known before
            further = (*asked, SizeComparison(name, ">", str(least)))
            size = _end(functools.partial(_can_be_at_most, further, name), True)
            if size is None:
                return None
            rest = SizeComparison.solution([one.with_size(name, str(size)) for one in asked], names[1:])
            if rest is not None:
                return {name: size, **rest}
            least = size
        return None


def _can_be_at_most(asked: tuple[SizeComparison, ...], name: str, most: int) -> bool:
    return not _is_empty((*asked, SizeComparison(name, "<=", str(most))))


Facts = frozenset[tuple[SizeSum, bool]]
"""Sums that are not negative, and those that are zero (True)."""


def is_at_least(one: SizeSum, bound: SizeSum | int = 0, given: Iterable[SizeSum] = ()) -> bool:
    """Whether a sum is known not to be less than another one, whatever the sizes are for which given sums are not
    negative.

    >>> n = SizeSum({"n": 1})
    >>> is_at_least(n, 1), is_at_least(n, 2), is_at_least(n, 2, [n - 5])
    (True, False, True)
    """
    difference = one - bound
    low, _ = ends(difference)
    known_facts = [(each, False) for each in given]
    if low < 0 and (known_facts or not all(isinstance(key, str) for key in difference.terms)):
        return not _has_solution(frozenset({(-difference - 1, False), *known_facts}))
    return low >= 0


@functools.lru_cache(maxsize=16384)
def _has_solution(facts: Facts) -> bool:
    """Whether there may be sizes for which facts hold together."""
    try:
        return any(has_solution(*_constraints(case)) for case, _ in _cases(facts))
    except TooMany:
        return True


def _cases(facts: Facts) -> Iterator[tuple[Facts, Facts]]:
    """Yield facts without minima and maxima, for each combination of what those are, and what that says of their
    sides.
    """
    pending: list[tuple[Facts, Facts]] = [(facts, frozenset())]
    for _ in range(2 * MOST_CASES):
        if not pending:
            return
        facts, sides = pending.pop()
        chosen = next(extremes(one for one, _ in facts), None)
        if chosen is None:
            yield facts | sides, sides
            continue
        for value, side in ((chosen.one, chosen.is_one), (chosen.other, -chosen.is_one - 1)):
            within = lambda given, value=value, chosen=chosen: frozenset(
                (substituted(one, chosen, value), is_zero) for one, is_zero in given
            )
            pending.append((within(facts), within(sides) | {(side, False)}))
    raise TooMany


def _constraints(facts: Facts) -> tuple[list[SizeSum], list[SizeSum]]:
    """Return the sums that are zero, and those that are not negative, with what is known of all integers in them."""
    zero, rest = ([one for one, is_zero in facts if is_zero is wanted] for wanted in (True, False))
    seen: set[Key] = set()
    pending = [key for one, _ in facts for key in one.terms]
    while pending:
        key = pending.pop()
        if key not in seen:
            seen.add(key)
            rest += (told := known(key))
            pending += [inner for one in told for inner in one.terms]
    return zero, rest


@functools.lru_cache(maxsize=4096)
def _is_empty(asked: tuple[SizeComparison, ...]) -> bool:
    """Whether comparisons are known to hold together for no sizes."""
    try:
        alternatives = [_compared(one) for one in asked]
    except InvalidArgument:  # an expression of very many terms
        return False
    if math.prod(map(len, alternatives)) > MOST_CASES:
        return False
    return not any(_has_solution(frozenset(combination)) for combination in product(*alternatives))


def _compared(asked: SizeComparison) -> list[tuple[SizeSum, bool]]:
    """Return the facts of which one holds where a comparison does."""
    difference = _difference(asked)
    match asked.symbol:
        case "==":
            return [(difference, True)]
        case "!=":
            return [(difference - 1, False), (-difference - 1, False)]
        case ">=" | ">":
            return [(difference - (asked.symbol == ">"), False)]
    return [(-difference - (asked.symbol == "<"), False)]


def _difference(asked: SizeComparison) -> SizeSum:
    return expression_sum(parse(f"{asked.left} - ({asked.right})"))


def _end(is_inside: Callable[[int], bool], beyond: bool) -> int | None:
    """Return the first number from which on all are inside, or the last one up to which all are."""
    turns = lambda number: is_inside(number) is beyond
    if not turns(LARGEST_BOUND) or (not beyond and turns(1)):
        return None
    high = next(2**power for power in range(64) if turns(2**power))
    found = bisect.bisect_left(range(high + 1), True, lo=high // 2 + 1, key=turns)
    return found if beyond else found - 1


def _bounds(asked: SizeComparison, given: Sequence[SizeComparison]) -> tuple[SizeComparison, ...]:
    """Return the bounds of the only name of a comparison between which it holds, and beyond which it does not."""
    if len(asked.names) != 1:
        return ()
    (name,) = asked.names
    below, above = (asked.opposite.end(given, name, beyond) for beyond in (False, True))
    least, most = (below or 0) + 1, None if above is None else above - 1
    found = [SizeComparison(name, ">=", str(least))] * (least > 1)
    found += [] if most is None else [SizeComparison(name, "<=", str(most))]
    if found and asked.always((*given, *found)):
        return (SizeComparison(name, "==", str(least)),) if least == most else tuple(found)
    return ()


def _remainder(asked: SizeComparison, given: Sequence[SizeComparison]) -> tuple[SizeComparison, ...]:
    """Return which remainder a name has where a comparison holds, and nowhere else."""
    for name in sorted(asked.names):
        for factor in asked.factors:
            classes = (SizeComparison(f"mod({name}, {factor})", "==", str(rest)) for rest in range(factor))
            found = next((one for one in classes if not asked.never((*given, one))), None)
            if found is not None and _are_equivalent(asked, found, given):
                return (found,)
    return ()


def _regime(asked: SizeComparison, given: Sequence[SizeComparison]) -> tuple[SizeComparison, ...]:
    """Return how the sides of a minimum or a maximum compare where a comparison holds."""
    cases = _cases(frozenset({(_difference(asked), True)}))
    sides = {side + one for _, told in cases for side, _ in told for one in (0, 1)}  # of `<=` and `<`
    regimes = (_arranged(side, ">=") for side in sorted(sides, key=str))
    return next(((one,) for one in regimes if _are_equivalent(asked, one, given)), ())


def _are_equivalent(one: SizeComparison, other: SizeComparison, given: Sequence[SizeComparison]) -> bool:
    return one.always((*given, other)) and one.never((*given, other.opposite))


def _linear(asked: SizeComparison, given: Sequence[SizeComparison]) -> tuple[SizeComparison, ...]:
    """Return a comparison of sums of names with what is negative on the other side."""
    del given
    arranged = _arranged(_difference(asked), asked.symbol)
    return () if asked.symbol == "!=" or re.search(r"\w\(", str(arranged)) else (arranged,)


def _arranged(difference: SizeSum, symbol: str) -> SizeComparison:
    """Return the comparison of a sum with 0, with terms that are subtracted on the right, and the number if it is
    positive.
    """
    if 2 * sum(factor < 0 for factor in difference.terms.values()) > len(difference.terms):
        difference, symbol = -difference, _TURNED.get(symbol, symbol)
    divisor = math.gcd(difference.number, *difference.terms.values())
    left = SizeSum({key: n // divisor for key, n in difference.terms.items() if n > 0})
    right = SizeSum({key: -n // divisor for key, n in difference.terms.items() if n < 0})
    number = -difference.number // divisor
    left, right = (left + -number, right) if number < 0 and right.terms else (left, right + number)
    return SizeComparison(str(left), symbol, str(right))
