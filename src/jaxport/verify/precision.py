"""What floats are rounded to in a program: the narrowest type of each result, and products in full precision.

A product in bfloat16 whose result is cast to float32 is no better than bfloat16. A value that is only moved or stored
in a narrow type, or widened, is not rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport import jaxprs
from jaxport.jaxprs.rewrite import EquationRewriting
from jaxport.jaxprs.walk import bodies, equations_within, interpret

#: Primitives whose results are elements of their operands.
MOVES = frozenset(
    """abs broadcast_in_dim bitcast_convert_type clamp concatenate copy copy_p dynamic_slice dynamic_update_slice
    expand_dims gather iota max min neg optimization_barrier pad real imag reduce_max reduce_min reshape rev scatter
    select_n sharding_constraint sign slice sort split squeeze stop_gradient top_k transpose""".split()
)


def narrowest(jaxpr: jaxprs.ClosedJaxpr) -> list[np.dtype | None]:
    """Return for each result of a program the narrowest float type that a value it depends on is rounded to.

    >>> def model(x):
    ...     return (x.astype(jnp.bfloat16) @ jnp.ones((3, 2), jnp.bfloat16)).astype(jnp.float32), x * 2
    >>> narrowest(jax.make_jaxpr(model)(jnp.ones((2, 3))))
    [dtype(bfloat16), dtype('float32')]
    """

    def narrower(equation: jaxprs.JaxprEqn, operands: list[np.dtype | None]) -> list[np.dtype | None]:
        inside = _inside(equation) if bodies(equation.params) else [equation]
        return [_narrower(*operands, *map(_rounded_to, inside))] * len(equation.outvars)

    inputs = [None] * (len(jaxpr.jaxpr.constvars) + len(jaxpr.jaxpr.invars))
    return interpret(jaxpr.jaxpr, inputs, narrower, lambda _: None)


def _inside(equation: jaxprs.JaxprEqn) -> Iterator[jaxprs.JaxprEqn]:
    """Yield the equations in the bodies of an equation, at any depth, that have no bodies themselves."""
    for body in bodies(equation.params):
        yield from (inner for inner in equations_within(body) if not bodies(inner.params))


def _rounded_to(equation: jaxprs.JaxprEqn) -> np.dtype | None:
    """Return the narrowest type that an equation without bodies rounds to."""
    name = equation.primitive.name
    if name in MOVES:
        return None
    floats = [dtype for v in equation.outvars if (dtype := _float(v.aval)) is not None]
    if name == "convert_element_type":
        before = _float(equation.invars[0].aval)
        if before is None or not floats or _bits(before) <= _bits(floats[0]):
            return None
    return _narrower(*floats)


def _float(aval: Any) -> np.dtype | None:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or not jnp.issubdtype(dtype, np.inexact):
        return None
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else np.dtype(dtype)


def _bits(dtype: np.dtype) -> float:
    return -float(np.log2(float(jnp.finfo(dtype).eps)))


def _narrower(*dtypes: np.dtype | None) -> np.dtype | None:
    """Return the type with the largest rounding error."""
    return min((dtype for dtype in dtypes if dtype is not None), key=_bits, default=None)


PRODUCTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})
"""The primitives that sum products, with a precision."""


def in_full_precision(jaxpr: jaxprs.ClosedJaxpr) -> jaxprs.ClosedJaxpr:
    """Return a program whose products are as exact as the types of their operands.

    By default, accelerators compute products of float32 with fewer bits, which no runtime of ONNX does on a CPU. What
    an algorithm that a user names rounds to stays.

    >>> program = in_full_precision(jax.make_jaxpr(jnp.dot)(jnp.ones(2), jnp.ones(2)))
    >>> program.eqns[0].params["precision"]
    (Precision.HIGHEST, Precision.HIGHEST)
    """
    return EquationRewriting(_in_full_precision).closed(jaxpr)


def _in_full_precision(equation: jaxprs.JaxprEqn) -> jaxprs.JaxprEqn:
    """Return a product with the highest precision in place of the default, or of a lower one."""
    if equation.primitive.name not in PRODUCTS:
        return equation
    precision, highest = equation.params["precision"], lax.Precision.HIGHEST
    each = precision if isinstance(precision, tuple) else (precision,)
    if not all(isinstance(one, lax.Precision | None) for one in each):
        return equation
    return equation.replace(params={**equation.params, "precision": (highest, highest)})
