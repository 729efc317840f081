"""Symbolic dimensions: evaluate an expression on any kind of number, and solve it for its symbols.

A *dim* is a Python integer or one of JAX's symbolic dimension expressions (`jax.export.symbolic_shape`). JAX prints an
expression in a small documented grammar; that text is its public form, and `jaxport.jaxprs.dim_text` reads it.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from jax.core import max_dim, min_dim
from jax.export import is_symbolic_dim, symbolic_shape

from jaxport.jaxprs.aliases import Dim, SymbolicDim
from jaxport.jaxprs.dim_text import FUNCTIONS, Expression, parse, symbols
from jaxport.jaxprs.releases.names import InconclusiveDimensionOperation

__all__ = [
    "FUNCTIONS",
    "Dim",
    "all_static",
    "constraints_of",
    "evaluate",
    "is_broken",
    "is_static",
    "known",
    "label",
    "parse",
    "rounded_down",
    "same",
    "shapes_differ",
    "solve_linear",
    "static",
    "surely_differ",
    "symbols",
]

Number = TypeVar("Number")
"""Integers, dims, or objects with the operators of integers."""

_COMPARISONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq}
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "^": operator.pow,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": lambda a, b: max(a, b) if isinstance(a, int) and isinstance(b, int) else _method(a, b, "maximum", max_dim),
    "min": lambda a, b: min(a, b) if isinstance(a, int) and isinstance(b, int) else _method(a, b, "minimum", min_dim),
}


def _method(a: Any, b: Any, name: str, of_dims: Callable[[Dim, Dim], Dim]) -> object:
    if is_symbolic_dim(a) or is_symbolic_dim(b):
        return of_dims(a, b)
    return getattr(a, name)(b) if hasattr(a, name) else getattr(b, name)(a)


def is_static(dim: Dim | float) -> bool:
    """Whether `dim` is a plain integer."""
    return dim.__class__ is int or isinstance(dim, int) or (hasattr(dim, "__index__") and not hasattr(dim, "scope"))


def all_static(dims: Sequence[Dim]) -> bool:
    """Whether every one of `dims` is a plain integer."""
    return all(is_static(dim) for dim in dims)


def static(dims: Iterable[Dim]) -> tuple[int, ...]:
    """Return sizes that are known to be plain integers as such; for a symbolic one JAX raises an error.

    >>> static([2, 3])
    (2, 3)
    """
    return tuple(map(int, dims))


def label(dim: Dim) -> str | int:
    """Return the dim as an ONNX shape has it: an integer, or the text of the expression.

    >>> label(3)
    3
    """
    return int(dim) if is_static(dim) else str(dim)


def evaluate(dim: Dim | str, values: Mapping[str, Number]) -> Number:
    """Return the value of `dim` given `values` of its symbols: integers, dims, or objects with integer operators.

    The objects may have methods `maximum(other)` and `minimum(other)` for `max` and `min`.

    Raises:
      InvalidArgument: `dim` is a text that is not a dimension.

    >>> from jax import export
    >>> (B,) = export.symbolic_shape("B")
    >>> evaluate((B + 1) // 2, {"B": 4}), evaluate("2*(N + 1)", {"N": B})
    (2, 2*B + 2)
    """
    if not isinstance(dim, str) and is_static(dim):
        return cast("Number", int(dim))  # every kind of number takes integers
    return _value(parse(str(dim)), values)


def _value(node: Expression, values: Mapping[str, Any]) -> Any:
    match node.form:
        case "number":
            return node.value
        case "name":
            return values[node.name]
        case "neg":
            return -_value(node.parts[0], values)
    return functools.reduce(_FUNCTIONS[node.form], (_value(part, values) for part in node.parts))


def rounded_down(dim: SymbolicDim, divisor: int) -> Dim | None:
    """Return `n` if a symbolic dim is `n - n % divisor`, which a graph divides for `n // divisor`; else None.

    >>> from jax import export
    >>> (n,) = export.symbolic_shape("n")
    >>> rounded_down(n - 2 - (n - 2) % 4, 4), rounded_down(n, 4)
    (n - 2, None)
    """
    nodes, whole = [parse(str(dim))], {}
    while nodes:
        node = nodes.pop()
        nodes += node.parts
        if node.form == "mod" and node.parts[1].value == divisor:
            whole = whole or {name: symbolic_shape(name, scope=dim.scope)[0] for name in symbols(str(dim))}
            divided = _value(node.parts[0], whole)
            if same(dim, divided - divided % divisor):
                return divided
    return None


class _Linear:
    """`scale * symbol + offset`, the only form that is solved for its symbol."""

    def __init__(self, scale: int, offset: int):
        self.scale, self.offset = scale, offset

    def __add__(self, other: int | _Linear) -> _Linear:
        if isinstance(other, _Linear):
            return _Linear(self.scale + other.scale, self.offset + other.offset)
        return _Linear(self.scale, self.offset + other)

    def __mul__(self, other: int) -> _Linear:
        if isinstance(other, _Linear):
            raise TypeError("not linear")
        return _Linear(self.scale * other, self.offset * other)

    def __sub__(self, other: int | _Linear) -> _Linear:
        return self + other * -1

    def __rsub__(self, other: int) -> _Linear:
        return self * -1 + other

    def __neg__(self) -> _Linear:
        return self * -1

    __radd__, __rmul__ = __add__, __mul__


def solve_linear(dim: Dim) -> tuple[str, int, int] | None:
    """Return `(symbol, scale, offset)` if `dim == scale * symbol + offset`, or None if it has another form.

    >>> from jax import export
    >>> (B,) = export.symbolic_shape("B")
    >>> solve_linear(2 * B + 1)
    ('B', 2, 1)
    """
    names = symbols(str(dim))
    if len(names) != 1:
        return None
    (name,) = names
    try:
        form = evaluate(dim, {name: _Linear(1, 0)})
    except TypeError:
        return None
    return (name, form.scale, form.offset) if form.scale else None


def constraints_of(dim: SymbolicDim) -> list[str]:
    """Return the constraints of the scope of a symbolic dimension, as they were given.

    >>> from jax import export
    >>> constraints_of(export.symbolic_shape("T", constraints=["T >= 2"])[0])
    ['T >= 2']
    """
    # JAX keeps them in private attributes, and prints them: one per line, after the place of the scope.
    _, _, listed = str(dim.scope).partition("with constraints:")
    return [line.strip() for line in listed.splitlines() if line.strip()]


def is_broken(constraint: str, sizes: Mapping[str, int]) -> bool:
    """Whether sizes violate a constraint; they do not if one of its names has no size.

    >>> is_broken("2*T <= N + 1", {"T": 3, "N": 4}), is_broken("2*T <= N + 1", {"T": 3})
    (True, False)
    """
    left, comparison, right = re.split("(>=|<=|==)", constraint)
    if not symbols(left) | symbols(right) <= sizes.keys():
        return False
    return not _COMPARISONS[comparison](evaluate(left.strip(), sizes), evaluate(right.strip(), sizes))


def same(a: Dim, b: Dim) -> bool:
    """Whether two dims are known to be equal."""
    return a is b or bool(a == b)


def surely_differ(a: Dim, b: Dim) -> bool:
    """Whether two dims differ for every value of their symbols; False if that is unknown."""
    if a is b:  # the most frequent case, and JAX's subtraction is slow
        return False
    if is_static(a) and is_static(b):
        return int(a) != int(b)
    difference = a - b
    return is_static(difference) and int(difference) != 0


def shapes_differ(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes surely differ."""
    return len(a) != len(b) or any(map(surely_differ, a, b))


def known(condition: Callable[[], bool]) -> bool:
    """Whether a comparison of dims is decided and true; an undecidable one is False.

    >>> known(lambda: 3 >= 1)
    True
    """
    try:
        return bool(condition())
    except InconclusiveDimensionOperation:
        return False
