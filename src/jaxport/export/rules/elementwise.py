"""Elementwise primitives. Operands may have a deferred broadcast: ONNX's elementwise operators broadcast too."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import renamed, rule
from jaxport.export.rules import first_true, integer_division
from jaxport.onnx_facts import releases

elementwise = functools.partial(rule, broadcasts=True)

renamed(
    abs="Abs",
    add="Add",
    add_any="Add",
    ceil="Ceil",
    eq="Equal",
    exp="Exp",
    floor="Floor",
    ge="GreaterOrEqual",
    gt="Greater",
    le="LessOrEqual",
    log="Log",
    logistic="Sigmoid",
    lt="Less",
    sin="Sin",
    sqrt="Sqrt",
    sub="Sub",
    tanh="Tanh",
)


@elementwise("cos")
def cos(op, x):
    if x.dtype not in releases.missing("Cos") or x.dtype != np.float64:  # other dtypes are computed in a wider one
        return op.Cos(x)
    sine = op.Sin(op.Mul(x, 0.5))  # 1 - 2 sin²(x/2), as exact as a cosine for any x
    return op.Sub(1.0, op.Mul(op.Mul(sine, sine), 2.0))


@elementwise("mul")
def mul(op, x, y):
    return op.And(x, y) if x.dtype == bool else op.Mul(x, y)


@elementwise("max")
def maximum(op, x, y):
    if x.dtype == np.int64:  # the runtime's Max and Min compare int64 by halves, with wrong results
        return op.Where(op.Greater(x, y), x, y)
    return op.Or(x, y) if x.dtype == bool else op.Max(x, y)


@elementwise("min")
def minimum(op, x, y):
    if x.dtype == np.int64:
        return op.Where(op.Less(x, y), x, y)
    return op.And(x, y) if x.dtype == bool else op.Min(x, y)


@elementwise("ne")
def not_equal(op, x, y):
    return op.Not(op.Equal(x, y))


@elementwise("neg")
def negative(op, x):
    return op.Sub(op.const(0, x.dtype), x) if x.dtype.kind == "u" else op.Neg(x)


@elementwise("sign")
def sign(op, x):
    if op.walker.nonfinite != "exact" or x.dtype.kind in "iu":
        return op.Sign(x)
    zero, one = op.const(0, x.dtype), op.const(1, x.dtype)  # the runtime's Sign of -0.0 is 0.0
    return op.Where(op.Greater(x, zero), one, op.Where(op.Less(x, zero), op.const(-1, x.dtype), x))


@elementwise("is_finite")
def is_finite(op, x):
    return op.Not(op.Or(op.IsInf(x), op.IsNaN(x)))


@elementwise("square")
def square(op, x):
    return op.Mul(x, x)


# JAX's own form: exact near 1 too.
elementwise("one_minus_square", via=lambda x: (1 + x) * (1 - x))


def polynomial(x, *coefficients, unroll=None):
    """Evaluate a polynomial by Horner's rule; the coefficient of the highest power is the last."""
    return functools.reduce(lambda y, coefficient: y * x + coefficient, reversed(coefficients))


elementwise("polynomial", via=polynomial)


@elementwise("reciprocal", irrelevant=("approx", "full_range"))
def reciprocal(op, x):
    return op.Reciprocal(x)


@elementwise("rsqrt")
def rsqrt(op, x):
    return op.Reciprocal(op.Sqrt(x))


def bitwise(logical: str, integer: str):
    """Return a rule that uses one operator for booleans and another for integers."""

    def emits(op, *operands):
        return op.emit(logical if operands[0].dtype == bool else integer, *operands)

    emits.__qualname__ = f"{logical} or {integer}"
    return emits


elementwise("and")(bitwise("And", "BitwiseAnd"))
elementwise("or")(bitwise("Or", "BitwiseOr"))
elementwise("xor")(bitwise("Xor", "BitwiseXor"))
elementwise("not")(bitwise("Not", "BitwiseNot"))


