"""Shifts, counts and bit casts, bit for bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, spec

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def integers(dtype, count=40):
    info = np.iinfo(dtype)
    edges = np.array([info.min, info.max, 0, 1, info.max // 2], dtype)
    return np.concatenate([edges, np.random.default_rng(0).integers(info.min, info.max, count, dtype, endpoint=True)])


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("shift", [lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic])
def test_shifts(shift, dtype):
    x, by = integers(dtype), np.resize(np.arange(0, 70, 3), 45).astype(dtype)
    with jax.enable_x64(True):
        check(shift, spec(45, dtype=dtype), spec(45, dtype=dtype), values=(x, by))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("count", [lax.population_count, lax.clz])
def test_counts(count, dtype):
    with jax.enable_x64(True):
        check(count, spec(45, dtype=dtype), values=(integers(dtype),))


@pytest.mark.parametrize("opset", [23, 26])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_from_bits_and_back(dtype, opset):
    dtype = jnp.dtype(dtype)
    bits = np.dtype(f"uint{8 * dtype.itemsize}")
    special = np.array(
        [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, jnp.finfo(dtype).max, jnp.finfo(dtype).tiny, 3e-45], dtype
    )
    values = np.concatenate([special, integers(bits).view(dtype)])
    with np.errstate(invalid="ignore"):  # NumPy warns of some of the NaN that random bits are
        values = values[~np.isnan(values.astype(np.float64))]
    # Below opset 26 the bits are found by arithmetic.
    without = {"imported": "XLA flushes what is below the smallest normal number"} if opset < 26 else {}
    with jax.enable_x64(True):
        to_bits = lambda x: lax.bitcast_convert_type(x, bits)
        from_bits = lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, dtype) * 1, bits)
        check(to_bits, spec(len(values), dtype=dtype), values=(values,), opset=opset, without=without)
        check(from_bits, spec(len(values), dtype=bits), values=(values.view(bits),), opset=opset, without=without)


@pytest.mark.parametrize(("old", "new"), [("uint32", "uint8"), ("float32", "uint16"), ("int64", "float32")])
def test_widths(old, new):
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float64).view(np.int64).astype(old)
        x = np.abs(np.random.default_rng(0).normal(size=(3, 4))).astype(np.float32) if old == "float32" else x
        check(lambda v: lax.bitcast_convert_type(v, jnp.dtype(new)), spec(3, 4, dtype=old), values=(x,))


def test_narrow_to_wide():
    x = np.random.default_rng(0).integers(0, 256, (3, 4)).astype(np.uint8)
    check(lambda v: lax.bitcast_convert_type(v, jnp.uint32), spec(3, 4, dtype=np.uint8), values=(x,))
