"""Symbolic dimensions: evaluate an expression on any kind of number, and check sizes faster than JAX.

A *dim* is a Python integer or one of JAX's symbolic dimension expressions (`jax.export.symbolic_shape`). JAX prints an
expression in a small documented grammar; that text is its public form, and `jaxport.jaxprs.dim_text` reads it.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from jax._src import core as _core  # noqa: TID251 - the function is private
from jax._src.export import shape_poly as _shape_poly  # noqa: TID251 - the function is private
from jax.core import max_dim, min_dim
from jax.export import is_symbolic_dim, symbolic_shape

from jaxport.jaxprs.aliases import Dim, SymbolicDim
from jaxport.jaxprs.dim_text import Expression, parse, symbols
from jaxport.jaxprs.releases import InconclusiveDimensionOperation

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


# For each symbolic size JAX raises a TypeError, and keeps it in a variable of the function that raised it. That is a
# reference cycle, which holds every frame of the stack with its tracers until the next garbage collection: half of the
# objects of a trace.
def _checked(check: Callable[[Dim], Dim]) -> Callable[[Dim], Dim]:
    """Return a check of sizes that returns symbolic ones as they are, as `check` does in the end.

    >>> _checked(int)(3.0)
    3
    """

    def checked(size: Dim) -> Dim:
        return size if is_symbolic_dim(size) else check(size)

    return checked


_NAME = "_canonicalize_dimension"

#: The functions of JAX that check the sizes of shapes: the owner, the name, and what wraps the function during a trace.
CHECKS_OF_SIZES: tuple[tuple[Any, str, Callable], ...] = ((_core, _NAME, _checked),) if hasattr(_core, _NAME) else ()


# Whether a size is negative JAX decides by eliminating its terms against all constraints, in time that is exponential
# in their number. A Reshape asks that of products, which JAX expands: `(floordiv(h - 3, 4) + 1) * (floordiv(w - 3, 4) +
# 1)` is four terms, and takes minutes after some convolutions. Here it is decided for each factor.
_Decision = Callable[[Dim, Any], tuple[float, float]]


def _decided_by_factors(decide: _Decision) -> _Decision:
    """Return `decide`, which bounds a size, with a shorter way for products that are not negative.

    >>> from jax import export
    >>> h, w = export.symbolic_shape("h, w")
    >>> _decided_by_factors(lambda size, precision: (2, math.inf))(
    ...     (h + 1) * (w // 3), _shape_poly.BoundsPrecision.FOR_GEQ0_OR_LT0
    ... )
    (8, inf)
    """

    def bounds(size: Dim, precision: object) -> tuple[float, float]:
        is_best = precision == _shape_poly.BoundsPrecision.BEST
        product = () if is_best or not is_symbolic_dim(size) else _factored(size)
        lows = [decide(factor, precision)[0] for factor in product] if len(product) > 1 else [-1]
        return (math.prod(lows), math.inf) if min(lows) >= 0 else decide(size, precision)

    return bounds


def _factored(size: SymbolicDim) -> list[Dim]:
    """Return positive numbers and sizes of one variable part each whose product is `size`, or an empty list.

    With a part `f`, the size is `a * f + b`. If `b` is `c * a`, for a number `c`, then it is `a * (f + c)`.
    """
    if isinstance(size, int) or not is_symbolic_dim(size):
        return []
    rest = {tuple(term._factors): number for term, number in size._sorted_terms}
    product: list[Dim] = []
    for part in dict.fromkeys(part for parts in rest for part, _ in parts):
        slope = {
            tuple(p for p in parts if p[0] != part): number for parts, number in rest.items() if (part, 1) in parts
        }
        level = {parts: number for parts, number in rest.items() if part not in dict(parts)}
        if len(slope) + len(level) != len(rest) or (level and level.keys() != slope.keys()):
            return []
        ratios = {divmod(level.get(parts, 0), number) for parts, number in slope.items()}
        (ratio, remainder), *others = ratios
        if others or remainder:
            return []
        one = _shape_poly._DimTerm.from_factor(part, 1)
        product.append(_shape_poly._DimExpr._from_term(one, 1, size.scope) + ratio)
        rest = slope
    number = rest.get((), 0)
    return [number, *product] if number > 0 else []


_DECISION = "_bounds_decision"

#: The function of JAX that bounds a size, as those above.
DECISIONS_ON_SIZES: tuple[tuple[Any, str, Callable], ...] = (
    ((_shape_poly, _DECISION, _decided_by_factors),) if hasattr(_shape_poly, _DECISION) else ()
)
