"""Elementary functions that ONNX has no operator for, or the runtime no kernel in double precision, as JAX
functions.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.rules.bits import shift_right_arithmetic, shift_right_logical
from jaxport.export.rules.elementwise import elementwise
from jaxport.export.rules.special import erf_in_double, in_single_precision, polynomial

# Cephes, atan.c: atan(x) = x + x z P(z) / Q(z) with z = x², for |x| <= 0.66.
_ATAN_P = (
    -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)  # fmt: skip
_ATAN_Q = (
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
    1.945506571482613964425e2,
)  # fmt: skip


def _atan(x):
    size = jnp.abs(x)
    large, middle = size > np.tan(3 * np.pi / 8), size > 0.66
    inverse = -1 / jnp.where(large, size, 1)
    reduced = jnp.where(large, inverse, jnp.where(middle, (size - 1) / (size + 1), size))
    start = jnp.where(large, np.pi / 2, jnp.where(middle, np.pi / 4, 0))
    z = reduced * reduced
    return jnp.sign(x) * (start + (reduced + reduced * z * polynomial(z, _ATAN_P) / polynomial(z, _ATAN_Q)))


def _asin(x):
    # Both factors are exact near the ends, where 1 - x² would lose its digits.
    return 2 * _atan(x / (1 + jnp.sqrt((1 - x) * (1 + x))))


def _acos(x):
    return jnp.where(x == -1, np.pi, 2 * _atan(jnp.sqrt(1 - x) / jnp.sqrt(1 + x)))


def _sinh(x):
    u = jnp.expm1(jnp.abs(x))
    half = jnp.exp(jnp.abs(x) / 2)  # its square overflows no earlier than the result
    return jnp.sign(x) * jnp.where(jnp.abs(x) > 30, half * (half / 2), (u + u / (u + 1)) / 2)


def _cosh(x):
    half = jnp.exp(jnp.abs(x) / 2)
    return half * (half / 2) + jnp.exp(-jnp.abs(x)) / 2


def _asinh(x):
    size = jnp.abs(x)
    square = jnp.where(size > 1e150, 0, size * size)
    small = jnp.log1p(size + square / (1 + jnp.sqrt(square + 1)))
    return jnp.sign(x) * jnp.where(size > 1e150, jnp.log(size) + np.log(2), small)


def _acosh(x):
    below = x - 1
    near = jnp.log1p(below + jnp.sqrt(below) * jnp.sqrt(below + 2))
    return jnp.where(x > 1e150, jnp.log(x) + np.log(2), near)


def _atanh(x):
    size = jnp.abs(x)
    return jnp.sign(x) * jnp.where(size == 1, np.inf, jnp.log1p(2 * size / (1 - jnp.where(size == 1, 0, size))) / 2)


def _single_or(op_type, in_double):
    """Return the operator, or in double precision the JAX function."""

    def emits(op, x):
        return op.call(in_double, x) if x.dtype == np.float64 else op.emit(op_type, x)

    emits.__qualname__ = f"{op_type}, in double by {in_double.__name__}"
    return emits


for _name, _op_type, _function in [
    ("acos", "Acos", _acos),
    ("acosh", "Acosh", _acosh),
    ("asin", "Asin", _asin),
    ("asinh", "Asinh", _asinh),
    ("atan", "Atan", _atan),
    ("atanh", "Atanh", _atanh),
    ("cosh", "Cosh", _cosh),
    ("erf", "Erf", erf_in_double),
    ("sinh", "Sinh", _sinh),
    ("tan", "Tan", lambda x: jnp.sin(x) / jnp.cos(x)),
]:
    elementwise(_name)(_single_or(_op_type, _function))


def _atan2(y, x):
    """Compute the angle in the first octant and reflect it into the others. The sign of a zero counts."""
    size_x, size_y = jnp.abs(x), jnp.abs(y)
    larger, smaller = jnp.maximum(size_x, size_y), jnp.minimum(size_x, size_y)
    both_infinite = jnp.isinf(smaller)
    ratio = jnp.where(both_infinite, 1, smaller / jnp.where(larger == 0, 1, larger))
    angle = jnp.arctan(ratio)
    angle = jnp.where(size_y > size_x, np.asarray(np.pi / 2, x.dtype) - angle, angle)
    angle = jnp.where((x < 0) | (1 / x < 0), np.asarray(np.pi, x.dtype) - angle, angle)
    angle = jnp.where((y < 0) | (1 / y < 0), -angle, angle)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), np.asarray(np.nan, x.dtype), angle)


def _cbrt(x):
    """Compute the root of the absolute value by logarithms, and one step of Newton's method."""
    size = jnp.abs(x)
    regular = (size > 0) & (size < np.inf)
    safe = jnp.where(regular, size, 1)
    root = jnp.exp(jnp.log(safe) / 3)
    root = root - (root - safe / (root * root)) / 3
    return jnp.where(regular, jnp.sign(x) * root, x)


# The last step of these two is a product, which keeps the sign of -0.0; the runtime's Where does not.


def _log1p(x):
    """Accurate near zero: x * log(u) / (u - 1) with u = 1 + x corrects the rounding of the sum (Kahan)."""
    u = 1 + x
    same = (u == 1) | (u == np.inf)
    return x * jnp.where(same, 1, jnp.log(u) / jnp.where(same, 1, u - 1))


def _expm1(x):
    """Accurate near zero: x * (u - 1) / log(u) with u = exp(x) corrects the rounding of the difference (Kahan)."""
    u = jnp.exp(x)
    log_u = jnp.log(u)
    far = (u - 1 == -1) | jnp.isinf(u)  # there log(u) is useless, and u - 1 accurate enough
    near = jnp.where(far | (u == 1), 1, (u - 1) / jnp.where(far | (u == 1), 1, log_u))
    return jnp.where(far, u - 1, x) * near


