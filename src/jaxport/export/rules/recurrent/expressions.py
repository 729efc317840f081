"""Polynomials over the values of a recurrent cell, which are equal if they compute the same.

A polynomial is the value of a vector. Its atoms are elements of the states, the inputs and the invariants of the scan,
products of these with a matrix, and activations of polynomials. Sums and products are expanded, so that `z*h + (1-z)*n`
and `n + z*(h-n)` are the same object, and so are the spellings of a sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

#: No cell has this many terms; a polynomial that does is not expanded further.
MOST_TERMS = 64

Indices = range | tuple[int, ...]
"""Positions in a vector: a range if they are evenly spaced, so that equal ones are equal objects."""


class Unfit(Exception):
    """The evaluated code is not part of a recurrent layer that ONNX has an operator for; the message says why."""


def indices(positions: np.ndarray) -> Indices:
    """Return positions in their canonical form.

    >>> indices(np.array([2, 3, 4])), indices(np.array([1, 0, 2]))
    (range(2, 5), (1, 0, 2))
    """
    numbers = positions.tolist()
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    if step and numbers:
        spaced = range(numbers[0], numbers[0] + step * len(numbers), step)
        if len(numbers) < 3 or bool((np.diff(positions) == step).all()):
            return spaced
    return tuple(numbers)


def picked(old: Indices, positions: np.ndarray) -> Indices:
    """Return `old[positions]`."""
    return indices(np.asarray(old, np.int64)[positions])


@dataclass(frozen=True)
class ElementLeaf:
    """Elements of a state, of a scanned input or of an invariant (`kind`), flattened; `number` identifies it."""

    kind: str
    number: int
    elements: Indices

    def take(self, positions: np.ndarray) -> ElementLeaf:
        """Return some elements of the vector."""
        return replace(self, elements=picked(self.elements, positions))


@dataclass(frozen=True)
class Dot:
    """`vector @ matrix[rows, columns]`.

    Attributes:
      vector: the monomial that is multiplied.
      weight: the number of the invariant that is reshaped into the matrix.
      axes: its axes, those of the rows first; both groups are flattened.
      contracted: the number of axes of the rows.
      rows, columns: the selected rows and columns.
    """

    vector: Monomial
    weight: int
    axes: tuple[int, ...]
    contracted: int
    rows: Indices
    columns: Indices

    def take(self, positions: np.ndarray) -> Dot:
        """Return some elements of the vector."""
        return replace(self, columns=picked(self.columns, positions))


@dataclass(frozen=True)
class Applied:
    """An elementwise function of a polynomial."""

    function: str
    argument: Polynomial

    def take(self, positions: np.ndarray) -> Applied:
        """Return some elements of the vector."""
        return replace(self, argument=self.argument.take(positions))


Atom = ElementLeaf | Dot | Applied
Monomial = frozenset[tuple[Atom, int]]
"""Atoms with their powers."""

ONE: Monomial = frozenset()


class Polynomial:
    """An immutable sum of monomials with their coefficients; equal to any other with the same terms.

    >>> h, z = (Polynomial.of(ElementLeaf("state", k, range(4))) for k in (0, 1))
    >>> h + z * (1 - h) == z + (1 - z) * h
    True
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, float]):
        if len(terms) > MOST_TERMS:
            raise Unfit(f"a value in a step is a sum of {len(terms)} terms")
        self.terms = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
        self._hash = hash(frozenset(self.terms.items()))

    @classmethod
    def of(cls, atom: Atom) -> Polynomial:
        """Return the polynomial of a single atom."""
        return cls({frozenset([(atom, 1)]): 1.0})

    @classmethod
    def number(cls, value: float) -> Polynomial:
        """Return the polynomial of a number."""
        return cls({ONE: float(value)})

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: Polynomial | float) -> Polynomial:
        terms = dict(self.terms)
        for monomial, coefficient in _polynomial(other).terms.items():
            terms[monomial] = terms.get(monomial, 0.0) + coefficient
        return _respelled(Polynomial(terms))

    def __mul__(self, other: Polynomial | float) -> Polynomial:
        terms: dict[Monomial, float] = {}
        for one, a in self.terms.items():
            for another, b in _polynomial(other).terms.items():
                product = times(one, another)
                terms[product] = terms.get(product, 0.0) + a * b
        return _respelled(Polynomial(terms))

    def __sub__(self, other: Polynomial | float) -> Polynomial:
        return self + _polynomial(other) * -1.0

    def __rsub__(self, other: float) -> Polynomial:
        return self * -1.0 + other

    __radd__, __rmul__ = __add__, __mul__

    def take(self, positions: np.ndarray) -> Polynomial:
        """Return some elements of the vector; all elements of a number are the same."""
        return Polynomial({taken(monomial, positions): value for monomial, value in self.terms.items()})

    @property
    def constant(self) -> float | None:
        """Its value if it is a number."""
        return self.terms.get(ONE, 0.0) if not self.terms.keys() - {ONE} else None

    @property
    def atom(self) -> Atom | None:
        """The atom that it is, if it is one."""
        if len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms.items()
        return only_atom(monomial) if coefficient == 1 else None

    def atoms(self) -> Iterator[Atom]:
        """Yield its atoms, and those nested in them."""
        for monomial in self.terms:
            yield from atoms_of(monomial)


