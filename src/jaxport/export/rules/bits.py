"""Primitives on the bits of numbers: shifts, counts, and bitcasts."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit import legalize
from jaxport.export.emit.registry import rule
from jaxport.export.rules.elementwise import elementwise


def unsigned(dtype):
    """Return the unsigned integer dtype of the same width."""
    return np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")


def shifted(op, x, by, direction):
    """Shift bits. A shift by the width or more gives 0, as in JAX; in runtimes it is undefined."""
    width, count = 8 * x.dtype.itemsize, op.cast(by, unsigned(x.dtype))
    bits = op.cast(op.BitShift(op.cast(x, unsigned(x.dtype)), count, direction=direction), x.dtype)
    if count.constant is not None and (count.constant < width).all():
        return bits
    return op.Where(op.Less(count, op.const(width, count.dtype)), bits, op.const(0, x.dtype))


@elementwise("shift_left")
def shift_left(op, x, by):
    return shifted(op, x, by, "LEFT")


@elementwise("shift_right_logical")
def shift_right_logical(op, x, by):
    return shifted(op, x, by, "RIGHT")


@elementwise("shift_right_arithmetic")
def shift_right_arithmetic(op, x, by):
    signed = op.cast(x, f"int{8 * x.dtype.itemsize}")  # the highest bit is the sign, also for unsigned integers
    negative, minus_one = op.Less(signed, 0), op.const(-1, signed.dtype)
    positive = op.Where(negative, op.Sub(minus_one, signed), signed)  # -1 - x has all bits of x inverted
    moved = shifted(op, positive, by, "RIGHT")
    return op.cast(op.Where(negative, op.Sub(minus_one, moved), moved), x.dtype)


def _population_count(x):
    """Count bits by sums of neighbouring groups of 1, 2, 4 … bits."""
    width = 8 * x.dtype.itemsize
    bits = lax.convert_element_type(x, unsigned(x.dtype))
    group = 1
    while group < width:
        mask = np.array(sum(((1 << group) - 1) << at for at in range(0, width, 2 * group)), bits.dtype)
        bits = (bits & mask) + ((bits >> np.array(group, bits.dtype)) & mask)
        group *= 2
    return lax.convert_element_type(bits, x.dtype)


def _count_leading_zeros(x):
    """Set all bits below the highest one, so that the rest are the leading zeros."""
    width, bits = jnp.iinfo(x.dtype).bits, lax.convert_element_type(x, unsigned(x.dtype))
    bits = bits & np.array((1 << width) - 1, bits.dtype) if width < 8 else bits
    step = 1
    while step < width:
        bits = bits | (bits >> np.array(step, bits.dtype))
        step *= 2
    return lax.convert_element_type(np.array(width, bits.dtype) - _population_count(bits), x.dtype)


elementwise("population_count", via=_population_count)
elementwise("clz", via=_count_leading_zeros)


@rule("bitcast_convert_type")
def bitcast_convert_type(op, x, *, new_dtype):
    new_dtype = np.dtype(new_dtype)
    if x.dtype == new_dtype:
        return x
    for dtype in (x.dtype, new_dtype):
        if dtype.name in legalize.BELOW_A_BYTE:
            op.refuse(f"reads bits as {dtype.name}; cast to int8 and use shifts instead")
    if x.dtype.itemsize == new_dtype.itemsize:
        if x.dtype.kind in "iu" and new_dtype.kind in "iu":
            return op.cast(x, new_dtype)
        if op.has("BitCast"):
            return op.BitCast(x, to=new_dtype)
    return op.call(_bitcast, x, new_dtype=new_dtype)


def _bitcast(x, *, new_dtype):
    """Return the bits of `x` as another dtype, by arithmetic; narrower numbers go along a last axis, low bits first."""
    old, new = unsigned(x.dtype), unsigned(new_dtype)
    bits = _bits_of(x) if x.dtype.kind not in "iu" else lax.convert_element_type(x, old)
    count, width = max(old.itemsize // new.itemsize, new.itemsize // old.itemsize), 8 * min(old.itemsize, new.itemsize)
    if new.itemsize < old.itemsize:
        at = np.arange(0, count * width, width, dtype=old)
        bits = lax.convert_element_type((bits[..., None] >> at) & np.array((1 << width) - 1, old), new)
    elif new.itemsize > old.itemsize:
        at = np.arange(0, count * width, width, dtype=new)
        bits = (lax.convert_element_type(bits, new) << at).sum(axis=-1, dtype=new)
    return _from_bits(bits, new_dtype) if new_dtype.kind not in "iu" else lax.convert_element_type(bits, new_dtype)


def _layout(dtype):
    """Return the number of mantissa bits and of exponent bits of a float dtype, and the exponent's bias."""
    info = jnp.finfo(dtype)
    return info.nmant, info.nexp, (1 << (info.nexp - 1)) - 1


