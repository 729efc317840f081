"""Tridiagonal matrices: their systems, and the reduction of a symmetric matrix to one."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import rule
from jaxport.export.rules.linalg.householder import reflected, reflector, with_column
from jaxport.export.rules.linalg.lu import magnitude
from jaxport.export.rules.linalg.matrices import diagonal, hermitian, real, steps, take, transposed, where_ok


def tridiagonal_solve(lower, middle, upper, b, *, perturb_singular=False):
    """Solve a tridiagonal system, by elimination with row exchanges.

    If the matrix is singular, the result is NaN, or the solution for a nearby matrix.
    """
    info = np.finfo(middle.dtype)
    sizes = [jnp.max(jnp.abs(x), axis=-1, initial=0) for x in (lower[..., 1:], middle, upper[..., :-1])]
    least = jnp.maximum(functools.reduce(jnp.maximum, sizes) * info.eps, info.tiny).astype(middle.dtype)

    def pivot(x):
        return jnp.where(jnp.abs(x) < info.tiny, least, x) if perturb_singular else x

    by_row = [jnp.moveaxis(x, middle.ndim - 1, 0) for x in (lower, middle, upper, b)]

    def eliminated(row, below):
        # A row: its entries at the diagonal and right of it, and the right-hand side.
        middle, upper, right = row
        under, next_middle, next_upper, next_right = below
        stays = magnitude(middle) >= magnitude(under)
        pick = lambda x, y: jnp.where(stays.reshape(stays.shape + (1,) * (x.ndim - stays.ndim)), x, y)
        first, second = pick(middle, under), pick(under, middle)
        first = pivot(first)
        factor = second / first
        upper, other = pick(upper, next_middle), pick(next_middle, upper)
        beyond = pick(jnp.zeros_like(next_upper), next_upper)
        right, rest = pick(right, next_right), pick(next_right, right)
        left = other - factor * upper, pick(next_upper, -factor * next_upper), rest - factor[..., None] * right
        return left, (first, upper, beyond, right)

    last, rows = lax.scan(eliminated, tuple(x[0] for x in by_row[1:]), tuple(x[1:] for x in by_row))
    corner = pivot(last[0])
    end = last[2] / corner[..., None]

    def substituted(known, row):
        next_, after = known
        first, upper, beyond, right = row
        solved = (right - upper[..., None] * next_ - beyond[..., None] * after) / first[..., None]
        return (solved, next_), solved

    _, solved = lax.scan(substituted, (end, jnp.zeros_like(end)), rows, reverse=True)
    regular = jnp.all(rows[0] != 0, axis=0) & (corner != 0)
    solution = jnp.concatenate([solved, end[None]], axis=0)
    return where_ok(regular, jnp.moveaxis(solution, 0, middle.ndim - 1))


def tridiagonal(a, *, lower):
    """Reduce a symmetric matrix as LAPACK does: return the reflectors, both diagonals, and the reflectors' factors."""
    if not lower:
        # The upper triangle is reduced from the other end: as the lower triangle of the flipped matrix.
        reduced, *rest = tridiagonal(jnp.flip(a, (-2, -1)), lower=True)
        return jnp.flip(reduced, (-2, -1)), *(jnp.flip(x, -1) for x in rest)
    n = a.shape[-1]
    places = jnp.arange(n)

    def step(state, k):
        matrix, stored = state
        vector, tau, column = reflector(take(matrix, k, -1), k + 1)
        matrix = reflected(vector, jnp.conj(tau), matrix)
        matrix = transposed(reflected(jnp.conj(vector), tau, transposed(matrix)))
        return (matrix, with_column(stored, k, jnp.where(places > k, column, take(stored, k, -1)), stored)), tau

    (matrix, stored), taus = steps(step, (hermitian(a, lower=True), a), jnp.arange(n - 1))
    middle = real(diagonal(matrix))
    beside = real(diagonal(matrix[..., 1:, :-1]))
    stored = jnp.where(places[:, None] == places, middle[..., None].astype(a.dtype), stored)
    return stored, middle, beside, taus


rule("tridiagonal", via=tridiagonal)
rule("tridiagonal_solve", via=tridiagonal_solve)
