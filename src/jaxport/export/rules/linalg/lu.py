"""The LU factorization with row exchanges, and its permutations."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import core

from jaxport.export.emit.registry import rule
from jaxport.export.rules.linalg.matrices import steps, take


def magnitude(x):
    """Return the magnitude by which LAPACK chooses a pivot: |x|, or |re| + |im|."""
    return jnp.abs(x) if jnp.isrealobj(x) else jnp.abs(x.real) + jnp.abs(x.imag)


def lu(a):
    """Return L and U in one matrix, the row exchanged with each row, and the resulting order of rows."""
    rows, columns = (jnp.arange(size, dtype=np.int32) for size in a.shape[-2:])

    def eliminated(state, k):
        a, order = state
        size = magnitude(take(a, k, -1))
        pivot = jnp.argmax(jnp.where(rows >= k, size, -1), axis=-1).astype(np.int32)
        first, chosen = rows == k, rows == pivot[..., None]
        order = exchanged(order, first, chosen, k, pivot)
        best = jnp.take_along_axis(a, pivot[..., None, None], axis=-2)
        a = jnp.where(first[:, None], best, jnp.where(chosen[..., None], take(a, k, -2)[..., None, :], a))
        column, corner = take(a, k, -1)[..., None], take(best, k, -1)[..., None]
        factors = jnp.where(corner != 0, column / corner, column)
        rest = jnp.where(columns > k, a - factors * best, jnp.where(columns == k, factors, a))
        return (jnp.where((rows > k)[:, None], rest, a), order), pivot

    count = core.min_dim(*a.shape[-2:])
    order = jnp.broadcast_to(rows, a.shape[:-1])
    (a, order), pivots = steps(eliminated, (a, order), jnp.arange(count, dtype=np.int32))
    return a, pivots, order


def exchanged(order, first, chosen, k, pivot):
    """Exchange the entries of a permutation at `k` and `pivot`, which `first` and `chosen` mark."""
    other = jnp.take_along_axis(order, pivot[..., None], axis=-1)
    return jnp.where(first, other, jnp.where(chosen, take(order, k, -1)[..., None], order))


def lu_pivots_to_permutation(pivots, *, permutation_size):
    """Return the order of rows after a sequence of exchanges."""
    rows = jnp.arange(permutation_size, dtype=np.int32)

    def step(order, k, pivot):
        return exchanged(order, rows == k, rows == pivot[..., None], k, pivot), None

    start = jnp.broadcast_to(rows, (*pivots.shape[:-1], permutation_size))
    return steps(step, start, jnp.arange(pivots.shape[-1], dtype=np.int32), pivots)[0]


rule("lu", via=lu)
rule("lu_pivots_to_permutation", via=lu_pivots_to_permutation)