def _powers(dtype, exponents):
    """Return powers of two as constants of a float dtype."""
    powers = [math.ldexp(1.0, min(int(e), 1023)) if e > -1075 else 0.0 for e in exponents]
    with np.errstate(over="ignore"):
        return np.array(powers, np.float64).astype(dtype)


def _from_bits(bits, dtype):
    """Return the float with these bits: (2**m + mantissa) * 2**(exponent - bias - m), exact in every step."""
    mantissa_bits, exponent_bits, bias = _layout(dtype)
    if np.dtype(dtype).itemsize == 2:  # half precision is computed in single, in which all its values are normal
        table_dtype = np.float32
    else:
        table_dtype = np.dtype(dtype)
    top = (1 << exponent_bits) - 1
    unit = lambda n: np.array(n, bits.dtype)
    exponent = (bits >> unit(mantissa_bits)) & unit(top)
    mantissa = bits & unit((1 << mantissa_bits) - 1)
    whole = jnp.where(exponent == 0, mantissa, mantissa | unit(1 << mantissa_bits))
    scale = _powers(table_dtype, [max(e, 1) - bias - mantissa_bits for e in range(top + 1)])
    scale[top] = np.inf
    index = lax.convert_element_type(exponent, np.int32)
    value = lax.convert_element_type(whole, table_dtype) * jnp.asarray(scale).at[index].get(mode="promise_in_bounds")
    value = jnp.where((exponent == unit(top)) & (mantissa != 0), np.array(np.nan, table_dtype), value)
    negative = bits >> unit(mantissa_bits + exponent_bits) != 0
    return lax.convert_element_type(jnp.where(negative, -value, value), dtype)


def _bits_of(x):
    """Return the bits of a float; every NaN gives the bits of the canonical one."""
    dtype, target = x.dtype, unsigned(x.dtype)
    mantissa_bits, exponent_bits, bias = _layout(dtype)
    work = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    top = (1 << exponent_bits) - 1
    size = lax.convert_element_type(abs(x), work)
    lowest, highest = 1 - bias, top - 1 - bias
    powers = jnp.asarray(_powers(work, range(lowest, highest + 2)))
    finite = jnp.where(jnp.isfinite(size), size, 1)
    # floor(log2) may be off by one: compare with the power of two itself.
    guess = jnp.floor(jnp.log(jnp.maximum(finite, _powers(work, [lowest])[0])) * work.type(1 / math.log(2)))
    power = jnp.clip(lax.convert_element_type(guess, np.int32), lowest, highest) - lowest
    at = lambda index: powers.at[index].get(mode="promise_in_bounds")
    power = jnp.where(finite < at(power), jnp.maximum(power - 1, 0), power)
    power = jnp.where((power < highest - lowest) & (finite >= at(power + 1)), power + 1, power)
    normal = finite >= powers[0]
    whole = finite / at(power) * work.type(2**mantissa_bits)
    whole = lax.convert_element_type(whole, np.uint64 if target.itemsize == 8 else np.uint32)
    exponent = lax.convert_element_type(jnp.where(normal, power + 1, 0), whole.dtype)
    mantissa = jnp.where(normal, whole - whole.dtype.type(2**mantissa_bits), whole)
    bits = (exponent << whole.dtype.type(mantissa_bits)) | mantissa
    bits = jnp.where(jnp.isinf(size), whole.dtype.type(top << mantissa_bits), bits)
    nan = whole.dtype.type((top << mantissa_bits) | (1 << (mantissa_bits - 1)))
    bits = jnp.where(jnp.isnan(size), nan, bits)
    negative = (x < 0) | ((x == 0) & (1 / lax.convert_element_type(x, work) < 0))
    bits = jnp.where(negative, bits | whole.dtype.type(1 << (8 * target.itemsize - 1)), bits)
    return lax.convert_element_type(bits, target)