def divisible(op, x, y):
    """Replace the divisors that crash or raise in a runtime; return the divisor and masks of zero and minus one."""
    zero, minus_one = op.Equal(y, 0), op.Equal(y, -1) if y.dtype.kind == "i" else None
    special = zero if minus_one is None else op.Or(zero, minus_one)
    return op.Where(special, op.const(1, y.dtype), y), zero, minus_one


@elementwise("div")
def div(op, x, y):
    if x.dtype.kind not in "iu" or (y.constant is not None and not np.isin(y.constant, (0, -1)).any()):
        return op.Div(x, y)
    safe, zero, minus_one = divisible(op, x, y)  # INT_MIN / -1 traps, x / 0 raises; JAX gives INT_MIN and -1
    quotient = op.Div(x, safe)
    if minus_one is not None:
        quotient = op.Where(minus_one, op.Neg(x), quotient)
    all_ones = op.const(-1 if x.dtype.kind == "i" else np.iinfo(x.dtype).max, x.dtype)
    return op.Where(zero, all_ones, quotient)


@elementwise("rem")
def rem(op, x, y):
    if x.dtype.kind not in "iu":
        return op.Mod(x, y, fmod=1)
    constant = y.constant is not None and not np.isin(y.constant, (0, -1)).any()
    safe, zero, _ = (y, None, None) if constant else divisible(op, x, y)
    # The runtime's integer fmod is computed in double, and its Mod has the divisor's sign, so subtract the quotient.
    remainder = op.Sub(x, op.Mul(op.Div(x, safe), safe)) if x.dtype.kind == "i" else op.Mod(x, safe)
    return remainder if zero is None else op.Where(zero, x, remainder)  # by -1 it is 0, as by 1


@elementwise("pow")
def power(op, x, y):
    if x.dtype.kind in "iu":
        op.refuse("raises an integer to the power of an array; cast the base to a float")
    return op.Pow(x, y)


@elementwise("integer_pow")
def integer_pow(op, x, *, y):
    return x if y == 1 else op.call(_multiply_out, x, exponent=y)


def _multiply_out(x, *, exponent):
    """Compute a power by repeated squaring, as XLA does: exact for integers, which ONNX's Pow is not."""
    if exponent < 0:
        return 1 / _multiply_out(x, exponent=-exponent)
    result, base = None, x
    while exponent:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        base = base * base if exponent else base
    return jnp.ones_like(x) if result is None else result


@elementwise("convert_element_type", irrelevant=("weak_type",))
def convert_element_type(op, x, *, new_dtype):
    new_dtype = np.dtype(new_dtype)
    floating, integer = jnp.issubdtype(x.dtype, np.floating), jnp.issubdtype(new_dtype, np.integer)
    if floating and integer:
        return saturating_cast(op, x, new_dtype)
    if integer and x.dtype != bool and jnp.iinfo(new_dtype).bits < 8:
        return op.cast(wrapped(op, x, jnp.iinfo(new_dtype)), new_dtype)
    if new_dtype.name == "float8_e8m0fnu" and not x.is_constant:
        return power_of_two(op, x, new_dtype)
    return op.cast(x, new_dtype)


def power_of_two(op, x, dtype):
    """Round to the nearest number of a type with powers of two only; NaN of zero, below it, and beyond the greatest."""
    if op.opset < 24:
        op.refuse(f"needs Cast to {dtype.name} that rounds, which is new in opset 24; export with opset=24")
    x = op.cast(x, np.float32)
    inside = op.And(op.Greater(x, 0.0), op.Less(x, 1.5 * float(jnp.finfo(dtype).max)))
    return op.Cast(op.Where(inside, x, op.const(np.nan, np.float32)), to=dtype, round_mode="nearest")


