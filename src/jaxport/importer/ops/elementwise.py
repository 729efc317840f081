"""Elementwise operators: arithmetic, comparisons, logic, bits, elementary functions."""

from __future__ import annotations

import operator
from functools import reduce

import numpy as np

from jaxport.errors import Refusal, Unsupported
from jaxport.importer.ops.arithmetic import divide, integer_power
from jaxport.importer.resolving.registry import op, renamed
from jaxport.importer.values.dtypes import canonical, dtype_of
from jaxport.importer.values.host import HostValue, Tensor
from jaxport.importer.values.namespaces import cast, jnp, known, lax, nn
from jaxport.jaxprs import PythonFunction

renamed(since=6, Abs=jnp.abs, Ceil=jnp.ceil, Exp=jnp.exp, Floor=jnp.floor, Log=jnp.log, Neg=jnp.negative)
renamed(since=6, Sqrt=jnp.sqrt, Tanh=jnp.tanh)
renamed(since=6, Relu=nn.relu, Sigmoid=nn.sigmoid)
renamed(since=7, Acos=jnp.arccos, Asin=jnp.arcsin, Atan=jnp.arctan, Cos=jnp.cos, Sin=jnp.sin, Tan=jnp.tan)
renamed(since=9, Acosh=jnp.arccosh, Asinh=jnp.arcsinh, Atanh=jnp.arctanh, Cosh=jnp.cosh, Sinh=jnp.sinh)
renamed(since=9, Erf=lax.erf, Sign=jnp.sign, IsNaN=jnp.isnan)
renamed(since=11, Round=jnp.round)
renamed(since=1, Not=jnp.logical_not)
renamed(since=18, BitwiseAnd=jnp.bitwise_and, BitwiseOr=jnp.bitwise_or, BitwiseXor=jnp.bitwise_xor)
renamed(since=18, BitwiseNot=jnp.bitwise_not)
renamed(since=9, Where=jnp.where)

BINARY = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "And": jnp.logical_and,
    "Or": jnp.logical_or,
    "Xor": jnp.logical_xor,
    "Equal": operator.eq,
    "Less": operator.lt,
    "Greater": operator.gt,
}
renamed(since=7, **BINARY)
renamed(since=12, LessOrEqual=operator.le, GreaterOrEqual=operator.ge)


@op("Div", since=7)
def div(A, B):
    return divide(A, B)


@op("Reciprocal", since=6)
def reciprocal(X):
    if X.dtype == np.float16:  # its derivative is a quotient by the square
        return cast(jnp.reciprocal(cast(X, np.float32)), X.dtype)
    return jnp.reciprocal(X)


def _is_small(exponent: HostValue | None) -> bool:
    """Whether all exponents are known, and such that JAX's power of integers is right."""
    return exponent is not None and bool(np.all((exponent.data >= 0) & (exponent.data < 64)))


@op("Pow", since=7)
def power(X, Y):
    exponent = known(Y)
    if X.dtype.kind == "i" and Y.dtype.kind == "i" and not _is_small(exponent):
        return integer_power(X, Y)
    if exponent is None or exponent.size != 1 or exponent.ndim > X.ndim or X.dtype.kind != "f":
        return jnp.power(X, Y)
    number = exponent.item()
    return X ** int(number) if number in (2, 3, 4) else jnp.power(X, Y)  # products are exact, fast and differentiable


def _aligned(A: Tensor, B: Tensor, axis: int | None, broadcast: int) -> Tensor:
    """Return `B` with trailing axes of size one, to align its first axis with `axis` of `A` (opset 6 and older)."""
    if not broadcast or axis is None:
        return B
    return jnp.reshape(B, (*B.shape, *[1] * (A.ndim - axis % A.ndim - B.ndim)))


def _legacy(name: str, since: int, function: PythonFunction) -> None:
    """Register the version of a binary operator that broadcasts only if an attribute says so."""

    @op(name, since=since, until=6)
    def aligned(A, B, *, axis=None, broadcast=0):
        return function(A, _aligned(A, B, axis, broadcast))


@op("Pow", since=1, until=6)
def power_aligned(X, Y, *, axis=None, broadcast=0):
    return power(X, _aligned(X, Y, axis, broadcast))


for _name, _function in (*BINARY.items(), ("Div", div)):
    _legacy(_name, 6 if _name in ("Add", "Sub", "Mul", "Div") else 1, _function)


@op("Max", since=6)
def maximum(*data_0):
    return reduce(jnp.maximum, data_0)


@op("Min", since=6)
def minimum(*data_0):
    return reduce(jnp.minimum, data_0)


@op("Sum", since=6)
def sum_(*data_0):
    return reduce(operator.add, data_0)


@op("Mean", since=6)
def mean(*data_0):
    return divide(reduce(operator.add, data_0), len(data_0))


@op("Mod", since=10)
def mod(A, B, *, fmod=0):
    return jnp.fmod(A, B) if fmod else jnp.mod(A, B)


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
