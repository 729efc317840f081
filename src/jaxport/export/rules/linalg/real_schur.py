"""Schur's real form by Francis's QR algorithm with double shifts, which keeps pairs of complex eigenvalues together.

A pair is a block of two rows with equal diagonal elements and off-diagonal ones of different signs, as in LAPACK. The
order of the eigenvalues and the signs of Schur's vectors may differ from LAPACK, which promises neither.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.rules.linalg.householder import reflected, reflector, to_hessenberg
from jaxport.export.rules.linalg.matrices import diagonal, length, of_moderate, take, transposed, where_ok

MOST_STEPS = 30


def mirrored(t, z, column, k):
    """Return `P t P` and `z P` for the reflection P that clears a column below row `k`."""
    vector, tau, _ = reflector(column, k)
    t = reflected(vector, tau, t)
    return tuple(transposed(reflected(vector, tau, transposed(x))) for x in (t, z))


def block(t, last):
    """Return the elements of the block of two rows and columns that ends with `last`."""
    rows = [take(t, row, -2) for row in (last - 1, last)]
    return [[take(row, column, -1) for column in (last - 1, last)] for row in rows]


def double_step(t, z, first, last, count):
    """Do two QR steps on the rows and columns from `first` to `last`: chase a bulge down the diagonal."""
    rows = jnp.arange(t.shape[-1])
    (a, b), (c, d) = block(t, last)
    size, other = jnp.abs(a) + jnp.abs(c), count % 10 == 9  # other shifts break cycles
    total, product = jnp.where(other, 1.5 * size, a + d), jnp.where(other, size * size, a * d - b * c)
    column = jnp.where(rows >= first, take(t, first, -1), 0)
    bulge = t @ column - total * column + jnp.where(rows == first, product, 0)

    def chased(k, state):
        t, z = state
        column = jnp.where(k == first, bulge, take(t, k - 1, -1))
        return mirrored(t, z, jnp.where((rows >= k) & (rows <= jnp.minimum(k + 2, last)), column, 0), k)

    t, z = lax.fori_loop(first, last, chased, (t, z))
    return jnp.triu(t, -1), z


def block_split(t, z, last):
    """Rotate the last two rows and columns: to zero below the diagonal, or to equal elements on it."""
    rows = jnp.arange(t.shape[-1])
    (a, b), (c, d) = block(t, last)
    half = (a - d) / 2
    square = half * half + b * c
    real = square >= 0
    angle = jnp.arctan2(-2 * half, b + c) / 2
    x = jnp.where(real, half + jnp.where(half < 0, -1, 1) * jnp.sqrt(jnp.abs(square)), jnp.cos(angle))
    y = jnp.where(real, c, jnp.sin(angle))
    t, z = mirrored(t, z, jnp.where(rows == last - 1, x, jnp.where(rows == last, y, 0)), last - 1)
    return jnp.where(real & (rows[:, None] == last) & (rows == last - 1), 0, t), z


@of_moderate
def real_schur_of_one(a):
    """Return a block triangular T and an orthogonal Z, with `a = Z T Zᵀ`, of one real matrix."""
    n, eps = a.shape[-1], np.finfo(a.dtype).eps
    t, z = to_hessenberg(a)
    rows, least = jnp.arange(n), eps * length(a.ravel())

    def body(state):
        t, z, last, count = state
        sizes, beside = jnp.abs(diagonal(t)), jnp.abs(diagonal(jnp.roll(t, 1, -1)))
        small = beside <= eps * jnp.maximum(sizes + jnp.roll(sizes, 1), least)
        first = jnp.max(jnp.where((rows <= last) & small, rows, 0))
        t = jnp.where((rows[:, None] == first) & (rows == first - 1), 0, t)
        deflations = [
            lambda t, z: (t, z, last - 1, jnp.zeros_like(count)),
            lambda t, z: (*block_split(t, z, last), last - 2, jnp.zeros_like(count)),
            lambda t, z: (*double_step(t, z, first, last, count), last, count + 1),
        ]
        return lax.switch(jnp.minimum(last - first, 2), deflations, t, z)

    start = t, z, jnp.asarray(n - 1, rows.dtype), jnp.asarray(0, rows.dtype)
    t, z, last, _ = lax.while_loop(lambda state: (state[2] > 0) & (state[3] < MOST_STEPS), body, start)
    ok = (last <= 0) & jnp.all(jnp.isfinite(a))
    return where_ok(ok, t), where_ok(ok, z)