def wrapped(op, x, limits):
    """Wrap integers to a type below 8 bits, as int8: ONNX leaves open what happens out of range."""
    size, low = op.const(1 << limits.bits, np.int8), op.const(limits.min, np.int8)
    return op.Add(op.Mod(op.Sub(op.cast(x, np.int8), low), size), low)


def saturating_cast(op, x, dtype):
    """Cast float to integer as JAX does: NaN gives 0, out-of-range values the nearest bound. ONNX leaves both open."""
    if x.dtype not in (np.float32, np.float64):
        x = op.cast(x, np.float32)
    limits = jnp.iinfo(dtype)
    low, high = (np.asarray(int(bound)).astype(x.dtype) for bound in (limits.min, limits.max))
    if op.walker.keeps_nan:
        x = op.Where(op.IsNaN(x), op.const(0, x.dtype), x)
    if int(high) == limits.max:
        x = op.Clip(x, op.const(low), op.const(high))
        return op.cast(op.cast(x, np.int8) if limits.bits < 8 else x, dtype)  # the runtime rounds narrower casts
    x = op.Max(x, op.const(low))
    if dtype == np.uint32:  # by its bits as int32, since runtimes would select in int64, which JAX has by choice only
        negative = op.Min(op.Sub(x, op.const(2.0**32, x.dtype)), op.const(-1, x.dtype))
        x = op.Where(op.GreaterOrEqual(x, op.const(2.0**31, x.dtype)), negative, x)
        return op.cast(op.cast(x, np.int32), dtype)
    inside = op.cast(x, dtype)  # the upper bound is no float: select it after the cast
    return op.Where(op.GreaterOrEqual(x, op.const(high)), op.const(limits.max, dtype), inside)


@elementwise("select_n")
def select_n(op, which, *cases):
    if which.dtype == bool:
        if len(cases) == 1:
            return cases[0]
        return integer_division.corrected(op, which, cases[1], cases[0]) or where(op, which, cases[1], cases[0])
    conditions = first_true.conditions(op, which)
    if conditions is not None and len(conditions) == len(cases):
        result = cases[0]
        for condition, case in zip(conditions[:0:-1], cases[:0:-1], strict=True):
            result = where(op, condition, case, result)
        return result if _all(conditions[0], False) else where(op, conditions[0], cases[0], result)
    result = cases[-1]
    for index in range(len(cases) - 2, -1, -1):
        result = where(op, op.LessOrEqual(which, index), cases[index], result)
    return result


def where(op, condition, x, y):
    """Return `x` where the condition holds, else `y`; booleans by logic, which needs no cast."""
    if x.dtype == bool:
        kept = condition if _all(x, True) else op.And(condition, x)
        if _all(y, False):
            return kept
        other = op.Not(condition) if _all(y, True) else op.And(op.Not(condition), y)
        return other if _all(x, False) else op.Or(kept, other)
    return op.Where(condition, x, y)


def _all(x, value):
    """Whether all elements of `x` are known to be `value`."""
    return x.constant is not None and bool((x.constant == value).all())


@elementwise("clamp")
def clamp(op, low, x, high):
    scalars = low.shape == high.shape == () and x.dtype != np.int64
    # The runtime's Clip passes over a bound that is NaN.
    numbers = (
        not jnp.issubdtype(x.dtype, np.floating) or not op.walker.keeps_nan or not any(map(_may_be_nan, (low, high)))
    )
    return op.Clip(x, low, high) if scalars and numbers else minimum(op, maximum(op, x, low), high)


def _may_be_nan(x):
    return x.constant is None or bool(np.isnan(x.constant).any())


@elementwise("round")
def round_(op, x, *, rounding_method):
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        return op.Round(x)
    # Half away from zero: the nearest even number, but for numbers halfway between two. It has the sign of x.
    even, half = op.Round(x), 0.5
    between = op.Equal(op.Abs(op.Sub(x, even)), op.const(half, x.dtype))
    return op.Where(between, op.Add(x, op.Clip(x, op.const(-half, x.dtype), op.const(half, x.dtype))), even)
