"""Expressions of sizes as sums: of sizes, of products of them, and of quotients, minima and maxima of sums."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from jaxport.errors import InvalidArgument
from jaxport.jaxprs.dim_text import Expression, parse

Key = Hashable
"""What stands for an integer: the name of a size, a quotient, a minimum, or a tuple of these, which is their product.
"""


@dataclass(frozen=True, repr=False)
class SizeSum:
    """A sum of integers with whole factors.

    Attributes:
      terms: the factor of each, none of which is zero.
      number: the number that is added.

    >>> n = size_sum("n")
    >>> n * n - n + 2 - size_sum("n^2 - n"), size_sum("2*(n + 1)") == n + n + 2
    (SizeSum(2), True)
    """

    terms: Mapping[Key, int]
    number: int = 0

    def __hash__(self) -> int:
        return hash((frozenset(self.terms.items()), self.number))

    def __repr__(self) -> str:
        return f"SizeSum({self})"

    def __str__(self) -> str:
        terms = sorted(self.terms.items(), key=lambda item: item[1] < 0)
        parts = [(n, "*".join(map(str, _parts(key)))) for key, n in terms]
        texts = [f"{'-' if n < 0 else '+'} {key if abs(n) == 1 else f'{abs(n)}*{key}'}" for n, key in parts]
        texts += [f"{'-' if self.number < 0 else '+'} {abs(self.number)}"] if self.number or not parts else []
        return re.sub(r"^- ", "-", " ".join(texts).removeprefix("+ "))

    @property
    def value(self) -> int | None:
        """The number that it is, or None if it depends on sizes."""
        return None if self.terms else self.number

    def __add__(self, other: SizeSum | int) -> SizeSum:
        if isinstance(other, int):
            return SizeSum(self.terms, self.number + other)
        terms = dict(self.terms)
        for key, factor in other.terms.items():
            terms[key] = terms.get(key, 0) + factor
        return SizeSum({key: factor for key, factor in terms.items() if factor}, self.number + other.number)

    def __mul__(self, other: SizeSum | int) -> SizeSum:
        if not isinstance(other, int):
            made = self * other.number + SizeSum(other.terms) * self.number
            for (key, n), (own, m) in product(self.terms.items(), other.terms.items()):
                made += SizeSum({tuple(sorted((*_parts(key), *_parts(own)), key=str)): n * m})
            return made
        return SizeSum({key: own * other for key, own in self.terms.items() if other}, self.number * other)

    def __sub__(self, other: SizeSum | int) -> SizeSum:
        return self + other * -1

    def __neg__(self) -> SizeSum:
        return self * -1

    __radd__, __rmul__ = __add__, __mul__

    def factor(self, key: Key) -> int:
        """Return the factor of a key."""
        return self.terms.get(key, 0)

    def without(self, *keys: Key) -> SizeSum:
        """Return the sum of the other terms."""
        return SizeSum({key: factor for key, factor in self.terms.items() if key not in keys}, self.number)

    def replaced(self, key: Key, other: SizeSum) -> SizeSum:
        """Return the sum with another one in place of a term."""
        factor = self.factor(key)
        return self.without(key) + other * factor if factor else self

    def split(self, divisor: SizeSum) -> tuple[SizeSum, SizeSum]:
        """Return a quotient and the rest: what is a multiple of the divisor, and what is not.

        >>> n = size_sum("n + k")
        >>> (n * size_sum("b") + 3).split(n)
        (SizeSum(b), SizeSum(3))
        """
        whole, rest = SizeSum({}), self
        for parts, factor in divisor._products():
            multiples = (
                _product(left, number // factor)
                for own, number in rest._products()
                if number % factor == 0 and (left := _without(own, parts)) is not None
            )
            part = sum(multiples, SizeSum({}))
            less = rest - part * divisor
            if len([*less._products()]) < len([*rest._products()]):
                whole, rest = whole + part, less
        return whole, rest

    def _products(self) -> Iterator[tuple[tuple[Key, ...], int]]:
        yield from ((_parts(key), factor) for key, factor in self.terms.items())
        if self.number:
            yield (), self.number


@dataclass(frozen=True)
class _Quotient:
    """An integer that is a sum divided by another one, rounded down."""

    divided: SizeSum
    divisor: SizeSum

    def __str__(self) -> str:
        return f"floordiv({self.divided}, {self.divisor})"


@dataclass(frozen=True)
class Extreme:
    """An integer that is the smaller or the larger one of two sums.

    Attributes:
      form: "min" or "max".
      one, other: the sums.
    """

    form: str
    one: SizeSum
    other: SizeSum

    def __str__(self) -> str:
        return f"{self.form}({self.one}, {self.other})"

    @property
    def is_one(self) -> SizeSum:
        """What is not negative where it is the first one."""
        return self.other - self.one if self.form == "min" else self.one - self.other


@dataclass(frozen=True)
class _Unnamed:
    """A size of which nothing is known but that it is not negative."""

    text: str

    def __str__(self) -> str:
        return self.text


def size_sum(dim: object) -> SizeSum:
    """Return a size, which is an integer or a text; any other one is known not to be negative.

    >>> str(size_sum("2*B + floordiv(T, 2) - 1")), str(size_sum("floordiv(8*B + T, 4)"))
    ('2*B + floordiv(T, 2) - 1', '2*B + floordiv(T, 4)')
    """
    if isinstance(dim, int):
        return SizeSum({}, int(dim))
    return _read(dim) if isinstance(dim, str) else SizeSum({_Unnamed(f"?{id(dim)}"): 1})


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> SizeSum:
    try:
        return expression_sum(parse(text))
    except InvalidArgument:  # a dim of a file that is only a name
        return SizeSum({_Unnamed(text): 1})


def only_name(text: str) -> tuple[str, int, int] | None:
    """Return `(name, factor, offset)` of a size `factor*name + offset`; None of others.

    >>> only_name("2*B + 1"), only_name("floordiv(B, 2)"), only_name("7")
    (('B', 2, 1), None, None)
    """
    made = size_sum(text)
    ((name, factor), *others) = made.terms.items() or [(None, 0)]
    return (name, factor, made.number) if isinstance(name, str) and not others else None


def expression_sum(node: Expression) -> SizeSum:
    """Return the sum that an expression is."""
    match node.form:
        case "number":
            return SizeSum({}, node.value)
        case "name":
            return SizeSum({node.name: 1})
        case "^":
            return math.prod([expression_sum(node.parts[0])] * node.parts[1].value, start=SizeSum({}, 1))
        case "neg":
            return -expression_sum(node.parts[0])
    return functools.reduce(_FUNCTIONS[node.form], map(expression_sum, node.parts))


def quotient(one: SizeSum, other: SizeSum) -> SizeSum:
    """Return a quotient, rounded down: what is divided without remainder is so, the rest is an integer of its own."""
    if not other.terms and other.number < 0:
        one, other = -one, -other
    if not other.terms and other.number:
        divisor = other.number
        whole = SizeSum({key: n // divisor for key, n in one.terms.items() if n // divisor}, one.number // divisor)
        rest = SizeSum({key: n % divisor for key, n in one.terms.items() if n % divisor}, one.number % divisor)
        if not rest.terms:
            return whole
        shared = math.gcd(divisor, *rest.terms.values())
        rest = SizeSum({key: n // shared for key, n in rest.terms.items()}, rest.number // shared)
        return whole + (SizeSum({_Quotient(rest, SizeSum({}, divisor // shared)): 1}) if divisor > shared else rest)
    whole, rest = one.split(other) if len(other.terms) == 1 and not other.number else (SizeSum({}), one)
    return whole if rest.value == 0 else whole + SizeSum({_Quotient(rest, other): 1})


def _remainder(one: SizeSum, other: SizeSum) -> SizeSum:
    return one - quotient(one, other) * other


def _extreme(form: str, one: SizeSum, other: SizeSum) -> SizeSum:
    made = Extreme(form, one, other)
    low, high = ends(made.is_one)
    return one if low >= 0 else other if high < 0 else SizeSum({made: 1})


_FUNCTIONS: Mapping[str, Callable[[SizeSum, SizeSum], SizeSum]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "floordiv": quotient,
    "mod": _remainder,
    "min": functools.partial(_extreme, "min"),
    "max": functools.partial(_extreme, "max"),
}


def extremes(sums: Iterable[SizeSum]) -> Iterator[Extreme]:
    """Yield the minima and maxima in sums, inner ones first."""
    for key in (part for one in sums for term in one.terms for part in _parts(term)):
        if isinstance(key, _Quotient):
            yield from extremes((key.divided, key.divisor))
        elif isinstance(key, Extreme):
            yield from extremes((key.one, key.other))
            yield key


def substituted(sum_: SizeSum, key: Key, other: SizeSum) -> SizeSum:
    """Return a sum with another one in place of an integer, wherever that stands in it."""

    def of(part: Key) -> SizeSum:
        if part == key:
            return other
        if isinstance(part, _Quotient):
            return quotient(substituted(part.divided, key, other), substituted(part.divisor, key, other))
        if isinstance(part, Extreme):
            return _extreme(part.form, substituted(part.one, key, other), substituted(part.other, key, other))
        return SizeSum({part: 1})

    made = SizeSum({}, sum_.number)
    for term, factor in sum_.terms.items():
        made += math.prod(map(of, _parts(term)), start=SizeSum({}, 1)) * factor
    return made


def ends(sum_: SizeSum) -> tuple[float, float]:
    """Return bounds of a sum: names are 1 or more."""
    low = high = float(sum_.number)
    for key, factor in sum_.terms.items():
        least, most = sorted(factor * end for end in _ends(key))
        low, high = low + least, high + most
    return low, high


def _ends(key: Key) -> tuple[float, float]:
    match key:
        case str():
            return 1, math.inf
        case _Unnamed():
            return 0, math.inf
        case Extreme():
            choose = min if key.form == "min" else max
            (low, high), (least, most) = ends(key.one), ends(key.other)
            return choose(low, least), choose(high, most)
        case _Quotient():
            (low, high), (least, _) = ends(key.divided), ends(key.divisor)
            if least < 1:
                return -math.inf, math.inf
            if not key.divisor.terms:
                low, high = (end if math.isinf(end) else end // key.divisor.number for end in (low, high))
                return low, high
            return min(low, 0), max(high, 0) if high < 0 or math.isinf(high) else high // least
        case tuple():
            made = _ends(key[0])
            for part in key[1:]:
                corners = [0.0 if 0 in (a, b) else a * b for a in made for b in _ends(part)]
                made = min(corners), max(corners)
            return made
    return -math.inf, math.inf


def known(key: Key) -> list[SizeSum]:
    """Return sums that are not negative because of what an integer is."""
    own = SizeSum({key: 1})
    match key:
        case str():
            return [own - 1]
        case _Unnamed():
            return [own]
        case _Quotient():
            if ends(key.divisor)[0] < 1:
                return []
            back = own * key.divisor
            return [key.divided - back, back + key.divisor - 1 - key.divided]
        case (first, *others):
            one, other = SizeSum({first: 1}), _product(tuple(others))
            made = []
            for (low, is_low), (least, is_least) in product(_sides(one), _sides(other)):
                whole = (
                    own - one * least - other * low + low * least
                )  # `(one - low) * (other - least)` has a known sign
                made.append(whole if is_low is is_least else -whole)
            return made
    return []


def _sides(sum_: SizeSum) -> list[tuple[int, bool]]:
    """Return the bounds of a sum that are numbers, and whether each is the lower one."""
    return [(int(end), is_low) for end, is_low in zip(ends(sum_), (True, False), strict=True) if math.isfinite(end)]


def _parts(key: Key) -> tuple[Key, ...]:
    return key if isinstance(key, tuple) else (key,)


def _product(parts: tuple[Key, ...], factor: int = 1) -> SizeSum:
    if not parts:
        return SizeSum({}, factor)
    return SizeSum({parts[0] if len(parts) == 1 else parts: factor})


def _without(parts: tuple[Key, ...], others: Iterable[Key]) -> tuple[Key, ...] | None:
    """Return a product without some factors, or None if it does not have them."""
    left = [*parts]
    for part in others:
        if part not in left:
            return None
        left.remove(part)
    return tuple(left)
