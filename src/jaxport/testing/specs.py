"""Short specifications of inputs, and values for them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.typing import DTypeLike

from jaxport.jaxprs import Dim


def spec(*shape: Dim | str, dtype: DTypeLike = np.float32) -> jax.ShapeDtypeStruct:
    """A specification: dims are integers, names, or expressions such as `"2*B"`.

    >>> from jaxport.testing import spec
    >>> spec("B", 3, dtype="bfloat16")
    ShapeDtypeStruct(shape=('B', 3), dtype=bfloat16)
    """
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))


def f32(*shape: Dim | str) -> jax.ShapeDtypeStruct:
    """Return a float32 specification.

    >>> from jaxport.testing import f32
    >>> f32("B", 3)
    ShapeDtypeStruct(shape=('B', 3), dtype=float32)
    """
    return spec(*shape)


def f64(*shape: Dim | str) -> jax.ShapeDtypeStruct:
    """Return a float64 specification.

    >>> from jaxport.testing import f64
    >>> f64("B", 3)
    ShapeDtypeStruct(shape=('B', 3), dtype=float64)
    """
    return spec(*shape, dtype=np.float64)


def i32(*shape: Dim | str) -> jax.ShapeDtypeStruct:
    """Return an int32 specification.

    >>> from jaxport.testing import i32
    >>> i32("B", 3)
    ShapeDtypeStruct(shape=('B', 3), dtype=int32)
    """
    return spec(*shape, dtype=np.int32)


def boolean(*shape: Dim | str) -> jax.ShapeDtypeStruct:
    """Return a boolean specification.

    >>> from jaxport.testing import boolean
    >>> boolean("B", 3)
    ShapeDtypeStruct(shape=('B', 3), dtype=bool)
    """
    return spec(*shape, dtype=np.bool_)


def sample(generator: np.random.Generator, shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """Sample values that reveal mistakes in an operation: both signs, also for integers, and some equal values.

    The inputs of a whole model have to be valid too: see `jaxport.verify.sampling`.

    >>> import numpy as np
    >>> from jaxport.testing import sample
    >>> sample(np.random.default_rng(0), (2, 3), "int8").dtype
    dtype('int8')
    """
    dtype = np.dtype(dtype)
    if jax.dtypes.issubdtype(dtype, np.bool_):
        return generator.random(shape) > 0.5
    if jax.dtypes.issubdtype(dtype, np.integer):
        limits = jax.numpy.iinfo(dtype)
        low, high = max(-9, int(limits.min)), min(10, int(limits.max) + 1)
        return generator.integers(low, high, shape).astype(dtype)
    if dtype.kind == "c":
        return ((generator.normal(size=shape) + 1j * generator.normal(size=shape)) * 2).astype(dtype)
    return (generator.normal(size=shape) * 2).astype(dtype)
