"""Complex numbers as pairs of real ones: the definition of each primitive.

Every function takes a `Pair` for a complex operand and returns one for a complex result, and takes the parameters of
its primitive as keywords. Formulas that need other complex functions use those of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import Rule
from jaxport.jaxprs import INFINITE_BESIDE_NAN, PythonFunction


class Pair(NamedTuple):
    """A complex array: its real and its imaginary part."""

    re: Any
    im: Any

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parts."""
        return self.re.dtype


def real_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of the parts of a complex dtype.

    >>> real_dtype(np.complex64)
    dtype('float32')
    """
    return np.empty(0, dtype).real.dtype


def each(function: PythonFunction) -> PythonFunction:
    """Return a function of one or several operands that applies to both parts separately."""

    def parts(*operands: Pair) -> Pair:
        return Pair(function(*(x.re for x in operands)), function(*(x.im for x in operands)))

    return parts


# Arithmetic


add, sub, neg = each(lax.add), each(lax.sub), each(lax.neg)


def pair(re, im):
    return Pair(re, im)


def conj(x):
    return Pair(x.re, -x.im) if isinstance(x, Pair) else Pair(x, jnp.zeros_like(x))


def mul(x, y):
    return Pair(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)


def scaled(x, factor):
    """Multiply a complex number by a real one."""
    return Pair(x.re * factor, x.im * factor)


def square(x):
    level = (jnp.abs(x.re) == jnp.abs(x.im)) & jnp.isfinite(x.re)
    return Pair(jnp.where(level, 0, (x.re + x.im) * (x.re - x.im)), x.re * x.im * 2)


def choose(condition, x, y):
    """Return `x` if the condition holds, else `y`."""
    return Pair(jnp.where(condition, x.re, y.re), jnp.where(condition, x.im, y.im))


def div(x, y):
    """Divide by Smith's formula, whose steps do not overflow; if it gives NaN, follow C for zeros and infinities."""
    steep = jnp.abs(y.re) < jnp.abs(y.im)
    over, under = choose(steep, over_i(x), x), choose(steep, over_i(y), y)
    ratio = under.im / under.re
    size = under.re + ratio * under.im
    quotient = Pair((over.re + over.im * ratio) / size, (over.im - over.re * ratio) / size)
    for_x, for_y = (each(lambda part: jnp.where(jnp.isinf(part), jnp.sign(part), 0))(z) for z in (x, y))
    infinite_x, infinite_y = infinite(x), infinite(y)
    of_infinity = scaled(mul(for_x, conj(y)), np.asarray(np.inf, x.dtype))
    by_infinity = scaled(mul(x, conj(for_y)), 0)
    special = choose(infinite_x & ~infinite_y, of_infinity, choose(infinite_y & ~infinite_x, by_infinity, quotient))
    special = choose((y.re == 0) & (y.im == 0), scaled(x, 1 / y.re), special)
    return choose(jnp.isnan(quotient.re) & jnp.isnan(quotient.im), special, quotient)


def reciprocal(x):
    return div(Pair(jnp.ones_like(x.re), jnp.zeros_like(x.im)), x)


def infinite(x):
    return jnp.isinf(x.re) | jnp.isinf(x.im)


def absolute(x, part=1.0):
    """Return the distance from zero, or a part of it, without overflow."""
    a, b = jnp.abs(x.re), jnp.abs(x.im)
    large, small = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = small / jnp.where(large == 0, 1, large)
    size = large * part * jnp.sqrt(1 + ratio * ratio)
    return jnp.where(jnp.isinf(large), large, size)


def modulus(x):
    """Return `absolute`, with NaN as in JAX."""
    if not INFINITE_BESIDE_NAN:
        return absolute(x)
    return jnp.where(jnp.isinf(x.re) | jnp.isinf(x.im), np.asarray(np.inf, x.dtype), absolute(x))


def sign(x):
    size = absolute(x)
    safe = jnp.where(size == 0, 1, size)
    return Pair(x.re / safe, x.im / safe)


def integer_pow(x, *, y):
    """Compute a power by repeated squaring."""
    if y == 0:
        return Pair(jnp.ones_like(x.re), jnp.zeros_like(x.im))
    result, power, count = None, x, abs(y)
    while count:
        if count & 1:
            result = power if result is None else mul(result, power)
        count >>= 1
        power = mul(power, power) if count else power
    return reciprocal(result) if y < 0 else result


# Exponentials and logarithms


def times(size, wave):
    """Return a product that is zero if its second factor is, however large the first."""
    return jnp.where(wave == 0, wave, size * wave)


def polar(size, turn):
    return Pair(size * jnp.cos(turn), size * jnp.sin(turn))


def exp(x):
    half = jnp.exp(x.re / 2)  # the result may be infinite although a part of it is not
    return Pair(half * jnp.cos(x.im) * half, times(half, times(half, jnp.sin(x.im))))


