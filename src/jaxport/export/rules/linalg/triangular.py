"""Cholesky's factorization, and systems with triangular matrices."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from jaxport.export.emit.registry import rule
from jaxport.export.rules.linalg.matrices import real, steps, take, transposed, where_ok


def cholesky(a):
    """Return the factor L of `a = L Lᴴ`, column by column; all NaN if `a` is not positive definite."""
    places = jnp.arange(a.shape[-1])

    def column(factor, k, below):
        row = jnp.conj(take(factor, k, -2))
        rest = below - (factor @ row[..., None])[..., 0]
        pivot = real(take(rest, k, -1))
        column = jnp.where(places < k, 0, rest / jnp.sqrt(pivot)[..., None].astype(a.dtype))
        return jnp.where(places == k, column[..., None], factor), pivot > 0

    factor, positive = steps(column, jnp.zeros_like(a), places, a)
    return where_ok(jnp.all(positive, axis=-1), factor)


def cholesky_update(r, z):
    """Return the upper factor of `rᴴ r + z zᴴ`: one rotation of `z` with each row of `r`."""
    places = jnp.arange(z.shape[-1])

    def rotated(z, k, row):
        x, y = take(row, k, -1), take(z, k, -1)
        largest = jnp.maximum(jnp.abs(x), jnp.abs(y))
        x, y = (jnp.where(y == 0, trivial, part / largest) for part, trivial in ((x, 1), (y, 0)))
        size = lax.rsqrt(x * x + y * y)
        cosine, sine = (x * size)[..., None], (y * size)[..., None]
        return cosine * z - sine * row, cosine * row + sine * z

    return transposed(steps(rotated, z, places, transposed(r))[1])


def triangular_solve(a, b, *, left_side, lower, transpose_a, conjugate_a, unit_diagonal):
    """Solve `op(a) x = b`, or `x op(a) = b`, row by row."""
    if not left_side:
        options = {"lower": lower, "conjugate_a": conjugate_a, "unit_diagonal": unit_diagonal}
        return transposed(triangular_solve(a, transposed(b), left_side=True, transpose_a=not transpose_a, **options))
    a = jnp.conj(a) if conjugate_a else a
    a, lower = (transposed(a), not lower) if transpose_a else (a, lower)
    places = jnp.arange(a.shape[-1])

    def row(solution, slices):
        k, coefficients, right = slices
        known = (places < k) if lower else (places > k)
        done = (jnp.where(known, coefficients, 0)[..., None, :] @ solution)[..., 0, :]
        solved = right - done
        if not unit_diagonal:
            solved = solved / take(coefficients, k, -1)[..., None]
        return jnp.where((places == k)[:, None], solved[..., None, :], solution), None

    rows = places, jnp.moveaxis(a, -2, 0), jnp.moveaxis(b, -2, 0)
    return lax.scan(row, jnp.zeros_like(b), rows, reverse=not lower)[0]


def symmetric_product(a, c, *, alpha, beta):
    """Return `alpha a aᵀ + beta c`."""
    return alpha * (a @ transposed(a)) + beta * c


rule("cholesky", via=cholesky)
rule("cholesky_update", via=cholesky_update)
rule("triangular_solve", via=triangular_solve)
rule("symmetric_product", via=symmetric_product)
