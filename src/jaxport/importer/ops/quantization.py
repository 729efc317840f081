"""Quantization: to and from small types with a scale and a zero point, and products of quantized tensors."""

from __future__ import annotations

import math
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxport.importer.ops.arithmetic import divide
from jaxport.importer.ops.casting import converted
from jaxport.importer.ops.convolution import ConvolutionAttributes, conv
from jaxport.importer.resolving.registry import earlier, op, variant
from jaxport.importer.values.dtypes import dtype_of
from jaxport.importer.values.host import Tensor, host
from jaxport.importer.values.image_layout import ONNX
from jaxport.importer.values.namespaces import cast, helper, jnp, known, lax
from jaxport.importer.values.recording import active
from jaxport.jaxprs import PythonFunction, dims


def spread(parameter: Any, x: Tensor, axis: int, block_size: int = 0) -> Tensor:
    """Return a scale or zero point as it broadcasts against `x`: single, per index of `axis`, or per block."""
    if parameter.size == 1:
        return jnp.reshape(parameter, ())
    if parameter.ndim == 1 and not block_size:
        after = x.ndim - 1 - axis % x.ndim
        return jnp.reshape(parameter, (-1, *[1] * after)) if after else parameter
    repeated = jnp.repeat(parameter, block_size, axis=axis)
    size = x.shape[axis]
    return repeated if repeated.shape[axis] == size else lax.slice_in_dim(repeated, 0, size, axis=axis)


def is_zero(zero_point: Tensor | None) -> bool:
    """Whether a zero point is absent, or known to be zero, and need not be added."""
    value = None if zero_point is None else known(zero_point)
    return zero_point is None or (value is not None and not np.any(np.asarray(value.data, np.float32)))


def saturated(rounded: Tensor, zero_point: Tensor | None, dtype: np.dtype) -> Tensor:
    """Add a zero point to whole numbers, clip to the range of an integer type of at most 16 bits, and convert."""
    limits = ml_dtypes.iinfo(dtype)
    shifted = rounded if is_zero(zero_point) else rounded + cast(zero_point, rounded.dtype)
    clipped = jnp.clip(shifted, limits.min, limits.max)
    return converted(cast(clipped, np.int32), dtype) if limits.bits < 8 else cast(clipped, dtype)


def is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" or dtype.name in ("int2", "uint2", "int4", "uint4")


@helper
def unshared(divisor, x):
    """Return a divisor of `x` of which XLA does not see that all elements share it.

    Else it multiplies by the reciprocal, which often gives a neighbouring float, and a step more or less after
    rounding.
    """
    return jnp.where(jnp.isnan(x), x, divisor)


@op("QuantizeLinear", since=23)
def quantize(x, y_scale, y_zero_point=None, *, axis=1, block_size=0, output_dtype=0, precision=0, saturate=1):
    dtype = y_zero_point.dtype if y_zero_point is not None else dtype_of(output_dtype or 2)
    if precision:
        x, y_scale = cast(x, dtype_of(precision)), cast(y_scale, dtype_of(precision))
    scale = spread(y_scale, x, axis, block_size)
    y = divide(x, scale if active() is not None else unshared(scale, x))
    zero_point = None if is_zero(y_zero_point) else spread(y_zero_point, x, axis, block_size)
    if is_integer(dtype):
        return saturated(cast(jnp.round(y), np.float32), zero_point, dtype)
    return converted(y if zero_point is None else y + cast(zero_point, y.dtype), dtype, saturate)


earlier("QuantizeLinear", since=21, until=22, without="precision")
earlier("QuantizeLinear", since=19, until=20, without="block_size output_dtype")
earlier("QuantizeLinear", since=13, until=18, without="saturate")
earlier("QuantizeLinear", since=10, until=12, without="axis")


@op("DequantizeLinear", since=23)
def dequantize(x, x_scale, x_zero_point=None, *, axis=1, block_size=0, output_dtype=0):
    dtype = dtype_of(output_dtype) if output_dtype else x_scale.dtype
    # The differences are exact in float32, whatever the type of the result.
    y = cast(x, np.float32)
    if not is_zero(x_zero_point):
        y = y - cast(spread(x_zero_point, x, axis, block_size), np.float32)
    return cast(y * spread(x_scale, x, axis, block_size), dtype)


earlier("DequantizeLinear", since=21, until=22, without="output_dtype")
earlier("DequantizeLinear", since=13, until=20, without="block_size")
earlier("DequantizeLinear", since=10, until=12, without="axis")


