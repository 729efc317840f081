"""Elementwise operations."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.stablehlo.registry import define, plain

plain(
    abs=lax.abs, atan2=lax.atan2, cbrt=lax.cbrt, ceil=lax.ceil, clamp=lax.clamp,
    complex=lax.complex, cosine=lax.cos, count_leading_zeros=lax.clz, divide=lax.div, exponential=lax.exp,
    exponential_minus_one=lax.expm1, floor=lax.floor, imag=jnp.imag, is_finite=lax.is_finite, log=lax.log,
    log_plus_one=lax.log1p, logistic=lax.logistic, maximum=lax.max, minimum=lax.min, negate=lax.neg,
    real=jnp.real, remainder=lax.rem, rsqrt=lax.rsqrt,
    sign=lax.sign, sine=lax.sin, sqrt=lax.sqrt, subtract=lax.sub, tan=lax.tan, tanh=lax.tanh, xor=lax.bitwise_xor,
    shift_left=lax.shift_left, shift_right_arithmetic=lax.shift_right_arithmetic,
    shift_right_logical=lax.shift_right_logical, round_nearest_even=partial(lax.round,
        rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN),
    round_nearest_afz=partial(lax.round, rounding_method=lax.RoundingMethod.AWAY_FROM_ZERO),
)  # fmt: skip
define("and")(lax.bitwise_and)
define("or")(lax.bitwise_or)
define("not")(lax.bitwise_not)


@define("add")
def add(x, y):
    return lax.bitwise_or(x, y) if x.dtype == bool else lax.add(x, y)


@define("multiply")
def multiply(x, y):
    return lax.bitwise_and(x, y) if x.dtype == bool else lax.mul(x, y)


@define("popcnt")
def popcnt(x):
    bits = jnp.iinfo(x.dtype).bits
    if bits >= 8:
        return lax.population_count(x)
    return lax.population_count(x.astype(np.uint8) & np.uint8(2**bits - 1)).astype(x.dtype)


def as_type(x, kind):
    """Return an array in the type of elements of a tensor."""
    return x if x.dtype == kind.dtype else x.astype(kind.dtype)


def order_key(x):
    """Return whole numbers in the order of IEEE 754: those of `TOTALORDER`."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    bits = 8 * x.dtype.itemsize
    whole = lax.bitcast_convert_type(x, f"int{bits}")
    return jnp.where(whole < 0, whole ^ np.array(2 ** (bits - 1) - 1, whole.dtype), whole)


_COMPARISONS = {"LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge, "EQ": lax.eq, "NE": lax.ne}


@define("compare")
def compare(x, y, *, comparison_direction, compare_type=""):
    keys = map(order_key, (x, y)) if compare_type == "TOTALORDER" else (x, y)
    return _COMPARISONS[comparison_direction](*keys)


@define("power")
def power(x, y):
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return lax.pow(x, y)
    made, one = jnp.ones_like(x), jnp.ones((), x.dtype)
    odd, base, left = (y & one) == 1, x, y
    for _ in range(8 * x.dtype.itemsize):
        made = jnp.where((left & one) == 1, made * base, made)
        base, left = base * base, lax.shift_right_logical(left, jnp.ones_like(left))
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return made
    inverse = jnp.where(x == 1, one, jnp.where(x == -1, jnp.where(odd, -one, one), 0))
    return jnp.where(y < 0, inverse, made)


@define("convert")
def convert(x, *, result):
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(result.dtype, jnp.complexfloating):
        x = lax.real(x)
    return lax.convert_element_type(x, result.dtype)


@define("bitcast_convert")
def bitcast_convert(x, *, result):
    return lax.bitcast_convert_type(x, result.dtype)


@define("reduce_precision")
def reduce_precision(x, *, exponent_bits, mantissa_bits):
    return lax.reduce_precision(x, exponent_bits, mantissa_bits)


@define("map")
def map_(*xs, dimensions, regions):
    function = lambda *numbers: regions[0](*numbers)[0]
    for _ in dimensions:
        function = jax.vmap(function)
    return function(*xs)


@define("optimization_barrier")
def optimization_barrier(*xs):
    return lax.optimization_barrier(xs)


def _channels(x, axis, *rows):
    return (lax.broadcast_in_dim(row, x.shape, (axis,)) for row in rows)


@define("batch_norm_inference")
def batch_norm_inference(x, scale, offset, mean, variance, *, epsilon, feature_index):
    rows = (scale, offset, mean, lax.rsqrt(variance + jnp.asarray(epsilon, x.dtype)))
    scale, offset, mean, factor = _channels(x, feature_index, *rows)
    return (x - mean) * factor * scale + offset


@define("batch_norm_training")
def batch_norm_training(x, scale, offset, *, epsilon, feature_index):
    axes = [axis for axis in range(x.ndim) if axis != feature_index]
    mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    y = batch_norm_inference(x, scale, offset, mean, variance, epsilon=epsilon, feature_index=feature_index)
    return y, mean, variance


@define("batch_norm_grad")
def batch_norm_grad(x, scale, mean, variance, gradient, *, epsilon, feature_index):
    axes = [axis for axis in range(x.ndim) if axis != feature_index]
    offset = jnp.sum(gradient, axes)
    of_rows = lambda *rows: _channels(x, feature_index, *rows)
    factor = lax.rsqrt(variance + jnp.asarray(epsilon, x.dtype))
    middle, wide = of_rows(mean, factor)
    of_scale = jnp.sum(gradient * (x - middle) * wide, axes)
    count = x.size // x.shape[feature_index]
    mean_gradient, slope, wide_scale = of_rows(offset / count, of_scale / count, scale)
    return wide_scale * wide * (gradient - mean_gradient - (x - middle) * wide * slope), of_scale, offset
