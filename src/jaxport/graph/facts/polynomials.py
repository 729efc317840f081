"""Sums of products of sizes, and whether they are known not to be negative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from jaxport.errors import InvalidArgument
from jaxport.graph.editing import Dim
from jaxport.jaxprs.dim_text import Expression, parse

__all__ = ["SizePolynomial", "polynomial", "quotient"]

Product = tuple["Atom", ...]

MOST_TERMS = 64
"""A polynomial with more terms is not asked for its sign."""


@dataclass(frozen=True, order=True)
class Atom:
    """A size that is no sum or product of others, by its text.

    Attributes:
      least: a lower bound: sizes that have a name are positive. None if none is known.
      divided: what is divided by which positive number, if it is such a quotient, rounded down.
    """

    text: str
    least: int | None = 1
    divided: tuple[SizePolynomial, int] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SizePolynomial:
    """A sum of products of sizes with integer coefficients.

    >>> n = polynomial("n")
    >>> (n * n - n + 2) - polynomial("n^2 - n")
    SizePolynomial(2)
    >>> (n - 1).is_at_least(0), (n - 2).is_at_least(0)
    (True, False)
    """

    terms: frozenset[tuple[Product, int]]

    @classmethod
    def of(cls, terms: Mapping[Product, int]) -> SizePolynomial:
        """Return the sum of terms, without those that are zero."""
        return cls(frozenset((atoms, factor) for atoms, factor in terms.items() if factor))

    @property
    def number(self) -> int | None:
        """The integer that it is, or None if it depends on sizes."""
        if not self.terms:
            return 0
        ((atoms, factor), *others) = self.terms
        return None if others or atoms else factor

    def __repr__(self) -> str:
        if self.number is not None:
            return f"SizePolynomial({self.number})"
        return f"SizePolynomial({' + '.join('*'.join([str(c), *(a.text for a in atoms)]) for atoms, c in sorted(self.terms))})"

    def __add__(self, other: SizePolynomial | int) -> SizePolynomial:
        terms = dict(self.terms)
        for atoms, factor in _lifted(other).terms:
            terms[atoms] = terms.get(atoms, 0) + factor
        return SizePolynomial.of(terms)

    def __mul__(self, other: SizePolynomial | int) -> SizePolynomial:
        terms: dict[Product, int] = {}
        for (one, factor), (two, other_factor) in product(self.terms, _lifted(other).terms):
            atoms = tuple(sorted((*one, *two), key=lambda atom: atom.text))
            terms[atoms] = terms.get(atoms, 0) + factor * other_factor
        return SizePolynomial.of(terms)

    def __neg__(self) -> SizePolynomial:
        return self * -1

    def __sub__(self, other: SizePolynomial | int) -> SizePolynomial:
        return self + -_lifted(other)

    __radd__, __rmul__ = __add__, __mul__

    def divided(self, divisor: SizePolynomial) -> tuple[SizePolynomial, SizePolynomial]:
        """Return a quotient and the rest: what is a multiple of the divisor, and what is not.

        >>> n = polynomial("n + k")
        >>> (n * polynomial("b") + 3).divided(n)
        (SizePolynomial(1*b), SizePolynomial(3))
        """
        quotient, rest = polynomial(0), self
        for atoms, factor in divisor.terms:
            multiples = {
                left: number // factor
                for own, number in rest.terms
                if (left := _without(own, atoms)) is not None and number % factor == 0
            }
            part = SizePolynomial.of(multiples)
            less = rest - part * divisor
            if len(less.terms) < len(rest.terms):
                quotient, rest = quotient + part, less
        return quotient, rest

    @lru_cache(maxsize=4096)  # noqa: B019  polynomials are small, and equal ones are asked for in each layer
    def is_at_least(self, bound: SizePolynomial | int) -> bool:
        """Whether it is known not to be less than another one, whatever the sizes are.

        >>> polynomial("n").is_at_least(polynomial("2*floordiv(n, 2)"))
        True
        """
        difference = (self - bound)._without_quotients()
        if difference.number is not None:
            return difference.number >= 0
        if len(difference.terms) > MOST_TERMS:
            return False
        moved = polynomial(0)  # each size is its lower bound and something that is not negative
        for atoms, factor in difference.terms:
            term = polynomial(factor)
            for atom in atoms:
                if atom.least is None:
                    return False
                term = term * (SizePolynomial.of({(atom,): 1}) + atom.least)
            moved = moved + term
        return all(factor > 0 for _, factor in moved.terms)

    def _without_quotients(self) -> SizePolynomial:
        """Return it with `n - mod(n, k)` for `k*floordiv(n, k)`."""
        made = polynomial(0)
        for atoms, factor in self.terms:
            last = next((atom for atom in atoms if atom.divided is not None and factor % atom.divided[1] == 0), None)
            if last is None or last.divided is None:
                made = made + SizePolynomial.of({atoms: factor})
                continue
            whole, divisor = last.divided
            rest = SizePolynomial.of({(_atom("mod", [whole, _lifted(divisor)]),): 1})
            others = SizePolynomial.of({_without(atoms, [last]) or (): factor // divisor})
            made = made + others * (whole - rest)
        return made


def _lifted(value: SizePolynomial | int) -> SizePolynomial:
    return value if isinstance(value, SizePolynomial) else SizePolynomial.of({(): int(value)})


def _without(atoms: Product, others: Iterable[Atom]) -> Product | None:
    """Return a product without some factors, or None if it does not have them."""
    left = [*atoms]
    for atom in others:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def polynomial(dim: Dim) -> SizePolynomial:
    """Return a dim as a polynomial; what is none, such as `mod(n, 4)` or an unknown dim, is a size of its own.

    >>> polynomial("2*(n + 1)") == polynomial("n + n") + 2
    True
    """
    if isinstance(dim, int):
        return _lifted(dim)
    if not isinstance(dim, str):
        return SizePolynomial.of({(Atom(f"?{id(dim)}", 0),): 1})
    return _parsed(dim)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> SizePolynomial:
    try:
        return _of(parse(text))
    except InvalidArgument:
        return SizePolynomial.of({(Atom(text, 0),): 1})


def _of(expression: Expression) -> SizePolynomial:
    if expression.form == "number":
        return _lifted(expression.value)
    if expression.form == "name":
        return SizePolynomial.of({(Atom(expression.name),): 1})
    parts = [_of(part) for part in expression.parts]
    if expression.form == "neg":
        return -parts[0]
    if expression.form == "^":
        power = _lifted(1)
        for _ in range(expression.parts[1].value):
            power = power * parts[0]
        return power
    if expression.form in ("+", "-", "*"):
        one, other = parts
        return one + other if expression.form == "+" else one - other if expression.form == "-" else one * other
    return SizePolynomial.of({(_atom(expression.form, parts),): 1})


def quotient(whole: SizePolynomial, divisor: int) -> SizePolynomial:
    """Return a quotient by a positive number, rounded down.

    >>> quotient(polynomial("n + 1"), 2) == polynomial("floordiv(n + 1, 2)")
    True
    """
    return SizePolynomial.of({(_atom("floordiv", [whole, _lifted(divisor)]),): 1})


def _atom(form: str, parts: list[SizePolynomial]) -> Atom:
    divisor = parts[1].number if form == "floordiv" else None
    divided = (parts[0], divisor) if divisor is not None and divisor > 0 else None
    return Atom(repr((form, parts)), _least(form, parts), divided)


def _least(form: str, parts: list[SizePolynomial]) -> int | None:
    """Return a lower bound of a function of sizes, or None."""
    if form in ("floordiv", "mod"):
        return 0 if parts[1].is_at_least(1) and (form == "mod" or parts[0].is_at_least(0)) else None
    judge = any if form == "max" else all
    return next((bound for bound in (1, 0) if judge(part.is_at_least(bound) for part in parts)), None)