@helper
def fake_quantized(x, scale, zero_point, dtype):
    """Return `x` rounded to the values that an integer type has with a scale and a zero point."""
    low, high = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    whole = jnp.clip(jnp.round(x / unshared(scale, x)) + zero_point, low, high).astype(dtype)
    return (whole.astype(x.dtype) - zero_point) * scale


@helper
def extremes(x):
    """Return the least and the greatest element, whose derivatives are those of one element each.

    JAX divides the derivative of a maximum by the number of elements that equal it. That may be zero: XLA recomputes
    `x` for the comparison, and may round differently there.
    """

    @jax.custom_jvp
    def both(x):
        return jnp.min(x), jnp.max(x)

    @both.defjvp
    def moved(primals, tangents):
        (x,), (slope,) = primals, tangents
        slopes = jnp.ravel(slope)
        return both(x), (slopes[jnp.argmin(x)], slopes[jnp.argmax(x)])

    return both(x)


@helper
def dynamically_quantized(x):
    """Return `x` as uint8, and the scale and the zero point that its least and its greatest element give."""
    least, greatest = extremes(x)
    low, high = jnp.minimum(least, 0), jnp.maximum(greatest, 0)
    width = jnp.where(high == low, 1, high - low)
    scale = width / unshared(255, width)
    zero_point = jnp.round(jnp.clip(-low / unshared(scale, low), 0, 255))
    whole = jnp.clip(jnp.round(x / unshared(scale, x)) + zero_point, 0, 255)
    return whole.astype(jnp.uint8), scale, zero_point.astype(jnp.uint8)


@helper
def dynamic_product(x, kernel, scale, zero_point=None):
    """Return `x @ kernel` in integers: `x` rounded to 256 steps between its least and its greatest element, the kernel
    as int8.

    The signs of `x` and the zero points are corrected by the sums of the columns and of the rows.
    """
    whole, step, origin = dynamically_quantized(x)
    rows = (whole.astype(jnp.int32) - 128).astype(jnp.int8)
    offset = 128 - origin.astype(jnp.int32)
    product = jnp.matmul(rows, kernel, preferred_element_type=jnp.int32)
    product = product + offset * jnp.sum(kernel, axis=0, dtype=jnp.int32)
    if zero_point is not None:
        sums = jnp.sum(rows.astype(jnp.int32) + offset, axis=-1, keepdims=True)
        product = product - sums * zero_point.astype(jnp.int32)
    return product.astype(jnp.float32) * (step * scale)


@op("DynamicQuantizeLinear", since=11)
def dynamic_quantize(x):
    return dynamically_quantized(x)


