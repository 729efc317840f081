"""Eigenvalues of symmetric and Hermitian matrices by Jacobi's rotations.

The rows and columns are paired as in a tournament: each round rotates all pairs at once, and a sweep of rounds visits
every pair and restores the order. The sign (phase) of an eigenvector is not that of LAPACK, which promises none.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import rule
from jaxport.export.rules.linalg.matrices import adjoint, diagonal, hermitian, real, square, transposed, where_ok

MOST_SWEEPS = 30


def pairing(size):
    """Return the permutation of the next round: all but the first move on by one, through both halves of the table."""
    half, place = size // 2, jnp.arange(size)
    onward = jnp.where(place < half, place - 1, place + 1)
    moved = jnp.where(place == 0, 0, jnp.where(place == 1, half, jnp.where(place == size - 1, half - 1, onward)))
    return jnp.where(size == 2, place, moved)


def rotation(p, q, x):
    """Return the cosine and sine that diagonalize the matrix `[[p, x], [conj(x), q]]`."""
    size = jnp.abs(x)
    safe = jnp.where(size > 0, size, 1)
    slope = (q - p) / (2 * safe)
    tangent = jnp.where(slope < 0, -1, 1) / (jnp.abs(slope) + jnp.sqrt(1 + slope * slope))
    tangent = jnp.where(size > 0, tangent, 0)
    cosine = lax.rsqrt(1 + tangent * tangent)
    return cosine.astype(x.dtype), (tangent * cosine).astype(x.dtype) * (x / safe)


def rotated(x, cosine, sine, order):
    """Rotate each pair of columns of a matrix, which are the rows of `x`, and permute them."""
    half = cosine.shape[-1]
    first, second, cosine, sine = x[..., :half, :], x[..., half:, :], cosine[..., None], sine[..., None]
    pair = cosine * first - jnp.conj(sine) * second, sine * first + cosine * second
    return jnp.take(jnp.concatenate(pair, axis=-2), order, axis=-2)


def swept(round_, unfinished, state, size):
    """Run sweeps of rounds until nothing is unfinished."""

    def sweep(carry):
        count, state = carry
        return count + 1, lax.fori_loop(0, size - 1, lambda _, state: round_(state), state)

    goes_on = lambda carry: (carry[0] < MOST_SWEEPS) & jnp.any(unfinished(carry[1]))
    return lax.while_loop(goes_on, sweep, (jnp.int32(0), state))[1]


def eigh(a, *, lower, sort_eigenvalues, subset_by_index):
    """Return eigenvectors as columns, and the eigenvalues in ascending order; all of them, or a range."""
    n = a.shape[-1]
    half = (n + 1) // 2
    size = 2 * half
    matrix = hermitian(a, lower=lower)
    finite = jnp.all(jnp.isfinite(matrix), axis=(-2, -1))
    scale = jnp.max(jnp.abs(matrix), axis=(-2, -1), keepdims=True, initial=0)
    scale = jnp.where(scale > 0, scale, 1)
    matrix = matrix / scale.astype(a.dtype)
    padded = jnp.concatenate([matrix, jnp.zeros((*a.shape[:-1], size - n), a.dtype)], axis=-1)
    padded = jnp.concatenate([padded, jnp.zeros((*a.shape[:-2], size - n, size), a.dtype)], axis=-2)
    basis = jnp.broadcast_to(jnp.eye(size, n, dtype=a.dtype), (*a.shape[:-2], size, n))
    order, places = pairing(size), jnp.arange(size)
    is_pair = jnp.take(jnp.take(jnp.abs(places[:, None] - places) == half, order, axis=0), order, axis=1)

    def round_(state):
        # Both matrices are transposed: moving rows is faster than moving columns.
        matrix, basis = state
        values = real(diagonal(matrix))
        angle = rotation(values[..., :half], values[..., half:], diagonal(matrix[..., half:, :half]))
        matrix = rotated(adjoint(rotated(matrix, *angle, order)), *angle, order)
        # The rotated entries vanish up to rounding; if they were kept, the sweeps would not end.
        return jnp.where(is_pair, 0, matrix), rotated(basis, *angle, order)

    def unfinished(state):
        squares = square(state[0])
        off = jnp.sum(jnp.where(places[:, None] == places, 0, squares), axis=(-2, -1))
        return off > np.finfo(a.dtype).eps ** 2 * jnp.sum(squares, axis=(-2, -1))

    matrix, basis = swept(round_, unfinished, (transposed(padded), basis), size)
    values = real(diagonal(matrix[..., :n, :n])) * scale[..., 0]
    order = jnp.argsort(values, axis=-1)
    values = jnp.take_along_axis(values, order, axis=-1)
    vectors = transposed(jnp.take_along_axis(basis[..., :n, :], order[..., None], axis=-2))
    start, end = subset_by_index or (0, n)
    return where_ok(finite, vectors[..., start:end]), where_ok(finite, values[..., start:end])


rule("eigh", via=eigh, irrelevant=("algorithm",))
