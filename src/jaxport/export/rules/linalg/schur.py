"""Schur's form and the eigenvalues of any matrix, by the QR algorithm on complex numbers.

The order of eigenvalues and the phases of eigenvectors may differ from LAPACK, which promises neither.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import rule
from jaxport.export.rules.linalg.householder import to_hessenberg
from jaxport.export.rules.linalg.matrices import adjoint, diagonal, of_moderate, square, take, where_ok
from jaxport.export.rules.linalg.real_schur import real_schur_of_one

MOST_STEPS = 30


def shift(t, last):
    """Return the eigenvalue of the last two rows and columns that is closest to the corner."""
    above, row = take(t, last - 1, -2), take(t, last, -2)
    a, b, c, d = (take(x, k, -1) for x in (above, row) for k in (last - 1, last))
    middle = (a - d) / 2
    root = jnp.sqrt(middle * middle + b * c)
    larger, smaller = middle + root, middle - root
    return d + jnp.where(jnp.abs(larger) < jnp.abs(smaller), larger, smaller)


def qr_step(t, z, last, by):
    """Return `R Q + by` for `t - by = Q R`, where the rows and columns after `last` stay; and `z Q`."""
    n = t.shape[-1]
    places, eye = jnp.arange(n), jnp.eye(n, dtype=t.dtype)

    def rows(t, k):
        first, second = take(t, k, -2), take(t, k + 1, -2)
        x, y = take(first, k, -1), take(second, k, -1)
        size = jnp.sqrt(square(x) + square(y)).astype(t.dtype)
        idle = (size == 0) | (k >= last)
        c, s = jnp.where(idle, 1, x / jnp.where(idle, 1, size)), jnp.where(idle, 0, y / jnp.where(idle, 1, size))
        upper, lower = jnp.conj(c) * first + jnp.conj(s) * second, c * second - s * first
        return jnp.where((places == k)[:, None], upper, jnp.where((places == k + 1)[:, None], lower, t)), (c, s)

    def columns(both, rotation):
        k, c, s = rotation
        first, second = take(both, k, -1)[:, None], take(both, k + 1, -1)[:, None]
        left, right = c * first + s * second, jnp.conj(c) * second - jnp.conj(s) * first
        return jnp.where(places == k, left, jnp.where(places == k + 1, right, both)), None

    steps = jnp.arange(n - 1)
    r, (c, s) = lax.scan(rows, t - by * eye, steps)
    both, _ = lax.scan(columns, jnp.concatenate([r, z]), (steps, c, s))
    return both[:n] + by * eye, both[n:]


@of_moderate
def schur_of_one(a):
    """Return an upper triangular T and a unitary Z, with `a = Z T Zᴴ`, of one complex matrix."""
    n = a.shape[-1]
    t, z = to_hessenberg(a)
    places = jnp.arange(n)

    def body(state):
        t, z, last, count = state
        row = take(t, last, -2)
        beside, corner = jnp.abs(take(row, last - 1, -1)), jnp.abs(take(row, last, -1))
        before = jnp.abs(take(take(t, last - 1, -2), last - 1, -1))
        done = beside <= np.finfo(a.dtype).eps * (before + corner)

        def deflated(t, z):
            return jnp.where((places == last)[:, None] & (places == last - 1), 0, t), z, last - 1, jnp.int32(0)

        def stepped(t, z):
            usual, other = shift(t, last), take(row, last, -1) + beside  # the other one breaks cycles
            return *qr_step(t, z, last, jnp.where(count % 10 == 9, other, usual)), last, count + 1

        return lax.cond(done, deflated, stepped, t, z)

    start = t, z, jnp.int32(n - 1), jnp.int32(0)
    t, z, last, _ = lax.while_loop(lambda state: (state[2] > 0) & (state[3] < MOST_STEPS), body, start)
    ok = (last <= 0) & jnp.all(jnp.isfinite(a))
    return where_ok(ok, jnp.triu(t)), where_ok(ok, z)


def over_batch(function, a):
    """Apply a function of one matrix to all matrices of a batch."""
    for _ in range(a.ndim - 2):
        function = jax.vmap(function)
    return function(a)


def schur(a, *, compute_schur_vectors):
    t, z = over_batch(real_schur_of_one if jnp.isrealobj(a) else schur_of_one, a)
    return (t, z) if compute_schur_vectors else (t,)


def triangular_vectors(t):
    """Return the eigenvectors of an upper triangular matrix as columns, by back substitution."""
    n = t.shape[-1]
    places, values = jnp.arange(n), diagonal(t)
    least = np.finfo(t.dtype).eps * jnp.max(jnp.abs(t), initial=0)
    least = jnp.where(least == 0, 1, least).astype(t.dtype)

    def row(vectors, slices):
        k, coefficients, value = slices
        gap = value - values
        gap = jnp.where(jnp.abs(gap) < jnp.abs(least), least, gap)
        vector = -(jnp.where(places > k, coefficients, 0) @ vectors) / gap
        vector = jnp.where(places > k, vector, (places == k).astype(t.dtype))
        vectors = jnp.where((places == k)[:, None], vector, vectors)
        return vectors / jnp.maximum(1, jnp.abs(vector)).astype(t.dtype), None  # if eigenvalues agree, they grow

    return lax.scan(row, jnp.zeros_like(t), (places, t, values), reverse=True)[0]


def normalized(vectors):
    """Return columns of length one, whose largest element is real."""
    sizes = jnp.sum(square(vectors), axis=0)
    largest = jnp.argmax(square(vectors), axis=0)
    phase = jnp.conj(jnp.take_along_axis(vectors, largest[None], axis=0))[0]
    return vectors * (phase / (jnp.abs(phase) * jnp.sqrt(sizes)).astype(vectors.dtype))


def eig_of_one(a, left, right):
    t, z = schur_of_one(a)
    results = [diagonal(t)]
    if left:  # those of the adjoint, which is upper triangular from the other end
        turned = jnp.flip(triangular_vectors(jnp.flip(adjoint(t))))
        results.append(normalized(z @ turned))
    if right:
        results.append(normalized(z @ triangular_vectors(t)))
    return results


def eig(a, *, compute_left_eigenvectors, compute_right_eigenvectors):
    """Return eigenvalues, and the left and right eigenvectors as columns, all complex."""
    a = a.astype(jnp.result_type(a.dtype, np.complex64))
    return over_batch(lambda a: eig_of_one(a, compute_left_eigenvectors, compute_right_eigenvectors), a)


rule("schur", via=schur, irrelevant=("select_callable",))
rule("eig of complex numbers", via=eig, irrelevant=("implementation", "enable_eigvec_derivs"))
