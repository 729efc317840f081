"""Comparisons of sizes: whether they hold always or never, and under which simplest condition.

Names are sizes, and 1 or more. A quotient and a remainder by a number are decided exactly, as are minima, maxima and sums: each
is an integer with linear constraints. A product of names is an integer of its own, of which the bounds of its factors say
something; what is decided of it is right, but not everything is decided.
"""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from jaxport.jaxprs.dim_text import Expression, parse, symbols
from jaxport.sizes.integers import Sum, TooMany, has_solution

__all__ = ["Comparison", "always", "comparison", "condition", "holds", "never"]

LARGEST_BOUND = 2**40
"""A size up to which a bound is looked for."""
MOST_CASES = 512
"""Combinations of what minima, maxima and products are in a question that is answered."""
LARGEST_FACTOR = 4096
"""What a size has to be a multiple of, if that is looked for."""

_OPPOSITE = {"==": "!=", "!=": "==", ">=": "<", "<": ">=", "<=": ">", ">": "<="}


@dataclass(frozen=True)
class Comparison:
    """Two sizes and how they compare.

    Attributes:
      left, right: expressions, as JAX prints them.
      symbol: `==`, `!=`, `<`, `<=`, `>` or `>=`.
    """

    left: str
    symbol: str
    right: str

    def __str__(self) -> str:
        return f"{self.left} {self.symbol} {self.right}"

    @property
    def names(self) -> frozenset[str]:
        return symbols(self.left) | symbols(self.right)

    @property
    def opposite(self) -> Comparison:
        return Comparison(self.left, _OPPOSITE[self.symbol], self.right)

    def with_size(self, name: str, size: str) -> Comparison:
        """Return the comparison with an expression in place of a name.

        >>> str(comparison("2*floordiv(h, 2) == h").with_size("h", "2*n"))
        '2*floordiv((2*n), 2) == (2*n)'
        """
        left, right = (re.sub(rf"\b{name}\b(?!\()", f"({size})", side) for side in (self.left, self.right))
        return Comparison(left, self.symbol, right)


def comparison(text: str) -> Comparison:
    """Return the comparison in a text.

    >>> comparison("length <= 512").right
    '512'
    """
    left, symbol, right = re.split("([<>!=]=|[<>])", text)
    return Comparison(left.strip(), symbol, right.strip())


def always(asked: Comparison, given: Iterable[Comparison] = ()) -> bool:
    """Whether a comparison is known to hold for all sizes for which others hold.

    >>> always(comparison("floordiv(floordiv(n - 127, 64) - 6, 3) + 2 == floordiv(n - 127, 192)"))
    True
    >>> always(comparison("mod(n, 64) >= 1"), [comparison("mod(n, 64) == 3")]), always(comparison("n <= 39"))
    (True, False)
    """
    return never(asked.opposite, given)


def never(asked: Comparison, given: Iterable[Comparison] = ()) -> bool:
    """Whether a comparison is known to hold for no sizes for which others hold.

    >>> never(comparison("2*n == 2*m + 1"))
    True
    """
    try:
        return not _have_solution((asked, *given))
    except TooMany:
        return False


@functools.lru_cache(maxsize=4096)
def _have_solution(asked: tuple[Comparison, ...]) -> bool:
    sizes = _Sizes()
    return any(has_solution(*sizes.constraints(case)) for case in sizes.cases(asked))


def condition(asked: Comparison, given: Sequence[Comparison] = ()) -> tuple[Comparison, ...] | None:
    """Return the simplest comparisons that together hold exactly where one does; none if it holds always.

    These are bounds of a size, a remainder, one size in terms of others, or an inequality of a sum.

    Returns:
      None if it holds for no sizes, or if there is no such condition.

    >>> [str(one) for one in condition(comparison("floordiv(h - 2, 2) + 1 >= 1"))]
    ['h >= 2']
    >>> [str(one) for one in condition(comparison("8*floordiv(floordiv(h, 4), 2) == h"))]
    ['mod(h, 8) == 0']
    >>> [str(one) for one in condition(comparison("min(8, past + seq) == past + seq"))]
    ['past + seq <= 8']
    >>> [str(one) for one in condition(comparison("8 == first + second"))], condition(comparison("mod(n, 6) >= 3"))
    (['first + second == 8'], None)
    """
    if always(asked, given):
        return ()
    if never(asked, given):
        return None
    found = _bounds(asked, given) or _remainder(asked, given) or _regime(asked, given) or _linear(asked)
    return found or None


