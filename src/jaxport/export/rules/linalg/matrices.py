"""Shared helpers of the algorithms: views of matrices, and the parts of a loop over columns."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


def transposed(x):
    """Exchange the last two axes."""
    return jnp.swapaxes(x, -1, -2)


def adjoint(x):
    """Return the conjugate transpose."""
    return jnp.conj(transposed(x))


def square(x):
    """Return |x|², as a real number."""
    return x * x if jnp.isrealobj(x) else x.real * x.real + x.imag * x.imag


def real(x):
    """Return the real part; `x` itself if it is real."""
    return x if jnp.isrealobj(x) else x.real


def take(x, index, axis):
    """Return `x` at one index along an axis, which must be inside."""
    return lax.dynamic_index_in_dim(x, index, axis, keepdims=False)


def steps(body, state, *sequences) -> tuple[Any, Any]:
    """Run `body(state, *slices)` over the last axis of each sequence; the results are stacked there too."""

    def step(state, slices):
        return body(state, *slices)

    state, stacked = lax.scan(step, state, tuple(jnp.moveaxis(x, -1, 0) for x in sequences))
    return state, None if stacked is None else jnp.moveaxis(stacked, 0, -1)


def length(x):
    """Return the norm of vectors along the last axis, without overflow."""
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True, initial=0)
    scale = jnp.where((largest > 0) & (largest < np.inf), largest, 1)
    return scale[..., 0] * jnp.sqrt(jnp.sum(square(x / scale), axis=-1))


def of_moderate(factored):
    """Scale a factorization `t, z`, with `t` proportional to the matrix, to one whose largest element is one."""

    def of_any(a):
        size = jnp.max(jnp.abs(a), initial=0)
        scale = jnp.where((size > 0) & (size < np.inf), size, 1).astype(a.dtype)
        t, z = factored(a / scale)
        return t * scale, z

    return of_any


def hermitian(x, *, lower):
    """Return the Hermitian matrix that has one triangle of `x`."""
    triangle = jnp.tril(x, -1) if lower else jnp.triu(x, 1)
    return triangle + adjoint(triangle) + jnp.eye(x.shape[-1], dtype=x.dtype) * real(diagonal(x))[..., None]


def diagonal(x):
    """Return the diagonal of square matrices."""
    place = jnp.arange(x.shape[-1])
    return jnp.sum(jnp.where(place[:, None] == place, x, 0), axis=-1)


def where_ok(ok, x):
    """Return matrices (or vectors) where `ok` holds for their batch element, NaN elsewhere."""
    nan = np.nan if jnp.isrealobj(x) else complex(np.nan, np.nan)
    return jnp.where(ok.reshape(ok.shape + (1,) * (x.ndim - ok.ndim)), x, jnp.asarray(nan, x.dtype))
