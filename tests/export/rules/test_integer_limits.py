"""Reductions, scans and products of integers near their limits: they wrap, exactly, as in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, spec

pytestmark = pytest.mark.sampled(2)

DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
WINDOW = ((1, 3), (1, 2), "VALID")


def window(combine, start):
    """A reduction over windows, from a number of the dtype of the data on."""
    return lambda x: lax.reduce_window(x, np.asarray(start(x.dtype), x.dtype), combine, *WINDOW)


def over(combine, start):
    """A reduction over an axis, from a number of the dtype of the data on."""
    return lambda x: lax.reduce(x, np.asarray(start(x.dtype), x.dtype), combine, (1,))


ZERO, ONE, ALL = lambda dtype: 0, lambda dtype: 1, lambda dtype: np.array(-1).astype(dtype)
LOWEST, HIGHEST = (lambda dtype: np.iinfo(dtype).min), (lambda dtype: np.iinfo(dtype).max)
REDUCED = {
    "sum": lambda x: (lax.reduce_sum(x, (1,)), lax.reduce_sum(x, (0,)), lax.reduce_sum(x, (0, 1)), jnp.sum(x, 1)),
    "prod": lambda x: (lax.reduce_prod(x, (1,)), lax.reduce_prod(x, (0,)), lax.reduce_prod(x, (0, 1)), jnp.prod(x, 1)),
    "max and min": lambda x: (x.max(1), x.min(1), x.max(0), x.min((0, 1)), jnp.ptp(x, 1)),
    "bits": lambda x: (lax.reduce_and(x, (1,)), lax.reduce_or(x, (0,)), lax.reduce_xor(x, (1,))),
    "positions": lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argsort(x, 1), lax.top_k(x, 2)),
    "scans": lambda x: (lax.cumsum(x, 1), lax.cumprod(x, 1), lax.cummax(x, 1), lax.cummin(x, 0, reverse=True)),
    "open scans": lambda x: (lax.cumsum(x, 0), lax.cumprod(x, 0), lax.cumprod(x, 0, reverse=True)),
    "folds": lambda x: (over(lax.add, ONE)(x), over(lax.mul, ONE)(x), over(lax.bitwise_xor, ALL)(x)),
    "windows": lambda x: (
        window(lax.add, ZERO)(x), window(lax.mul, ONE)(x), window(lax.max, LOWEST)(x), window(lax.min, HIGHEST)(x)
    ),
    "products": lambda x: (x @ x.T, jnp.einsum("ij,kj->ik", x, x), jnp.vdot(x, x), x * x + x, x**3),
}  # fmt: skip


def near_limits(dtype):
    """Numbers at the limits of a dtype and around zero, so that sums and products leave it."""
    limits = np.iinfo(dtype)
    ends = [limits.max, limits.max - 1, limits.max // 2 + 1, limits.min, limits.min + 1, 1, 2, 3, 0]
    rows = np.random.default_rng(0).choice(np.array(ends, dtype), (3, 6))
    rows[0, :3], rows[1] = [limits.max // 3, 5, 3], [3, 7, 11, limits.max, 1, 5]  # without zeros, so products have bits
    rows[2, 2:4] = np.array(-1).astype(dtype), limits.max
    return rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCED)
def test_what_leaves_the_limits_wraps(name, dtype):
    values = near_limits(dtype)
    opsets = [18, 26] if name in ("bits", "folds") else None  # before, there is nothing bitwise
    with jax.enable_x64(dtype.endswith("64")):
        check(REDUCED[name], spec("B", 6, dtype=dtype), values=(values,), sizes=({"B": 3},), opsets=opsets)
