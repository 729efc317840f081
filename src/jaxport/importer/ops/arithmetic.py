"""Arithmetic that XLA gets wrong, or cannot do: quotients of two tensors, powers of integers, and gradients of roots.

XLA computes with constants while it compiles, and less carefully than compiled code does: it divides integers by a zero
that it knows, which ends the process, and it multiplies by the reciprocal of a divisor that it knows, which is infinite
for small numbers in float16.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxport.importer.values.host import HostValue, Tensor, dims_compare
from jaxport.importer.values.namespaces import cast, helper, jnp, lax
from jaxport.jaxprs import InconclusiveDimensionOperation


@helper
def quotient(x, y):
    """Divide integers, rounding towards zero; by zero it is all ones, -1, also where XLA computes with constants."""
    x, y = jnp.broadcast_arrays(x, y)
    return jnp.where(y == 0, ~y, lax.div(x, jnp.where(y == 0, 1, y)))


@helper
def integer_power(x, y):
    """Return `x` to the power of `y`, both integers; with a negative one, 1 / x ** -y rounded towards zero (0 for 0).

    JAX only looks at the six lowest bits of `y`: 0 and even numbers have lost all of their own bits before.
    """
    vanishes = jnp.where(y < 0, (x > 1) | (x < -1), (y > 63) & (x % 2 == 0))
    return jnp.where(vanishes, 0, jnp.power(x, y))


@helper
def safe_root(x, p=2):
    """Return the `p`-th root of `x`; its gradient at zero is zero, as that of a norm in PyTorch, instead of
    infinite.
    """
    rooted = jax.custom_jvp(lambda x: jnp.sqrt(x) if p == 2 else jnp.power(x, 1 / p))
    rooted.defjvps(lambda tangent, y, x: tangent * jnp.where(x == 0, 0, y / (p * jnp.where(x == 0, 1, x))))
    return rooted(x)


def divide(x: Tensor, y: Any) -> Tensor:
    """Return x / y as ONNX's `Div`: integers round towards zero, and an integer divided by zero is all ones.

    Float16 is divided in float32 and rounded, unless the divisor is a known number whose reciprocal is a normal one.

    >>> from jaxport.importer.values.host import host
    >>> divide(host([7, -7, 7]), host([2, 2, 0]))
    host([3, -3, -1], int64)
    >>> divide(jnp.ones(1, np.float16), host([7e-6], np.float16)) == np.float16(np.inf)
    Array([ True], dtype=bool)
    """
    dtypes = {np.dtype(x.dtype), np.dtype(getattr(y, "dtype", x.dtype))}
    if all(dtype.kind in "iu" for dtype in dtypes):
        return lax.div(*jnp.broadcast_arrays(x, y)) if _never_zero(y) else quotient(x, y)
    half = all(dtype == np.float16 or dtype.kind in "iu" for dtype in dtypes)
    if not half or _has_normal_reciprocal(y):
        return x / y
    return cast(cast(x, np.float32) / (y if isinstance(y, int | float) else cast(y, np.float32)), np.float16)


def _never_zero(y: Tensor) -> bool:
    if not isinstance(y, HostValue):
        return False
    try:
        return all(dims_compare(">", n, 0) or dims_compare("<", n, 0) for n in y.data.ravel().tolist())
    except InconclusiveDimensionOperation:
        return False


def _has_normal_reciprocal(y: Any) -> bool:
    if isinstance(y, int | float):
        numbers = np.array(y, np.float64)
    elif isinstance(y, HostValue) and not y.symbolic:
        numbers = y.data.astype(np.float64)
    else:
        return False
    normal = np.finfo(np.float16).smallest_normal
    return bool(np.all((np.abs(numbers) >= normal) & (np.abs(numbers) <= 1 / normal)))
