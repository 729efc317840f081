"""Singular values by Jacobi's rotations of columns."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import core

from jaxport.export.emit.registry import rule
from jaxport.export.rules.linalg.eigh import pairing, rotated, rotation, swept
from jaxport.export.rules.linalg.householder import qr
from jaxport.export.rules.linalg.matrices import adjoint, diagonal, square, transposed, where_ok
from jaxport.jaxprs import dims


def svd(a, *, full_matrices, compute_uv):
    """Return the singular values in descending order, and the singular vectors as columns of U and rows of Vᴴ."""
    m, n = a.shape[-2:]
    if dims.known(lambda: m < n):
        values, *vectors = svd(adjoint(a), full_matrices=full_matrices, compute_uv=compute_uv)
        return (values, adjoint(vectors[1]), adjoint(vectors[0])) if compute_uv else (values,)
    rank, half = core.min_dim(m, n), (n + 1) // 2
    size = 2 * half
    finite = jnp.all(jnp.isfinite(a), axis=(-2, -1))
    scale = jnp.max(jnp.abs(a), axis=(-2, -1), keepdims=True, initial=0)
    scale = jnp.where((scale > 0) & (scale < np.inf), scale, 1)
    # The columns are rotated until they are orthogonal; they are kept as rows, next to those of the rotations.
    state = transposed(a / scale.astype(a.dtype))
    state = jnp.concatenate([state, jnp.zeros((*a.shape[:-2], size - n, m), a.dtype)], axis=-2)
    if compute_uv:
        basis = jnp.eye(size, n, dtype=a.dtype)
        state = jnp.concatenate([state, jnp.broadcast_to(basis, (*a.shape[:-2], size, n))], axis=-1)
    order = pairing(size)

    def round_(state):
        left, right = state[..., :half, :m], state[..., half:, :m]
        p, q = (jnp.sum(square(x), axis=-1) for x in (left, right))
        return rotated(state, *rotation(p, q, jnp.sum(jnp.conj(left) * right, axis=-1)), order)

    eps = np.finfo(a.dtype).eps

    def unfinished(state):
        products = state[..., :m] @ adjoint(state[..., :m])
        norms = jnp.sqrt(jnp.abs(diagonal(products)))
        # Two columns at the level of rounding errors need not be orthogonal.
        noise = (eps * jnp.sqrt(jnp.sum(square(norms), axis=-1, keepdims=True))) ** 2
        bound = eps * jnp.sqrt(m).astype(norms.dtype) * (norms[..., :, None] * norms[..., None, :]) + noise[..., None]
        place = jnp.arange(size)
        return jnp.any((jnp.abs(products) > bound) & (place[:, None] != place), axis=(-2, -1))

    state = swept(round_, unfinished, state, size)[..., :n, :]
    values = jnp.sqrt(jnp.sum(square(state[..., :m]), axis=-1))
    order = jnp.argsort(-values, axis=-1)
    values = where_ok(finite, jnp.take_along_axis(values, order, axis=-1)[..., :rank] * scale[..., 0])
    if not compute_uv:
        return (values,)
    state = jnp.take_along_axis(state, order[..., None], axis=-2)
    # Orthogonal columns are their own QR factorization up to signs, and Q completes those that vanish.
    q, r = qr(transposed(state[..., :rank, :m]), pivoting=False, full_matrices=full_matrices)
    sizes = diagonal(r[..., :rank, :])
    phases = jnp.where(sizes == 0, 1, sizes / jnp.where(sizes == 0, 1, jnp.abs(sizes)).astype(a.dtype))
    u = jnp.concatenate([q[..., :rank] * phases[..., None, :], q[..., rank:]], axis=-1)
    v = state[..., m:] if full_matrices else state[..., :rank, m:]
    return values, where_ok(finite, u), where_ok(finite, jnp.conj(v))


rule("svd", via=svd, irrelevant=("algorithm",))