def holds(asked: Comparison, given: Sequence[Comparison], name: str, beyond: bool) -> int | None:
    """Return the least number from which on a comparison holds for a size, or the largest one up to which it does.

    >>> table = comparison("min(n, 8192) == n")
    >>> holds(table, [], "n", False), holds(table, [], "n", True), holds(comparison("5000 - n <= 0"), [], "n", True)
    (8192, None, 5000)
    """
    return _end(lambda number: always(asked, (*given, Comparison(name, ">=" if beyond else "<=", str(number)))), beyond)


def _end(is_inside: Callable[[int], bool], beyond: bool) -> int | None:
    """Return the first number from which on all are inside, or the last one up to which all are."""
    turns = lambda number: is_inside(number) is beyond
    if not turns(LARGEST_BOUND) or (not beyond and turns(1)):
        return None
    high = next(2**power for power in range(64) if turns(2**power))
    found = bisect.bisect_left(range(high + 1), True, lo=high // 2 + 1, key=turns)
    return found if beyond else found - 1


def _bounds(asked: Comparison, given: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the bounds of the only name of a comparison between which it holds, and beyond which it does not."""
    if len(asked.names) != 1:
        return ()
    (name,) = asked.names
    opposite = asked.opposite
    below, above = holds(opposite, given, name, False), holds(opposite, given, name, True)
    least, most = (below or 0) + 1, None if above is None else above - 1
    found = [Comparison(name, ">=", str(least))] * (least > 1) + [Comparison(name, "<=", str(most))] * (most is not None)
    if found and always(asked, (*given, *found)):
        return (Comparison(name, "==", str(least)),) if least == most else tuple(found)
    return ()


def _remainder(asked: Comparison, given: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return which remainder a name has where a comparison holds, and nowhere else."""
    numbers = [int(number) for number in re.findall(r",\s*(\d+)\)", f"{asked.left} {asked.right}")]
    period = math.prod(number for number in numbers if number) if numbers else 1
    for name in sorted(asked.names) if 1 < period <= LARGEST_FACTOR else ():
        for factor in (n for n in range(2, period + 1) if period % n == 0):
            for remainder in range(factor):
                found = Comparison(f"mod({name}, {factor})", "==", str(remainder))
                if not never(asked, (*given, found)):
                    if always(asked, (*given, found)) and never(asked, (*given, found.opposite)):
                        return (found,)
                    break
    return ()


def _regime(asked: Comparison, given: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return how the sides of a minimum or a maximum compare where a comparison holds."""
    for first, second in _choices(asked):
        for found in (Comparison(first, "<=", second), Comparison(second, "<=", first)):
            if always(asked, (*given, found)) and never(asked, (*given, found.opposite)):
                return (_arranged(found),)
    return ()


def _choices(asked: Comparison) -> Iterator[tuple[str, str]]:
    nodes = [parse(asked.left), parse(asked.right)]
    for node in nodes:
        nodes += node.parts
        if node.form in ("min", "max") and len(node.parts) == 2:
            yield text_of(node.parts[0]), text_of(node.parts[1])


def _linear(asked: Comparison) -> tuple[Comparison, ...]:
    """Return a comparison of sums of names with what is negative on the other side."""
    arranged = _arranged(asked)
    return (arranged,) if asked.symbol != "!=" and not re.search(r"\b(min|max|mod|floordiv)\(", str(arranged)) else ()


def _arranged(asked: Comparison) -> Comparison:
    """Return a comparison with the terms of one sign on one side each, and the number on the right.

    >>> str(_arranged(comparison("8 >= 2*a - b + 3"))), str(_arranged(comparison("5 >= n")))
    ('b + 5 >= 2*a', 'n <= 5')
    """
    sizes = _Sizes()
    cases = list(sizes.values(parse(f"{asked.left} - ({asked.right})")))
    if len(cases) != 1:
        return asked
    difference, symbol = cases[0][0], asked.symbol
    if 2 * sum(factor < 0 for factor in difference.terms.values()) > len(difference.terms):
        difference, symbol = -difference, {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(symbol, symbol)
    divisor = math.gcd(difference.number, *difference.terms.values())
    left = Sum({key: n // divisor for key, n in difference.terms.items() if n > 0})
    right = Sum({key: -n // divisor for key, n in difference.terms.items() if n < 0}, -difference.number // divisor)
    if not right.terms or right.number >= 0:
        return Comparison(sizes.text(left), symbol, sizes.text(right))
    return Comparison(sizes.text(left + -right.number), symbol, sizes.text(right + -right.number))


def text_of(node: Expression) -> str:
    """Return the text of an expression.

    >>> text_of(parse("2*(n+1) // 4"))
    'floordiv(2*(n + 1), 4)'
    """
    match node.form:
        case "number":
            return str(node.value)
        case "name":
            return node.name
        case "neg":
            return f"-({text_of(node.parts[0])})"
        case "+" | "-":
            left, right = (text_of(part) for part in node.parts)
            is_sum = node.parts[1].form in ("+", "-", "neg")
            return f"{left} {node.form} ({right})" if is_sum else f"{left} {node.form} {right}"
        case "*" | "^":
            return node.form.join(
                f"({text_of(part)})" if part.form in ("+", "-", "neg") else text_of(part) for part in node.parts
            )
    return f"{node.form}({', '.join(map(text_of, node.parts))})"


@dataclass(frozen=True)
class _Quotient:
    """An integer that is a sum divided by a number or another sum, rounded down."""

    divided: Sum
    divisor: Sum


_Product = tuple[object, ...]
"""The integers whose product is one."""
_Facts = frozenset[tuple[Sum, bool]]
"""Sums that are not negative, and those that are zero (True)."""
_NONE: _Facts = frozenset()


class _Sizes:
    """The sums of integers that expressions of sizes are."""

    def cases(self, asked: Iterable[Comparison]) -> Iterator[_Facts]:
        """Yield the constraints for each combination of what minima, maxima and comparisons are."""
        alternatives = [self._compared(one) for one in asked]
        if math.prod(map(len, alternatives)) > MOST_CASES:
            raise TooMany
        for combination in product(*alternatives):
            yield frozenset().union(*combination)

    def _compared(self, asked: Comparison) -> list[_Facts]:
        found: dict[_Facts, None] = {}
        for difference, facts in self.values(parse(f"{asked.left} - ({asked.right})")):
            match asked.symbol:
                case "==":
                    options = [(difference, True)]
                case "!=":
                    options = [(difference - 1, False), (-difference - 1, False)]
                case ">=" | ">":
                    options = [(difference - (asked.symbol == ">"), False)]
                case _:
                    options = [(-difference - (asked.symbol == "<"), False)]
            found |= {facts | {option}: None for option in options}
        return [*found]

    def constraints(self, facts: _Facts) -> tuple[list[Sum], list[Sum]]:
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

    def _known(self, key: object) -> list[Sum]:
        """Return sums that are not negative because of what an integer is."""
        own = Sum({key: 1})
        if isinstance(key, str):
            return [own - 1]
        if isinstance(key, _Quotient):
            if self.ends(key.divisor)[0] < 1:
                return []
            back = self.times(own, key.divisor)
            return [key.divided - back, back + key.divisor - 1 - key.divided]
        assert isinstance(key, tuple)
        first, rest = Sum({key[0]: 1}), Sum({key[1] if len(key) == 2 else key[1:]: 1})
        (low, high), (least, most) = self.ends(first), self.ends(rest)
        made = []
        for one, is_low in ((low, True), (high, False)):
            for other, is_least in ((least, True), (most, False)):
                if math.isfinite(one) and math.isfinite(other):  # (first - one) * (rest - other) has a known sign
                    whole = own - first * int(other) - rest * int(one) + int(one) * int(other)
                    made.append(whole if is_low is is_least else -whole)
        return made

    def ends(self, size: Sum) -> tuple[float, float]:
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
            return min(low, 0) if low < 0 else 0, max(high, 0) if high < 0 else high // least if math.isfinite(high) else high
        assert isinstance(key, tuple)
        ends = self._ends(key[0])
        for part in key[1:]:
            corners = [0.0 if 0 in (a, b) else a * b for a in ends for b in self._ends(part)]
            ends = min(corners), max(corners)
        return ends

    def values(self, node: Expression) -> list[tuple[Sum, _Facts]]:
        """Return the sums that an expression may be, each with the constraints under which it is that."""
        match node.form:
            case "number":
                return [(Sum({}, node.value), _NONE)]
            case "name":
                return [(Sum({node.name: 1}), _NONE)]
            case "^":
                return self._folded("*", [node.parts[0]] * node.parts[1].value) if node.parts[1].value else [(Sum({}, 1), _NONE)]
            case "neg":
                return [(-value, facts) for value, facts in self.values(node.parts[0])]
        return self._folded(node.form, node.parts)

    def _folded(self, form: str, parts: Sequence[Expression]) -> list[tuple[Sum, _Facts]]:
        made = self.values(parts[0])
        for part in parts[1:]:
            others = self.values(part)
            if len(made) * len(others) > MOST_CASES:
                raise TooMany
            pairs = [(one, other, facts | more) for one, facts in made for other, more in others]
            made = list(dict.fromkeys(case for one, other, facts in pairs for case in self._cases(form, one, other, facts)))
        return made

    def _cases(self, form: str, one: Sum, other: Sum, facts: _Facts) -> Iterator[tuple[Sum, _Facts]]:
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

    def divided(self, one: Sum, other: Sum) -> Sum:
        """Return a quotient, rounded down: what is divided without remainder is so, the rest is an integer of its own."""
        if not other.terms and other.number < 0:
            one, other = -one, -other
        if not other.terms and other.number:
            divisor = other.number
            whole = Sum({key: n // divisor for key, n in one.terms.items() if n // divisor}, one.number // divisor)
            rest = Sum({key: n % divisor for key, n in one.terms.items() if n % divisor}, one.number % divisor)
            if not rest.terms:
                return whole
            shared = math.gcd(divisor, *rest.terms.values())
            rest = Sum({key: n // shared for key, n in rest.terms.items()}, rest.number // shared)
            return whole + (Sum({_Quotient(rest, Sum({}, divisor // shared)): 1}) if divisor > shared else rest)
        if len(other.terms) == 1 and not other.number:
            ((key, factor),) = other.terms.items()
            whole, rest = Sum({}), Sum({}, one.number)
            for own, n in one.terms.items():
                left = _without(own, key)
                if left is None or n % factor:
                    rest += Sum({own: n})
                else:
                    whole += Sum({left: n // factor}) if left != () else Sum({}, n // factor)
            if not rest.terms and not rest.number:
                return whole
            return whole + Sum({_Quotient(rest, other): 1})
        return Sum({_Quotient(one, other): 1})

    def times(self, one: Sum, other: Sum) -> Sum:
        """Return a product, as a sum of products."""
        made = one * other.number + Sum(other.terms) * one.number
        for (key, n), (own, m) in product(one.terms.items(), other.terms.items()):
            parts = sorted((*_parts(key), *_parts(own)), key=str)
            made += Sum({tuple(parts): n * m})
        return made

    def text(self, size: Sum) -> str:
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