elementwise("atan2", via=in_single_precision(_atan2))
elementwise("cbrt", via=in_single_precision(_cbrt))
elementwise("log1p", via=in_single_precision(_log1p))
elementwise("expm1", via=in_single_precision(_expm1))


elementwise("log2", via=lambda x: jnp.log(x) * np.asarray(1 / np.log(2), x.dtype))


@elementwise("exp2")
def exp2(op, x):
    return op.Pow(op.const(2, x.dtype), x)


def _next_after(x, y):
    """Find the neighbour by rounding: a step of more than half and less than one and a half ulp is one.

    If x is so small that such a step is subnormal, the sum is computed at another scale. See Rump, Zimmermann, Boldo
    and Melquiond, "Computing predecessor and successor in rounding to nearest", BIT 49 (2009).
    """
    facts = jnp.finfo(x.dtype)
    wide = x.dtype if facts.bits >= 32 else np.dtype(np.float32)  # a single rounding, to the narrow dtype
    unit, least = float(facts.eps) / 2, float(facts.smallest_subnormal)
    number = lambda value: np.asarray(value, wide)
    size = jnp.abs(x).astype(wide)
    upwards = jnp.where(x == 0, y > 0, x > 0)
    outwards = (x < y) == upwards
    scale = jnp.where(size < number(least / unit**2 / 2), number(1 / unit), number(1))
    scaled = size * scale
    step = jnp.where(size < number(least / unit), number(least / unit), scaled * number(unit * (1 + 2 * unit)))
    moved = (scaled + jnp.where(outwards, step, -step)) / scale
    moved = jnp.where(jnp.isinf(x), number(float(facts.max)), moved)
    result = jnp.where(upwards, moved, -moved).astype(x.dtype)
    nan = jnp.isnan(x) | jnp.isnan(y)
    return jnp.where(nan, np.asarray(np.nan, x.dtype), jnp.where(x == y, y, result))


elementwise("nextafter", via=_next_after)


def _reduce_precision(x, *, exponent_bits, mantissa_bits):
    """Round the mantissa half to even; too large values become infinite, too small ones zero."""
    info = jnp.finfo(x.dtype)
    if (exponent_bits, mantissa_bits) == (info.nexp, info.nmant):
        return x
    integer = np.dtype(f"uint{8 * x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, integer)
    if mantissa_bits < info.nmant:
        drop = info.nmant - mantissa_bits
        one = np.array(1, integer)
        odd = (bits >> np.array(drop, integer)) & one
        rounded = bits + np.array((1 << (drop - 1)) - 1, integer) + odd
        keep = np.array(((1 << (8 * integer.itemsize - drop)) - 1) << drop, integer)
        bits = rounded & keep
    result = lax.bitcast_convert_type(bits, x.dtype)
    if exponent_bits < info.nexp:
        bias = (1 << (exponent_bits - 1)) - 1
        largest = np.asarray(2.0**bias * (2 - 2.0**-mantissa_bits), x.dtype)
        smallest = np.asarray(2.0 ** (1 - bias), x.dtype)
        result = jnp.where(jnp.abs(result) > largest, jnp.sign(result) * np.asarray(np.inf, x.dtype), result)
        result = jnp.where(jnp.abs(result) < smallest, result * 0, result)
    return jnp.where(jnp.isfinite(x), result, x)


elementwise("reduce_precision", via=_reduce_precision)


def _total_order(compare):
    """Return a comparison in which NaN equals NaN and is larger than everything else."""

    def ordered(x, y):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return compare(x, y, False, False)
        return compare(x, y, jnp.isnan(x), jnp.isnan(y))

    ordered.__name__ = compare.__name__
    return ordered


def _equal(x, y, x_nan, y_nan):
    return (x == y) | (x_nan & y_nan)


def _less(x, y, x_nan, y_nan):
    return (x < y) | (~jnp.asarray(x_nan) & y_nan)


def _less_or_equal(x, y, x_nan, y_nan):
    return (x <= y) | y_nan


elementwise("eq_to", via=_total_order(_equal))
elementwise("lt_to", via=_total_order(_less))
elementwise("le_to", via=_total_order(_less_or_equal))


def _high_product(x, y):
    """Return the high half of a product of 64-bit integers, from the products of their halves."""
    half, mask = np.array(32, np.uint64), np.array(2**32 - 1, np.uint64)
    a, b = (lax.convert_element_type(v, np.uint64) for v in (x, y))
    low = (a & mask) * (b & mask)
    middle = (a >> half) * (b & mask) + (low >> half)
    other = (a & mask) * (b >> half) + (middle & mask)
    high = lax.convert_element_type((a >> half) * (b >> half) + (middle >> half) + (other >> half), x.dtype)
    if x.dtype.kind == "u":
        return high
    return high - jnp.where(x < 0, y, 0) - jnp.where(y < 0, x, 0)


@elementwise("mulhi")
def mulhi(op, x, y):
    if x.dtype.itemsize == 8:
        return op.call(_high_product, x, y)
    # Not in JAX, which has no wider integers without `jax_enable_x64`.
    wide = np.dtype(f"{'u' if x.dtype.kind == 'u' else ''}int64")
    product = op.Mul(op.cast(x, wide), op.cast(y, wide))
    shift = shift_right_logical if x.dtype.kind == "u" else shift_right_arithmetic
    return op.cast(shift(op, product, op.const(8 * x.dtype.itemsize, wide)), x.dtype)