def expm1(x):
    half = jnp.sin(x.im / 2)
    return Pair(jnp.expm1(x.re) * jnp.cos(x.im) - 2 * half * half, times(jnp.exp(x.re), jnp.sin(x.im)))


def angle(x):
    return jnp.arctan2(x.im, x.re)


def log(x):
    a, b = jnp.abs(x.re), jnp.abs(x.im)
    large, small = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = jnp.where((large == 0) | jnp.isinf(large), 0, small / jnp.where(large == 0, 1, large))
    return Pair(jnp.log(large) + jnp.log1p(ratio * ratio) / 2, angle(x))


def log1p(x):
    near = jnp.log1p(x.re * (2 + x.re) + x.im * x.im) / 2
    moved = Pair(1 + x.re, x.im)
    return Pair(jnp.where(absolute(x) < 0.5, near, log(moved).re), angle(moved))


def power(x, y):
    """Return |x|^c e^(-d arg) at the angle c arg + d log|x|, for y = c + i d; a real or integer y has no d."""
    y = y if isinstance(y, Pair) else Pair(y.astype(x.dtype), jnp.zeros_like(y, x.dtype))
    size, turn = absolute(x), angle(x)
    result = polar(size**y.re * jnp.exp(-y.im * turn), y.re * turn + y.im * jnp.log(size))
    # Zero and infinity have powers with real exponents; other exponents have no angle.
    bare = (y.im == 0) & ((size == 0) | ((x.re == np.inf) & (x.im == 0)))
    limit = jnp.where((size == 0) & (y.re < 0), np.asarray(np.nan, x.dtype), size**y.re)
    result = choose(bare, Pair(limit, jnp.where(jnp.isnan(limit), limit, 0)), result)
    one = ((y.re == 0) & (y.im == 0)) | ((x.re == 1) & (x.im == 0))
    return Pair(jnp.where(one, 1, result.re), jnp.where(one, 0, result.im))


def exp2(x):
    return exp(mul(Pair(np.asarray(np.log(2), x.dtype), np.asarray(0, x.dtype)), x))


def logistic(x):
    """Return 1 / (1 + e^-x)."""
    below = exp(neg(x))
    return reciprocal(Pair(1 + below.re, below.im))


def sqrt(x):
    """Compute Kahan's square root: the part that would cancel is computed from the other by division."""
    large = 2 * jnp.sqrt(jnp.abs(x.re) / 8 + absolute(x, 1 / 8))
    small = jnp.abs(x.im) / (2 * jnp.where(large == 0, 1, large))
    small = jnp.where(jnp.isinf(x.im), large, jnp.where(jnp.isinf(large), 0, small))
    right = x.re >= 0
    size = jnp.where(right, small, large)
    return Pair(jnp.where(right, large, small), jnp.where(x.im < 0, -size, size))


def rsqrt(x):
    size = absolute(x, 1 / 4)
    turn = jnp.where(size == 0, np.inf, angle(x) / -2)  # zero has none
    result = polar(lax.rsqrt(size) / 2, turn)
    return Pair(
        jnp.where(size == 0, np.inf, jnp.where(infinite(x), 0, result.re)), jnp.where(infinite(x), 0, result.im)
    )


# Circular and hyperbolic functions


def times_i(x):
    return Pair(-x.im, x.re)


def over_i(x):
    return Pair(x.im, -x.re)