def _polynomial(value: Polynomial | float) -> Polynomial:
    return value if isinstance(value, Polynomial) else Polynomial.number(value)


def only_atom(monomial: Monomial) -> Atom | None:
    """Return the atom of a monomial of degree one."""
    if len(monomial) != 1:
        return None
    ((atom, power),) = monomial
    return atom if power == 1 else None


def atoms_of(monomial: Monomial) -> Iterator[Atom]:
    """Yield the atoms of a monomial, and those nested in them."""
    for atom, _ in monomial:
        yield atom
        if isinstance(atom, Dot):
            yield from atoms_of(atom.vector)
        elif isinstance(atom, Applied):
            yield from atom.argument.atoms()


def times(one: Monomial, another: Monomial) -> Monomial:
    """Return the product of two monomials."""
    powers = dict(one)
    for atom, power in another:
        powers[atom] = powers.get(atom, 0) + power
    return frozenset(powers.items())


def taken(monomial: Monomial, positions: np.ndarray) -> Monomial:
    """Return some elements of the vector that a monomial denotes."""
    return frozenset((atom.take(positions), power) for atom, power in monomial)


def applied(function: str, argument: Polynomial) -> Polynomial:
    """Return an elementwise function of a polynomial."""
    return Polynomial.of(Applied(function, argument))


def divided(numerator: Polynomial, denominator: Polynomial) -> Polynomial:
    """Return a quotient: by a number, or a logistic function or a softsign spelled as one.

    >>> x = Polynomial.of(ElementLeaf("input", 0, range(2)))
    >>> divided(Polynomial.number(1), 1 + applied("Exp", x * -1.0)) == applied("Sigmoid", x)
    True
    """
    if denominator.constant:
        return numerator * (1 / denominator.constant)
    added = (denominator - 1.0).atom
    if isinstance(added, Applied) and added.function == "Exp":
        if numerator == Polynomial.of(added):
            return applied("Sigmoid", added.argument)
        return numerator * applied("Sigmoid", added.argument * -1.0)
    if isinstance(added, Applied) and added.function == "Abs" and added.argument == numerator:
        return applied("Softsign", numerator)
    raise Unfit("a step divides by what is not a number")


def at_least(one: Polynomial, other: Polynomial) -> Polynomial:
    """Return the maximum of a polynomial and zero."""
    for value, bound in ((one, other), (other, one)):
        if bound.constant == 0:
            return applied("Relu", value)
    raise Unfit("a step takes a maximum")


def at_most(one: Polynomial, other: Polynomial) -> Polynomial:
    """Return the minimum of a number and a non-negative polynomial; `Clip` is between zero and one."""
    for value, bound in ((one, other), (other, one)):
        relu, limit = value.atom, bound.constant
        if limit and limit > 0 and isinstance(relu, Applied) and relu.function == "Relu":
            return applied("Clip", relu.argument * (1 / limit)) * limit
    raise Unfit("a step takes a minimum")


def _respelled(polynomial: Polynomial) -> Polynomial:
    """Rewrite a logistic function of a hyperbolic tangent, or the reverse, by its name."""
    if len(polynomial.terms) != 2 or ONE not in polynomial.terms:
        return polynomial
    ((monomial, coefficient),) = ((m, c) for m, c in polynomial.terms.items() if m)
    atom, constant = only_atom(monomial), polynomial.terms[ONE]
    if isinstance(atom, Applied) and (atom.function, constant, coefficient) == ("Tanh", 0.5, 0.5):
        return applied("Sigmoid", atom.argument * 2.0)
    if isinstance(atom, Applied) and (atom.function, constant, coefficient) == ("Sigmoid", -1.0, 2.0):
        return applied("Tanh", atom.argument * 0.5)
    return polynomial
