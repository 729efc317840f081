"""Eigenvalues of symmetric and Hermitian matrices by Jacobi's rotations.

The rows and columns are paired as in a tournament: each round rotates all pairs at once, and a sweep of rounds has met
every pair and has everything at its place again. The sign (phase) of an eigenvector is not that of LAPACK, which
promises none.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.registry import rule
from jaxport.export.rules.linalg.matrices import adjoint, diagonal, real, square, where_ok

MOST_SWEEPS = 30


def pairing(size):
    """The order that makes the next round: all but the first move on by one, through both halves of the table."""
    half, place = size // 2, jnp.arange(size)
    onward = jnp.where(place < half, place - 1, place + 1)
    moved = jnp.where(place == 0, 0, jnp.where(place == 1, half, jnp.where(place == size - 1, half - 1, onward)))
    return jnp.where(size == 2, place, moved)


def rotation(p, q, x):
    """Cosine and sine that make the matrix `[[p, x], [conj(x), q]]` diagonal."""
    size = jnp.abs(x)
    safe = jnp.where(size > 0, size, 1)
    slope = (q - p) / (2 * safe)
    tangent = jnp.where(slope < 0, -1, 1) / (jnp.abs(slope) + jnp.sqrt(1 + slope * slope))
    tangent = jnp.where(size > 0, tangent, 0)
    cosine = lax.rsqrt(1 + tangent * tangent)
    return cosine.astype(x.dtype), (tangent * cosine).astype(x.dtype) * (x / safe)


def rotated(first, second, cosine, sine):
    """Both halves of the columns after the rotation of each pair, side by side."""
    pair = cosine * first - jnp.conj(sine) * second, sine * first + cosine * second
    return jnp.concatenate(pair, axis=-1)


def swept(round_, unfinished, state, size):
    """Sweeps of rounds until nothing is unfinished."""

    def sweep(carry):
        count, state = carry
        return count + 1, lax.fori_loop(0, size - 1, lambda _, state: round_(state), state)

    goes_on = lambda carry: (carry[0] < MOST_SWEEPS) & jnp.any(unfinished(carry[1]))
    return lax.while_loop(goes_on, sweep, (jnp.int32(0), state))[1]


def eigh(a, *, lower, sort_eigenvalues):
    """Eigenvectors as columns, and the eigenvalues, which rise."""
    n = a.shape[-1]
    half = (n + 1) // 2
    size = 2 * half
    triangle = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    matrix = triangle + adjoint(triangle) + jnp.eye(n, dtype=a.dtype) * real(diagonal(a))[..., None]
    scale = jnp.max(jnp.abs(matrix), axis=(-2, -1), keepdims=True, initial=0)
    scale = jnp.where(scale > 0, scale, 1)
    matrix = matrix / scale.astype(a.dtype)
    basis = jnp.broadcast_to(jnp.eye(n, size, dtype=a.dtype), (*a.shape[:-1], size))
    padded = jnp.concatenate([matrix, jnp.zeros((*a.shape[:-1], size - n), a.dtype)], axis=-1)
    padded = jnp.concatenate([padded, jnp.zeros((*a.shape[:-2], size - n, size), a.dtype), basis], axis=-2)
    columns, places = pairing(size), jnp.arange(size)
    rows = jnp.concatenate([columns, jnp.arange(size, size + n)])
    is_pair = jnp.abs(jnp.arange(size + n)[:, None] - places) == half
    is_pair = is_pair & (jnp.arange(size + n) < size)[:, None]

    def round_(state):
        top, bottom, basis = state[..., :half, :], state[..., half:size, :], state[..., size:, :]
        corner = top[..., half:]
        cosine, sine = rotation(real(diagonal(top[..., :half])), real(diagonal(bottom[..., half:])), diagonal(corner))
        across = cosine[..., None], sine[..., None]
        upper, below = across[0] * top - across[1] * bottom, jnp.conj(across[1]) * top + across[0] * bottom
        state = jnp.concatenate([upper, below, basis], axis=-2)
        state = rotated(state[..., :half], state[..., half:], cosine[..., None, :], sine[..., None, :])
        state = jnp.where(is_pair, 0, state)  # but for rounding they are; else no sweep would be the last
        return jnp.take(jnp.take(state, columns, axis=-1), rows, axis=-2)

    def unfinished(state):
        squares = square(state[..., :size, :])
        off = jnp.sum(jnp.where(places[:, None] == places, 0, squares), axis=(-2, -1))
        return off > np.finfo(a.dtype).eps ** 2 * jnp.sum(squares, axis=(-2, -1))

    state = swept(round_, unfinished, padded, size)
    values = real(diagonal(state[..., :n, :n])) * scale[..., 0]
    order = jnp.argsort(values, axis=-1)
    values = jnp.take_along_axis(values, order, axis=-1)
    vectors = jnp.take_along_axis(state[..., size:, :n], order[..., None, :], axis=-1)
    finite = jnp.all(jnp.isfinite(matrix), axis=(-2, -1))
    return where_ok(finite, vectors), where_ok(finite, values)


rule("eigh", via=eigh, defaults={"subset_by_index": None}, irrelevant=("algorithm",))