def rotated(function: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """Return f(i x) / i, which turns a circular function into a hyperbolic one, and the reverse."""
    return lambda x: over_i(function(times_i(x)))


def sinh(x):
    return Pair(jnp.sinh(x.re) * jnp.cos(x.im), times(jnp.cosh(x.re), jnp.sin(x.im)))


def cosh(x):
    return Pair(jnp.cosh(x.re) * jnp.cos(x.im), times(jnp.sinh(x.re), jnp.sin(x.im)))


def tanh(x):
    """Divide by sinh² + cos², which has no cancellation; for large x only its direction counts."""
    limit = np.asarray(0.45 * np.log(np.finfo(x.dtype).max), x.dtype)
    a = jnp.clip(x.re, -limit, limit)
    sine, cosine = jnp.sin(x.im), jnp.cos(x.im)
    below = jnp.square(jnp.sinh(a)) + cosine * cosine
    far = (jnp.abs(x.re) > limit) & (jnp.isfinite(x.im) | jnp.isinf(x.re))
    re = jnp.where(far, jnp.sign(x.re), jnp.sinh(a) * jnp.cosh(a) / below)
    return Pair(re, jnp.where(far | (x.im == 0), 0, sine * cosine / below))


def cos(x):
    return cosh(times_i(x))


def mirrored(function: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """Return a function that takes its values below the real axis as the conjugates of those above."""

    def everywhere(x: Pair) -> Pair:
        above = function(Pair(x.re, jnp.abs(x.im)))
        return Pair(above.re, jnp.where(x.im < 0, -above.im, above.im))

    return everywhere


def roots(x):
    """Return the roots of x + 1, and of x - 1 or of mirrored 1 - x, from which Kahan derives the inverse functions."""
    return sqrt(Pair(x.re + 1, x.im)), sqrt(Pair(x.re - 1, x.im)), sqrt(Pair(1 - x.re, x.im))


def doubled_log(x):
    """Return log(2 |x|) of large numbers, and whether they are so large that the other formulas overflow."""
    a, b = jnp.abs(x.re), jnp.abs(x.im)
    swap = (b > a) | jnp.isinf(b)
    large, small = jnp.where(swap, b, a), jnp.where(swap, a, b)
    ratio = jnp.where(jnp.isinf(large) | jnp.isnan(small), 0, small / large)
    limit = np.asarray(np.sqrt(np.finfo(x.dtype).max) / 8, x.dtype)
    return np.asarray(np.log(2), x.dtype) + jnp.log(large) + jnp.log1p(ratio * ratio) / 2, large >= limit


@mirrored
def acos(x):
    above, _, below = roots(x)
    near = Pair(2 * jnp.arctan2(below.re, above.re), -jnp.arcsinh(mul(above, below).im))
    size, far = doubled_log(x)
    return choose(far, Pair(jnp.arctan2(x.im, x.re), -size), near)


@mirrored
def asin(x):
    above, _, below = roots(x)
    near = Pair(jnp.arctan2(x.re, mul(above, conj(below)).re), jnp.arcsinh(mul(above, below).im))
    size, far = doubled_log(x)
    return choose(far, Pair(jnp.arctan2(x.re, x.im), size), near)


@mirrored
def acosh(x):
    above, below, _ = roots(x)
    near = Pair(jnp.arcsinh(mul(above, conj(below)).re), 2 * jnp.arctan2(below.im, above.re))
    size, far = doubled_log(x)
    return choose(far, Pair(size, jnp.arctan2(x.im, x.re)), near)


def atanh(x):
    """Compute Kahan's formula; far from 1 and -1 the imaginary part is a right angle, and the real part that of 1/x."""
    a, b = jnp.abs(x.re), x.im
    limit = np.asarray(np.finfo(x.dtype).max ** (3 / 8), x.dtype)
    near = (a < limit) & (jnp.abs(b) < limit)
    far = jnp.where(jnp.abs(b) / np.finfo(x.dtype).eps < a, 1 / a, 1 / ((a / b + b / a) * b))
    far = jnp.where(infinite(x), 0, far)
    size = jnp.where(near, a / (jnp.square(1 - a) + b * b), far)
    turn = jnp.arctan2(b + b, (1 - a) * (1 + a) - b * b)
    turn = jnp.where(near, turn, side(b) * np.asarray(np.pi, x.dtype))
    return Pair(side(x.re) * jnp.log1p(4 * size) / 4, turn / 2)


def side(x):
    """Return 1 from zero on, -1 below."""
    return jnp.where(x >= 0, np.asarray(1, x.dtype), np.asarray(-1, x.dtype))


def atan2(y, x):
    """Return -i log((x + i y) / sqrt(x² + y²))."""
    return over_i(log(div(add(x, times_i(y)), sqrt(add(mul(x, x), mul(y, y))))))


# Comparisons and choices


def eq(x, y):
    return (x.re == y.re) & (x.im == y.im)


def ne(x, y):
    return (x.re != y.re) | (x.im != y.im)


def first(before: PythonFunction) -> Callable[[Pair, Pair], Pair]:
    """Return the smaller (or larger) of two numbers, by the real parts, then by the imaginary parts."""

    def chosen(x: Pair, y: Pair) -> Pair:
        takes = before(x.re, y.re) | ((x.re == y.re) & before(x.im, y.im))
        return Pair(jnp.where(takes, x.re, y.re), jnp.where(takes, x.im, y.im))

    return chosen


maximum, minimum = first(jnp.greater), first(jnp.less)


def convert_element_type(x, *, new_dtype):
    if not isinstance(x, Pair):
        re = lax.convert_element_type(x, real_dtype(new_dtype))
        return Pair(re, jnp.zeros_like(re))
    if np.dtype(new_dtype).kind != "c":
        return lax.convert_element_type(x.re, new_dtype)
    return each(lambda part: lax.convert_element_type(part, real_dtype(new_dtype)))(x)


def iota(*sizes, dtype, shape, dimension):
    re = lax.broadcasted_iota(real_dtype(dtype), shape, dimension)
    return Pair(re, jnp.zeros_like(re))


def sort(*operands, dimension, is_stable, num_keys):
    """Sort by the real parts, then by the imaginary parts, as separate keys."""
    parts = [part for x in operands for part in (x if isinstance(x, Pair) else (x,))]
    keys = num_keys + sum(isinstance(x, Pair) for x in operands[:num_keys])
    moved = iter(lax.sort(parts, dimension=dimension, is_stable=is_stable, num_keys=keys))
    return [Pair(next(moved), next(moved)) if isinstance(x, Pair) else next(moved) for x in operands]


# Along axes: operations that are not real ones run as scans


def one_after_the_other(combine, start, x, axis, reverse=False):
    """Combine the slices along an axis in turn; return the last result, and all of them."""
    rows = Pair(*(jnp.moveaxis(part, axis, 0) for part in x))

    def step(before, row):
        now = combine(before, row)
        return now, now

    first_ = Pair(*(jnp.full(rows.re.shape[1:], part, x.dtype) for part in start))
    last, all_ = lax.scan(step, first_, rows, reverse=reverse)
    return last, Pair(*(jnp.moveaxis(part, 0, axis) for part in all_))


def cumulative(combine: PythonFunction, start: tuple[float, float]) -> PythonFunction:
    def accumulated(x, *, axis, reverse):
        return one_after_the_other(combine, start, x, axis, reverse)[1]

    return accumulated


def log_add_exp(x, y):
    """Return log(e^x + e^y), without overflow."""
    large, small = maximum(x, y), minimum(x, y)
    total = add(large, log1p(exp(sub(small, large))))
    return Pair(*(jnp.where(jnp.isneginf(small.re), known, new) for known, new in zip(large, total, strict=True)))


def reduce_prod(x, *, axes):
    for axis in sorted(axes, reverse=True):
        x = one_after_the_other(mul, (1, 0), x, axis)[0]
    return x


def extremum(reduce: PythonFunction, worst: float) -> PythonFunction:
    """Return the extremum of the real parts, and of the imaginary parts of the elements that attain it."""

    def reduced(x: Pair, *, axes: Sequence[int]) -> Pair:
        re = reduce(x.re, axis=axes, keepdims=True)
        im = reduce(jnp.where(x.re == re, x.im, np.asarray(worst, x.dtype)), axis=axes)
        return Pair(jnp.squeeze(re, axes), im)

    return reduced


def of_devices(reduced: PythonFunction) -> PythonFunction:
    """Return a reduction over axes of the array (left by `vmap`), and over named axes with one array each."""

    def over_axes(x, *, axes, axis_index_groups=None):
        positions = tuple(axis for axis in axes if isinstance(axis, int))
        return reduced(x, axes=positions) if positions else x

    return over_axes


#: Primitives defined by one formula each.
FORMULAS: dict[str, Rule] = {
    name: Rule(name, function, via=True, irrelevant=frozenset({"input_dtype", "weak_type"}))
    for name, function in {
        "abs": modulus,
        "acos": acos,
        "acosh": acosh,
        "asin": asin,
        "asinh": rotated(asin),
        "atan": rotated(atanh),
        "atan2": atan2,
        "atanh": atanh,
        "clamp": lambda low, x, high: minimum(maximum(x, low), high),
        "complex": pair,
        "conj": conj,
        "convert_element_type": convert_element_type,
        "cos": cos,
        "cosh": cosh,
        "cumlogsumexp": cumulative(log_add_exp, (-np.inf, 0)),
        "cummax": cumulative(maximum, (-np.inf, -np.inf)),
        "cummin": cumulative(minimum, (np.inf, np.inf)),
        "cumprod": cumulative(mul, (1, 0)),
        "div": div,
        "eq": eq,
        "exp": exp,
        "exp2": exp2,
        "expm1": expm1,
        "imag": lambda x: x.im,
        "integer_pow": integer_pow,
        "iota": iota,
        "log": log,
        "log1p": log1p,
        "log2": lambda x: each(lambda part: part * np.asarray(1 / np.log(2), part.dtype))(log(x)),
        "logistic": logistic,
        "max": maximum,
        "min": minimum,
        "mul": mul,
        "ne": ne,
        "pmax": of_devices(extremum(jnp.max, -np.inf)),
        "pmin": of_devices(extremum(jnp.min, np.inf)),
        "pow": power,
        "real": lambda x: x.re,
        "reduce_max": extremum(jnp.max, -np.inf),
        "reduce_min": extremum(jnp.min, np.inf),
        "reduce_prod": reduce_prod,
        "rsqrt": rsqrt,
        "sign": sign,
        "sin": rotated(sinh),
        "sinh": sinh,
        "sort": sort,
        "sqrt": sqrt,
        "square": square,
        "tan": rotated(tanh),
        "tanh": tanh,
    }.items()
}
