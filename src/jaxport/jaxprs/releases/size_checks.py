"""Check symbolic sizes without raising errors, and compare products of them in linear time.

For each symbolic size JAX raises a TypeError, and keeps it in a variable of the function that raised it. That is a
reference cycle, which holds every frame of the stack with its tracers until the next garbage collection: half of the
objects of a trace.

Whether a size is negative JAX decides by eliminating its terms against all constraints, in time that is exponential in their number.
A Reshape asks that of products, which JAX expands: `(floordiv(h - 3, 4) + 1) * (floordiv(w - 3, 4) + 1)` is four terms, and takes
minutes after some convolutions. Here it is decided for each factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jax._src import core as _core  # noqa: TID251 - the function is private
from jax._src.export import shape_poly as _shape_poly  # noqa: TID251 - the function is private
from jax.export import is_symbolic_dim

from jaxport.jaxprs.aliases import Dim, SymbolicDim

__all__ = ["CHECKS_OF_SIZES", "DECISIONS_ON_SIZES"]


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


Decision = Callable[[Dim, Any], tuple[float, float]]


def _decided_by_factors(decide: Decision) -> Decision:
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