def centered(x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    """Return `x - zero_point` as int32, with a single zero point or one for each index of `axis`."""
    x = cast(x, np.int32)
    return x if is_zero(zero_point) else x - cast(_along(zero_point, x, axis), np.int32)


def _along(parameter: Any, x: Tensor, axis: int) -> Tensor:
    return spread(parameter, x, axis) if parameter.ndim < 2 else parameter


def as_int8(x: Tensor) -> tuple[Tensor, int]:
    """Return 8-bit integers shifted into the range of int8, and the shift: 0 or 128."""
    return (x, 0) if x.dtype.kind == "i" else (cast(cast(x, np.int32) - 128, np.int8), 128)


def _offset(shift: int, zero_point: Tensor | None, x: Tensor, axis: int) -> Tensor | int | None:
    """Return what to add to `x` less `shift` so that its zero point becomes 0; None to add nothing."""
    if is_zero(zero_point):
        return shift or None
    return shift - cast(_along(zero_point, x, axis), np.int32)


def product_with(B: Tensor, b_zero_point: Tensor | None = None) -> PythonFunction:
    """Return a function that multiplies 8-bit matrices less zero points by `B` less its own, exactly, as int32.

    XLA multiplies int8 several times as fast as int32. The effect of signs and zero points is corrected by the sums of
    the columns, which are computed once, and of the rows.
    """
    columns, shift = as_int8(B)
    sums = jnp.sum(columns, axis=-2, keepdims=True, dtype=np.int32)
    of_columns = _offset(shift, b_zero_point, B, -1)

    def multiplied(A: Tensor, a_zero_point: Tensor | None = None) -> Tensor:
        rows, shift = as_int8(A)
        of_rows = _offset(shift, a_zero_point, A, -2)
        product = jnp.matmul(rows, columns, preferred_element_type=np.int32)
        if of_rows is not None:
            product = product + of_rows * sums
        if of_columns is not None:
            product = product + of_columns * jnp.sum(centered(A, a_zero_point, -2), axis=-1, keepdims=True)
        return product

    return multiplied


@op("MatMulInteger", since=10)
def matmul_integer(A, B, a_zero_point=None, b_zero_point=None):
    if min(A.ndim, B.ndim) < 2 or A.dtype.itemsize > 1:
        return centered(A, a_zero_point, -2 if A.ndim > 1 else -1) @ centered(B, b_zero_point, -1)
    return product_with(B, b_zero_point)(A, a_zero_point)


@op("QLinearMatMul", since=10)
def quantized_matmul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    product = matmul_integer(a, b, a_zero_point, b_zero_point)
    rows, columns = _along(a_scale, a, -2), _along(b_scale, b, -1)
    factor = cast(rows, np.float32) * cast(columns, np.float32) / cast(_along(y_scale, product, -2), np.float32)
    return saturated(jnp.round(product * factor), _along(y_zero_point, product, -2), y_zero_point.dtype)


def _largest(x: Tensor, zero_point: Tensor | None) -> int:
    """Return the largest magnitude of 8-bit integers less a zero point."""
    return 128 if x.dtype.kind == "i" and is_zero(zero_point) else 255


def _largest_sum(w: Tensor, zero_point: Tensor | None) -> int:
    """Return the most that a kernel less its zero point makes of a window whose elements are 1 or -1."""
    kernel, offset = known(w), host(0) if is_zero(zero_point) else known(zero_point)
    if kernel is None or offset is None or kernel.symbolic or offset.symbolic:
        return math.prod(dims.static(w.shape[1:])) * _largest(w, zero_point)
    zeros = offset.data.astype(np.int64).reshape(-1, *[1] * (w.ndim - 1))
    sums = np.sum(np.abs(kernel.data.astype(np.int64) - zeros).reshape(int(w.shape[0]), -1), axis=1)
    return max(int(np.max(sums, initial=0)), 1)


def whole_conv(
    x: Tensor, w: Tensor, x_zero_point: Tensor | None, w_zero_point: Tensor | None, window: ConvolutionAttributes
) -> Tensor:
    """Convolve 8-bit integers less their zero points, exactly, as int32.

    XLA convolves integers slowly. In float32 integers are exact up to 2**24: unless the kernel is so small that no sum
    exceeds that, `x` is split into digits; bfloat16, in which some devices multiply, holds all of them.
    """
    values, kernel = centered(x, x_zero_point, 1), centered(w, w_zero_point, 0)
    largest = _largest(x, x_zero_point)
    room = 2**24 // _largest_sum(w, w_zero_point)
    bits = largest.bit_length() if room >= largest else room.bit_length() - 1
    if bits < 3:  # too many terms: more than three convolutions of digits
        return conv(ONNX, values, kernel, window=window)
    kernel = cast(kernel, np.float32)
    if room >= largest:
        return cast(conv(ONNX, cast(values, np.float32), kernel, window=window), np.int32)
    total: Any = 0
    for shift in range(0, largest.bit_length(), bits):
        last = shift + bits >= largest.bit_length()  # the digit with the sign
        digit = values >> shift if last else (values >> shift) & (2**bits - 1)
        total = total + (cast(conv(ONNX, cast(digit, np.float32), kernel, window=window), np.int32) << shift)
    return total


@op("ConvInteger", since=10)
def conv_integer(x, w, x_zero_point=None, w_zero_point=None, *, window: ConvolutionAttributes):
    return whole_conv(x, w, x_zero_point, w_zero_point, window)


def quantized_conv(
    x,
    x_scale,
    x_zero_point,
    w,
    w_scale,
    w_zero_point,
    y_scale,
    y_zero_point,
    B=None,
    *,
    channels_last=0,
    window: ConvolutionAttributes,
):
    x = jnp.moveaxis(x, -1, 1) if channels_last else x
    y = ONNX.with_bias(whole_conv(x, w, x_zero_point, w_zero_point, window), B)
    factor = divide(x_scale * spread(w_scale, y, 1), y_scale)
    y = saturated(jnp.round(y * factor), y_zero_point, y_zero_point.dtype)
    return jnp.moveaxis(y, 1, -1) if channels_last else y


op("QLinearConv", since=10)(variant("channels_last")(quantized_conv))
