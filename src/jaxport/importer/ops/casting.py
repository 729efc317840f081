"""Changing element types."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from jaxport.importer.resolving.registry import ShapeOnly, earlier, op
from jaxport.importer.values.dtypes import dtype_of
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import cast, helper, jnp, lax

NARROW_INTEGERS = {"int2", "uint2", "int4", "uint4"}


@helper
def to_power_of_two(x, saturate, round_mode):
    """Return `x` as float8_e8m0: its exponent, rounded `up`, `down` or to the `nearest` power of two."""
    bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    exponent, mantissa = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    rounds_up = {"up": mantissa > 0, "down": False, "nearest": mantissa >= 0x400000}[round_mode]
    largest = 254 if saturate else 255
    exponent = jnp.where(jnp.isnan(x), 255, jnp.minimum(exponent + rounds_up, largest))
    return lax.bitcast_convert_type(exponent.astype(jnp.uint8), jnp.float8_e8m0fnu)


def at_least_single(x: Tensor) -> Tensor:
    """Return `x`, in float32 if its type is smaller: transforms and factorizations exist in no smaller type."""
    return cast(x, np.float32) if x.dtype.itemsize < 4 else x


def converted(x: Tensor, dtype: np.dtype, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """Return `x` as `dtype`, with ONNX's saturation of 8-bit floats and the wrap-around of narrow integers."""
    if dtype.name == "float8_e8m0fnu":
        return to_power_of_two(x, saturate, round_mode)
    if x.dtype.name == "float4_e2m1fn" and dtype.kind != "f":  # XLA takes 6 for an overflow of any integer
        x = cast(x, np.float32)
    if dtype.name in NARROW_INTEGERS and x.dtype.kind != "i":
        x = cast(x, np.int32)
    if dtype.name.startswith("float8") and x.dtype.name in NARROW_INTEGERS:  # JAX compares no such integers with floats
        x = cast(x, np.float32)
    if dtype.name.startswith("float8") and saturate:
        limit = float(ml_dtypes.finfo(dtype).max)
        x = jnp.clip(x, -limit, limit)
    return cast(x, dtype)


@op("Cast", since=24)
def cast_(input, *, to, saturate=1, round_mode="up"):
    return converted(input, dtype_of(to), saturate, round_mode)


@op("CastLike", since=24)
def cast_like(input, target_type: ShapeOnly, *, saturate=1, round_mode="up"):
    return converted(input, target_type.dtype, saturate, round_mode)


earlier("Cast", since=19, until=23, without="round_mode")
earlier("Cast", since=6, until=18, without="saturate")
earlier("CastLike", since=19, until=23, without="round_mode")
earlier("CastLike", since=15, until=18, without="saturate")
