"""The algebra of reshapes: which axes of one shape become which axes of another, whatever their sizes are called."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxport.graph.editing import Dim

Groups = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Which axes of an input become which axes of the output, from the first to the last."""


@dataclass(frozen=True)
class Monomial:
    """A product of an integer and powers of symbols: the number of elements along some axes."""

    coefficient: int = 1
    symbols: Counter[str] = field(default_factory=Counter)

    def __mul__(self, other: Monomial) -> Monomial:
        return Monomial(self.coefficient * other.coefficient, self.symbols + other.symbols)

    def lacks(self, other: Monomial) -> bool:
        """Whether the other product has a symbol more often than this one, or the same symbols and is larger."""
        return bool(other.symbols - self.symbols) or (
            self.symbols == other.symbols and self.coefficient < other.coefficient
        )


def monomial(dim: Dim) -> Monomial:
    """Return a dim as a product; an expression that is none is a symbol, and so is an unknown dim.

    >>> monomial("2*B*T")
    Monomial(coefficient=2, symbols=Counter({'B': 1, 'T': 1}))
    >>> monomial("T + 1").symbols
    Counter({'T + 1': 1})
    """
    if isinstance(dim, int):
        return Monomial(dim)
    return _parsed(dim if isinstance(dim, str) else f"unknown {id(dim)}")


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Monomial:
    factors = text.split("*")
    if not all(re.fullmatch(r"\w+", factor) for factor in factors):
        return Monomial(1, Counter([text]))
    return Monomial(
        math.prod(int(factor) for factor in factors if factor.isdigit()),
        Counter(factor for factor in factors if not factor.isdigit()),
    )


def axis_groups(old: Sequence[Dim], new: Sequence[Dim]) -> Groups | None:
    """Return which axes of one shape become which of another with as many elements; None if that is unknown.

    Each group is as short as possible. An axis of size one between two groups is a group of its own.

    >>> axis_groups([2, 6, 5], [2, 3, 2, 5])
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    >>> axis_groups(["B", 1, 4], ["B", 4])
    [([0], [0]), ([1], []), ([2], [1])]
    >>> axis_groups(["B*T", 8], ["B", "T", 2, 4])
    [([0], [0, 1]), ([1], [2, 3])]
    """
    # An unknown dim equals another one for Python, but not here.
    known = all(d.__class__ in (int, str) for d in (*old, *new))
    return _known_groups(tuple(old), tuple(new)) if known else _groups(old, new)


def _groups(old: Sequence[Dim], new: Sequence[Dim]) -> Groups | None:
    groups: list[tuple[Sequence[int], Sequence[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = (old[i] if i < len(old) else None), (new[j] if j < len(new) else None)
        if left == right and left is not None:
            groups.append(([i], [j]))
        elif left == 1:
            groups.append(([i], []))
        elif right == 1:
            groups.append(([], [j]))
        else:
            group = _equal_products(old, new, i, j)
            if group is None:
                return None
            groups.append(group)
        i, j = i + len(groups[-1][0]), j + len(groups[-1][1])
    return groups


_known_groups = functools.lru_cache(maxsize=1024)(_groups)


def _equal_products(old: Sequence[Dim], new: Sequence[Dim], i: int, j: int) -> tuple[list[int], list[int]] | None:
    """Return the shortest runs of axes from `i` and `j` on with equal products."""
    sides, products = ((old, i, []), (new, j, [])), [Monomial(), Monomial()]
    while not all(axes for _, _, axes in sides) or products[0] != products[1]:
        side = 0 if products[0].lacks(products[1]) or not sides[0][2] else 1
        dims, start, axes = sides[side]
        dim = dims[start + len(axes)] if start + len(axes) < len(dims) else None
        if dim is None or dim == 0:
            return None
        axes.append(start + len(axes))
        products[side] *= monomial(dim)
    return sides[0][2], sides[1][2]
