"""The algebra of reshapes: which axes of one shape become which axes of another, whatever their sizes are called."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import jax.export
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.graph.editing import Dim
from jaxport.jaxprs.dim_text import Expression, parse

Groups = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Which axes of an input become which axes of the output, from the first to the last."""


Factor = Hashable
"""A symbol, or an expression that is no product; an unknown dim is a factor of its own."""


@dataclass(frozen=True)
class Monomial:
    """A product of an integer and powers of factors: the number of elements along some axes."""

    coefficient: int = 1
    factors: Counter[Factor] = field(default_factory=Counter)

    def __mul__(self, other: Monomial) -> Monomial:
        return Monomial(self.coefficient * other.coefficient, self.factors + other.factors)

    def lacks(self, other: Monomial) -> bool:
        """Whether the other product has a factor more often than this one, or the same factors and is larger."""
        return bool(other.factors - self.factors) or (
            self.factors == other.factors and self.coefficient < other.coefficient
        )

    def __floordiv__(self, other: Monomial) -> Monomial | None:
        """Return the product with which the other one makes this one; None if none does."""
        if other.factors - self.factors or other.coefficient == 0 or self.coefficient % other.coefficient:
            return None
        return Monomial(self.coefficient // other.coefficient, self.factors - other.factors)


def monomial(dim: Dim) -> Monomial:
    """Return a dim as a product; an expression that is none is a factor, and so is an unknown dim.

    >>> monomial("2*B*T")
    Monomial(coefficient=2, factors=Counter({'B': 1, 'T': 1}))
    >>> monomial("(T + 1)*3*T^2") == monomial("3*T*T*(T+1)")
    True
    """
    if isinstance(dim, int):
        return Monomial(dim)
    return _parsed(dim) if isinstance(dim, str) else Monomial(1, Counter([id(dim)]))


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Monomial:
    try:
        return _of_expression(parse(text))
    except InvalidArgument:  # files have names that are none elsewhere
        return Monomial(1, Counter([text]))


def _of_expression(expression: Expression) -> Monomial:
    match expression.form:
        case "number":
            return Monomial(expression.value)
        case "name":
            return Monomial(1, Counter([expression.name]))
        case "*":
            return functools.reduce(Monomial.__mul__, map(_of_expression, expression.parts))
        case "^":
            base, exponent = expression.parts
            return functools.reduce(Monomial.__mul__, [_of_expression(base)] * exponent.value, Monomial())
    return Monomial(1, Counter([expression]))


def product(sizes: Sequence[Dim]) -> Dim:
    """Return the product of dims, as text if one of them is symbolic, or an unknown dim if one of them is unknown.

    >>> product([2, 4]), product(["H", 2, "W"]), product([2, "T + 1"]), product(["T + 1", 1])
    (8, '2*H*W', '2*(T + 1)', 'T + 1')
    """
    if not all(isinstance(size, (int, str)) for size in sizes):
        return ir.SymbolicDim(None)
    number = math.prod(size for size in sizes if isinstance(size, int))
    texts = [size for size in sizes if isinstance(size, str)]
    if (number, len(texts)) == (1, 1):
        return texts[0]
    plain = [all(isinstance(factor, str) for factor in monomial(text).factors) for text in texts]
    factors = [text if is_plain else f"({text})" for text, is_plain in zip(texts, plain, strict=True)]
    return "*".join([str(number)] * (number != 1) + factors) if factors else number


def quotient(whole: Dim, part: Dim) -> Dim | None:
    """Return the size by which another one makes a whole; None if that is not known.

    >>> quotient(12, 4), quotient("16*B", 16), quotient("B", 2)
    (3, 'B', None)
    """
    rest = monomial(whole) // monomial(part)
    if rest is None or not all(isinstance(factor, str) for factor in rest.factors):
        return None
    return product([rest.coefficient, *map(str, rest.factors.elements())])


def expanded_product(sizes: Iterable[Dim]) -> Dim:
    """Return the product of dims as JAX writes it, a sum of products; what JAX does not read is a factor.

    >>> expanded_product(["W", 2, "H"]), expanded_product(["H + 1", 2])
    ('2*H*W', '2*H + 2')
    """
    sizes = list(sizes)
    texts = tuple(size for size in sizes if isinstance(size, str))
    number = math.prod(size for size in sizes if isinstance(size, int))
    return product(sizes) if len(texts) == 0 or len(sizes) == 1 else _expanded_product(number, texts) or product(sizes)


@functools.lru_cache(maxsize=256)
def _expanded_product(number: int, texts: tuple[str, ...]) -> str | None:
    try:
        dims = jax.export.symbolic_shape(", ".join(texts))
    except ValueError:  # files have names that are none elsewhere
        return None
    return str(math.prod(dims, start=number))


def axis_groups(old: Sequence[Dim], new: Sequence[Dim]) -> Groups | None:
    """Return which axes of one shape become which of another with as many elements; None if that is unknown.

    Each group is as short as possible. An axis of size one between two groups is a group of its own.

    >>> axis_groups([2, 6, 5], [2, 3, 2, 5])
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    >>> axis_groups(["B", 1, 4], ["B", 4])
    [([0], [0]), ([1], []), ([2], [1])]
    >>> axis_groups(["B*T", 8], ["B", "T", 2, 4])
    [([0], [0, 1]), ([1], [2, 3])]
    >>> axis_groups(["6*floordiv(N, 6)", "T^2"], [6, "floordiv(N, 6)", "T", "T"])
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


def common_parts(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[int, int]] | None:
    """Return the axes that both shapes are merged from, each by its place in either; None if that is unknown.

    >>> common_parts(["B", 16], ["2*B", 8]), common_parts([4, 6], [6, 4])
    ([(0, 0), (1, 0), (1, 1)], None)
    """
    if not all(isinstance(dim, int | str) and dim != 0 for dim in (*old, *new)):
        return None
    parts: list[tuple[int, int]] = []
    rest = [[monomial(dim) for dim in dims] for dims in (old, new)]
    while all(rest):
        left, right = rest[0].pop(0), rest[1].pop(0)
        parts.append((len(old) - len(rest[0]) - 1, len(new) - len(rest[1]) - 1))
        if left == right:
            continue
        if (more := left // right) is not None:
            rest[0].insert(0, more)
        elif (more := right // left) is not None:
            rest[1].insert(0, more)
        else:
            return None
    return parts if not any(rest) else None
