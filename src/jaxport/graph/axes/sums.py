"""Elements of values as sums of products of other elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import dims_of
from jaxport.graph.facts.forms import Form
from jaxport.sizes.sums import size_sum

Index = tuple[Form, ...]
"""For each axis of a value a place along it, as a function of labels."""


@dataclass(frozen=True)
class Element:
    """An element of a value; it `is_open` if it is one of those that a sum is looked at as a function of."""

    value: ir.Value
    index: Index
    is_open: bool = field(default=False, compare=False)

    @property
    def place(self) -> Form:
        """Its place among all elements of the value."""
        flat, stride = self.index[-1], size_sum(1)
        for axis, dim in reversed([*enumerate(dims_of(self.value) or ())][1:]):
            stride = stride * size_sum(dim)
            flat = flat + self.index[axis - 1] * stride
        return flat


@dataclass(frozen=True)
class KnownElement:
    """An element of an array."""

    content: bytes
    index: Index
    array: np.ndarray = field(compare=False)
    is_open: bool = field(default=False, compare=False, init=False)


@dataclass(frozen=True)
class AppliedOperator:
    """What an elementwise operator makes of elements; the node is one that does so."""

    operator: str
    attributes: tuple[tuple[str, str], ...]
    operands: tuple[ElementSum, ...]
    node: ir.Node = field(compare=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # once: operands that are read twice are hashed twice at each step, and so are theirs
        return hash((self.operator, self.attributes, self.operands))

    @cached_property
    def is_open(self) -> bool:
        """Whether it is a function of an open element."""
        return any(operand.is_open for operand in self.operands)


Atom = Element | KnownElement | AppliedOperator


@dataclass(frozen=True)
class ElementSum:
    """A sum of products of elements with numbers.

    >>> x = ElementSum.of(KnownElement(b"x", (), np.zeros(())))
    >>> (x + x.scaled(-1)).number, (x * x + x).number
    (0, None)
    """

    terms: frozenset[tuple[frozenset[tuple[Atom, int]], float]] = frozenset()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    @classmethod
    def of(cls, atom: Atom | float) -> ElementSum:
        """Return a number or an element as a sum."""
        if isinstance(atom, (int, float)):
            return cls._of({frozenset[tuple[Atom, int]](): atom})
        return cls(frozenset({(frozenset({(atom, 1)}), 1)}))

    @classmethod
    def _of(cls, terms: Mapping[frozenset[tuple[Atom, int]], float]) -> ElementSum:
        return cls(frozenset((atoms, factor) for atoms, factor in terms.items() if factor != 0))

    @property
    def number(self) -> float | None:
        """The number that it is, or None."""
        if not self.terms:
            return 0
        ((atoms, factor), *others) = self.terms
        return None if atoms or others else factor

    @cached_property
    def is_open(self) -> bool:
        """Whether it is a function of an open element."""
        return any(atom.is_open for atoms, _ in self.terms for atom, _ in atoms)

    def __add__(self, other: ElementSum) -> ElementSum:
        terms = dict(self.terms)
        for atoms, factor in other.terms:
            terms[atoms] = terms.get(atoms, 0) + factor
        return ElementSum._of(terms)

    def __mul__(self, other: ElementSum) -> ElementSum:
        made: dict[frozenset[tuple[Atom, int]], float] = {}
        for (one, factor), (two, by) in product(self.terms, other.terms):
            atoms = frozenset((Counter(dict(one)) + Counter(dict(two))).items())
            made[atoms] = made.get(atoms, 0) + factor * by
        return ElementSum._of(made)

    def scaled(self, number: float) -> ElementSum:
        """Return it times a number."""
        return self * ElementSum.of(number)

    def linear(self) -> dict[Element, ElementSum] | None:
        """Return the factor of each open element; None if it is no linear function of them."""
        made: dict[Element, ElementSum] = {}
        for atoms, factor in self.terms:
            opened = [(atom, power) for atom, power in atoms if atom.is_open]
            if len(opened) != 1 or opened[0][1] != 1 or not isinstance(opened[0][0], Element):
                return None
            rest = ElementSum(frozenset({(atoms - {*opened}, factor)}))
            made[opened[0][0]] = made.get(opened[0][0], ElementSum()) + rest
        return made

    def leaves(self) -> Iterator[Element | KnownElement]:
        """Yield the elements that it is computed from."""
        for atoms, _ in self.terms:
            for atom, _ in atoms:
                if isinstance(atom, AppliedOperator):
                    for operand in atom.operands:
                        yield from operand.leaves()
                else:
                    yield atom
