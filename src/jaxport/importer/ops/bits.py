"""Bits: shifts, bitcasts, and the infinities of floats."""

from __future__ import annotations

import numpy as np

from jaxport.errors import Refusal, Unsupported
from jaxport.importer.dtypes import canonical, dtype_of
from jaxport.importer.namespaces import cast, jnp, lax
from jaxport.importer.registry import op


@op("BitShift", since=11)
def bit_shift(X, Y, *, direction):
    shift = {"LEFT": jnp.left_shift, "RIGHT": jnp.right_shift}[direction]
    return shift(X, Y)


@op("BitCast", since=26)
def bit_cast(input, *, to):
    dtype = dtype_of(to)
    if canonical(dtype) != dtype:
        raise Unsupported(
            "64-bit types are off",
            [Refusal("", "", f'the bits of {dtype} are needed: `jax.config.update("jax_enable_x64", True)`')],
        )
    if dtype.kind == "b" or input.dtype.kind == "b":
        return cast(input, dtype)  # JAX cannot bitcast a bool; the bits of zero and one are the numbers
    return lax.bitcast_convert_type(input, dtype)


@op("IsInf", since=10)
def is_inf(X, *, detect_negative=1, detect_positive=1):
    if detect_negative and detect_positive:
        return jnp.isinf(X)
    if not detect_negative and not detect_positive:
        return jnp.zeros(X.shape, np.dtype(bool))
    return jnp.isinf(X) & (X > 0 if detect_positive else X < 0)
