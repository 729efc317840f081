"""Factorizations by Householder's reflections, with the signs and the storage of LAPACK."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import core

from jaxport.export.emit.registry import rule
from jaxport.export.rules.linalg.matrices import adjoint, length, real, square, steps, take, transposed


def reflector(column, k):
    """Return the reflection `1 - tau v vᴴ` whose adjoint clears a column below row `k`.

    Returns:
      v, tau, and the column as LAPACK stores it: the entries above, the new entry, and v below.
    """
    rows = jnp.arange(column.shape[-1])
    corner = take(column, k, -1)
    size = length(jnp.where(rows >= k, column, 0))
    trivial = length(jnp.where(rows > k, column, 0)) == 0
    if jnp.iscomplexobj(column):
        trivial = trivial & (corner.imag == 0)
    new = jnp.where(real(corner) >= 0, -size, size).astype(column.dtype)
    tau = jnp.where(trivial, 0, (new - corner) / jnp.where(trivial, 1, new))
    below = column / jnp.where(trivial, 1, corner - new)[..., None]
    stored = jnp.where(rows > k, below, jnp.where(rows == k, jnp.where(trivial, corner, new)[..., None], column))
    return jnp.where(rows > k, below, (rows == k).astype(column.dtype)), tau, stored


def reflected(vector, tau, c):
    """Return `(1 - tau v vᴴ) c`."""
    return c - vector[..., None] * (tau[..., None, None] * (jnp.conj(vector)[..., None, :] @ c))


def with_column(a, k, column, others):
    """Return `others` in the columns right of `k`, `column` at `k`, `a` before."""
    columns = jnp.arange(a.shape[-1])
    return jnp.where(columns > k, others, jnp.where(columns == k, column[..., None], a))


def triangularized(a, k):
    """Clear one more column below the diagonal; return the matrix and the factor of the reflection."""
    vector, tau, column = reflector(take(a, k, -1), k)
    return with_column(a, k, column, reflected(vector, jnp.conj(tau), a)), tau


def geqrf(a):
    """Return R in the upper triangle with the reflectors below it, and their factors."""
    return steps(triangularized, a, jnp.arange(core.min_dim(*a.shape[-2:])))


def pivoted(a, order, fixed):
    """Do as `geqrf`, choosing the column with the largest remainder after `fixed` ones; return the order too."""
    rows, columns = (jnp.arange(size, dtype=np.int32) for size in a.shape[-2:])

    def step(state, k):
        a, order = state
        left = jnp.sum(jnp.where((rows >= k)[:, None], square(a), 0), axis=-2)
        left = jnp.where((columns == k) & (k < fixed), np.inf, jnp.where(columns >= k, left, -1))
        pivot = jnp.argmax(left, axis=-1)[..., None]
        swap = jnp.where(columns == k, pivot, jnp.where(columns == pivot, k, columns))
        a, tau = triangularized(jnp.take_along_axis(a, swap[..., None, :], axis=-1), k)
        return (a, jnp.take_along_axis(order, swap, axis=-1)), tau

    count = core.min_dim(*a.shape[-2:])
    (a, order), taus = steps(step, (a, order), jnp.arange(count, dtype=np.int32))
    return a, order, taus


def geqp3(a, pivots):
    """Factorize a matrix with the columns of non-zero pivots first; return the order of columns too, from one."""
    order = jnp.argsort(pivots == 0, axis=-1)
    a = jnp.take_along_axis(a, order[..., None, :], axis=-1)
    a, order, taus = pivoted(a, order.astype(np.int32), jnp.sum(pivots != 0, axis=-1, keepdims=True))
    return a, order + 1, taus


def ormqr(a, taus, c, *, left, transpose):
    """Multiply a matrix by Q or its adjoint, from the reflectors."""
    if not left:
        return adjoint(ormqr(a, taus, adjoint(c), left=True, transpose=not transpose))
    count = taus.shape[-1]
    rows, columns = jnp.arange(a.shape[-2])[:, None], jnp.arange(count)
    vectors = jnp.where(rows > columns, a[..., :count], (rows == columns).astype(a.dtype))
    if transpose:
        taus = jnp.conj(taus)
    else:
        vectors, taus = jnp.flip(vectors, -1), jnp.flip(taus, -1)
    return steps(lambda c, vector, tau: (reflected(vector, tau, c), None), c, vectors, taus)[0]


def householder_product(a, taus):
    """Return the first columns of Q, from the reflectors."""
    start = jnp.broadcast_to(jnp.eye(*a.shape[-2:], dtype=a.dtype), a.shape)
    return ormqr(a, taus, start, left=True, transpose=False)


def qr(a, *, pivoting, full_matrices):
    """Return Q and R, and the order of columns if `pivoting`."""
    count = core.min_dim(*a.shape[-2:])
    columns = jnp.broadcast_to(jnp.arange(a.shape[-1], dtype=np.int32), (*a.shape[:-2], a.shape[-1]))
    packed, *order, taus = pivoted(a, columns, fixed=0) if pivoting else geqrf(a)
    width = a.shape[-2] if full_matrices else count
    start = jnp.eye(a.shape[-2], width, dtype=a.dtype)
    q = ormqr(packed, taus, jnp.broadcast_to(start, (*a.shape[:-2], *start.shape)), left=True, transpose=False)
    r = jnp.triu(packed[..., :width, :])
    return q, r, *order


def hessenberg(a):
    """Return a similar matrix in Hessenberg form with the reflectors below the subdiagonal, and their factors."""

    def step(a, k):
        vector, tau, column = reflector(take(a, k, -1), k + 1)
        a = with_column(a, k, column, reflected(vector, jnp.conj(tau), a))
        right = transposed(reflected(jnp.conj(vector), tau, transposed(a)))
        return jnp.where(jnp.arange(a.shape[-1]) > k, right, a), tau

    return steps(step, a, jnp.arange(a.shape[-1] - 1))


def to_hessenberg(a):
    """Return a similar matrix in Hessenberg form, and the unitary matrix of the similarity."""
    packed, taus = hessenberg(a)
    n = a.shape[-1]
    inner = ormqr(packed[1:, :-1], taus, jnp.eye(n - 1, dtype=a.dtype), left=True, transpose=False)
    z = jnp.eye(n, dtype=a.dtype)
    return jnp.triu(packed, -1), jnp.concatenate([z[:1], jnp.concatenate([z[1:, :1], inner], axis=1)])


rule("geqrf", via=geqrf)
rule("geqp3", via=geqp3, irrelevant=("use_magma",))
rule("ormqr", via=ormqr)
rule("householder_product", via=householder_product)
rule("qr", via=qr, irrelevant=("use_magma",))
rule("hessenberg", via=hessenberg)
