"""Quantized operators of ONNX Runtime's own domain: on small integers with scales and zero points, or with packed
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxport.importer.ops.arithmetic import divide
from jaxport.importer.ops.contrib_attention import DOMAIN, refuse
from jaxport.importer.ops.pooling import PoolingAttributes, average_pool, global_average_pool
from jaxport.importer.ops.quantization import (
    dequantize,
    dynamic_quantize,
    matmul_integer,
    product_with,
    quantize,
    quantized_conv,
    saturated,
    spread,
)
from jaxport.importer.ops.recurrent import LSTMAttributes, biases, lstm_layer
from jaxport.importer.resolving.registry import REQUIRED, OutputsNamed, op, variant
from jaxport.importer.values.host import Tensor, host
from jaxport.importer.values.image_layout import ImageLayout
from jaxport.importer.values.namespaces import cast, helper, jnp, nn
from jaxport.jaxprs import Dim, PythonFunction


@op(DOMAIN, "QuantizeLinear", since=1)
def quantize_linear(x, y_scale, y_zero_point=None, *, axis=None):
    return quantize(x, y_scale, y_zero_point, axis=1 if axis is None else axis)


@op(DOMAIN, "DequantizeLinear", since=1)
def dequantize_linear(x, x_scale, x_zero_point=None, *, axis=None):
    return dequantize(x, x_scale, x_zero_point, axis=1 if axis is None else axis)


def _requantized(y: Tensor, scale: Tensor | None, zero_point: Tensor, dtype: np.dtype) -> Tensor:
    return saturated(jnp.round(divide(y, scale)), zero_point, dtype)


def _between(function: PythonFunction) -> PythonFunction:
    """Turn a function of real numbers into one of (values, scale, zero point) for each operand and the result."""

    def quantized(*parts: Tensor) -> Tensor:
        *operands, scale, zero_point = parts
        values = [dequantize(*operands[at : at + 3]) for at in range(0, len(operands), 3)]
        return _requantized(function(*values), scale, zero_point, operands[0].dtype)

    return quantized


@op(DOMAIN, "QLinearAdd", since=1)
def quantized_add(A, A_scale, A_zero_point, B, B_scale, B_zero_point, C_scale, C_zero_point=None):
    return _between(lambda a, b: a + b)(A, A_scale, A_zero_point, B, B_scale, B_zero_point, C_scale, C_zero_point)


@op(DOMAIN, "QLinearMul", since=1)
def quantized_mul(A, A_scale, A_zero_point, B, B_scale, B_zero_point, C_scale, C_zero_point=None):
    return _between(lambda a, b: a * b)(A, A_scale, A_zero_point, B, B_scale, B_zero_point, C_scale, C_zero_point)


@op(DOMAIN, "QLinearLeakyRelu", since=1)
def quantized_leaky_relu(X, X_scale, X_zero_point, Y_scale, Y_zero_point=None, *, alpha=0.01):
    return _between(lambda x: nn.leaky_relu(x, alpha))(X, X_scale, X_zero_point, Y_scale, Y_zero_point)


@op(DOMAIN, "QLinearSigmoid", since=1)
def quantized_sigmoid(X, X_scale, X_zero_point, Y_scale, Y_zero_point=None):
    return _between(nn.sigmoid)(X, X_scale, X_zero_point, Y_scale, Y_zero_point)


@op(DOMAIN, "QLinearSoftmax", since=1)
def quantized_softmax(X, X_scale, x_zero_point, y_scale, y_zero_point, *, axis=-1, opset):
    axes = axis if opset >= 13 else tuple(range(axis % X.ndim, X.ndim))
    return _between(lambda x: nn.softmax(x, axis=axes))(X, X_scale, x_zero_point, y_scale, y_zero_point)


@op(DOMAIN, "QLinearReduceMean", since=1)
def quantized_reduce_mean(data, data_scale, data_zero_point, reduced_scale, reduced_zero_point=None, *, axes, keepdims):
    mean = _between(lambda x: jnp.mean(x, axis=axes, keepdims=bool(keepdims)))
    return mean(data, data_scale, data_zero_point, reduced_scale, reduced_zero_point)


@op(DOMAIN, "QLinearWhere", since=1)
def quantized_where(condition, X, x_scale, x_zero_point, Y, y_scale, y_zero_point, z_scale, z_zero_point):
    pick = _between(lambda x, y: jnp.where(condition, x, y))
    return pick(X, x_scale, x_zero_point, Y, y_scale, y_zero_point, z_scale, z_zero_point)


@op(DOMAIN, "QLinearConcat", since=1)
def quantized_concat(Y_scale, Y_zero_point, *inputs, axis):
    return _between(lambda *parts: jnp.concatenate(parts, axis=axis))(*inputs, Y_scale, Y_zero_point)


@op(DOMAIN, "QLinearAveragePool", since=1)
@variant("dilations")
def quantized_average_pool(
    X,
    x_scale,
    x_zero_point,
    y_scale,
    y_zero_point=None,
    *,
    channels_last=0,
    count_include_pad=0,
    window: PoolingAttributes,
):
    layout = ImageLayout(bool(channels_last))
    pool = partial(average_pool, layout, count_include_pad=count_include_pad, window=window)
    return _between(pool)(X, x_scale, x_zero_point, y_scale, y_zero_point)


@op(DOMAIN, "QLinearGlobalAveragePool", since=1)
def quantized_global_average_pool(X, x_scale, x_zero_point, y_scale, y_zero_point, *, channels_last=0):
    pool = partial(global_average_pool, ImageLayout(bool(channels_last)))
    return _between(pool)(X, x_scale, x_zero_point, y_scale, y_zero_point)


op(DOMAIN, "QLinearConv", since=1)(quantized_conv)


op(DOMAIN, "MatMulInteger16", since=1)(variant("a_zero_point b_zero_point")(matmul_integer))


@op(DOMAIN, "MatMulIntegerToFloat", since=1)
def matmul_integer_to_float(A, B, a_scale, b_scale, a_zero_point=None, b_zero_point=None, bias=None):
    y = cast(matmul_integer(A, B, a_zero_point, b_zero_point), a_scale.dtype) * (a_scale * b_scale)
    return y if bias is None else y + bias


@op(DOMAIN, "DynamicQuantizeMatMul", since=1)
def dynamic_quantize_matmul(A, B, b_scale, b_zero_point=None, bias=None):
    a, a_scale, a_zero_point = dynamic_quantize(A)
    return matmul_integer_to_float(a, B, cast(a_scale, A.dtype), b_scale, a_zero_point, b_zero_point, bias)


@op(DOMAIN, "DynamicQuantizeLSTM", since=1)
@variant("layout")
def dynamic_quantize_lstm(
    X,
    W,
    R,
    B=None,
    sequence_lens=None,
    initial_h=None,
    initial_c=None,
    P=None,
    W_scale=REQUIRED,
    W_zero_point=REQUIRED,
    R_scale=REQUIRED,
    R_zero_point=REQUIRED,
    *,
    recurrence: LSTMAttributes,
    named: OutputsNamed = (True,),
):
    hidden, steps = R.shape[1], jnp.arange(X.shape[0])
    if sequence_lens is not None:  # values behind the longest sequence do not count
        X = jnp.where(jnp.expand_dims(steps < jnp.max(sequence_lens), (1, 2)), X, 0)

    def product(weights: Tensor, scale: Any, zero_point: Any, d: int) -> Callable[[Tensor], Tensor]:
        """Multiply dynamically quantized values by the weights of a direction; one scale for all values of a call."""
        multiplied = product_with(weights[d], zero_point[d])

        def of(x: Tensor) -> Tensor:
            x, x_scale, x_zero_point = dynamic_quantize(x)
            return cast(multiplied(x, x_zero_point), x_scale.dtype) * (x_scale * scale[d])

        return of

    def products(x: Tensor, d: int) -> tuple[Any, Callable[[Any, Tensor], Tensor]]:
        of_input, of_state = biases(B, d, 4 * hidden)
        rows = product(W, W_scale, W_zero_point, d)(x) + (of_input + of_state)
        recurrence = product(R, R_scale, R_zero_point, d)
        if sequence_lens is None or not named[0]:
            return rows, lambda row, h: row + recurrence(h)
        # If all states are returned, the last state of an ended sequence counts once more; after that, zeros do.
        seen = jnp.expand_dims(jnp.expand_dims(steps, 1) <= sequence_lens, 2)
        return (rows, seen), lambda row, h: row[0] + recurrence(jnp.where(row[1], h, 0))

    initial = [initial_h, initial_c]
    return lstm_layer(X, products, initial, P, sequence_lens, hidden, recurrence, together=True)


@op(DOMAIN, "QGemm", since=1)
def quantized_gemm(
    A,
    a_scale,
    a_zero_point,
    B,
    b_scale,
    b_zero_point,
    C=None,
    y_scale=None,
    y_zero_point=None,
    *,
    alpha=1.0,
    transA=0,
    transB=0,
):
    whole = matmul_integer(A.T if transA else A, B.T if transB else B, a_zero_point, b_zero_point)
    y = (whole if C is None else whole + C) * (alpha * a_scale * b_scale)
    return y if y_zero_point is None else _requantized(y, y_scale, y_zero_point, y_zero_point.dtype)


@helper
def unpacked(packed, bits):
    """Unpack small numbers from bytes, the lowest bits first: (..., bytes) becomes (..., bytes * 8 // bits)."""
    shifts = jnp.arange(0, 8, bits, dtype=jnp.uint8)
    return ((packed[..., None] >> shifts) & (2**bits - 1)).reshape(*packed.shape[:-1], -1)


@helper
def block_dequantized(packed, scales, zero_points, bits, columns):
    """Return a matrix (columns, rows) that is stored by rows, in blocks of packed numbers with a scale each."""
    rows, blocks = packed.shape[:2]
    values = unpacked(packed, bits).astype(scales.dtype)
    if zero_points is None:
        zeros = 2.0 ** (bits - 1)
    elif zero_points.dtype == scales.dtype:
        zeros = zero_points.reshape(rows, blocks, 1)
    else:
        zeros = unpacked(zero_points.reshape(rows, -1), bits)[:, :blocks, None].astype(scales.dtype)
    return ((values - zeros) * scales.reshape(rows, blocks, 1)).reshape(rows, -1)[:, :columns].T


@op(DOMAIN, "MatMulNBits", since=1)
def matmul_n_bits(
    A,
    B,
    scales,
    zero_points=None,
    g_idx=None,
    bias=None,
    *,
    K,
    N,
    accuracy_level=0,
    bits=4,
    block_size,
    weight_prepacked=0,
):
    refuse(bits not in (2, 4, 8), f"{bits} bits; 2, 4 and 8 are")
    mixed = g_idx is not None and zero_points is not None
    refuse(mixed, "`g_idx` beside `zero_points`: ONNX Runtime's kernel then ignores `g_idx`; leave one of them out")
    refuse(bool(weight_prepacked), "`weight_prepacked`: weights in the layout of one device")
    blocks = -(-K // block_size)
    packed = B if B.ndim == 3 else jnp.reshape(B, (N, blocks, -1))
    if g_idx is None:
        kernel = block_dequantized(packed, cast(scales, A.dtype), zero_points, bits, K)
    else:
        values = jnp.reshape(cast(unpacked(packed, bits), A.dtype) - 2.0 ** (bits - 1), (N, -1))[:, :K]
        kernel = (values * jnp.take(jnp.reshape(scales, (N, blocks)), g_idx[:K], axis=1)).T
    y = A @ kernel
    return y if bias is None else y + bias


@op(DOMAIN, "GatherBlockQuantized", since=1)
def gather_block_quantized(
    data, indices, scales, zero_points=None, *, bits=4, block_size=128, gather_axis=0, quantize_axis=1
):
    rank = data.ndim
    gather, blocked = gather_axis % rank, quantize_axis % rank
    packed = data.dtype.name == "uint8"
    zeros: Any = zero_points
    if packed and zeros is None:
        zeros = host(np.full((), 2 ** (bits - 1), np.uint8))
    taken, scale = (jnp.take(x, indices, axis=gather) for x in (data, scales))
    zeros = zeros if zeros is None or zeros.ndim == 0 else jnp.take(zeros, indices, axis=gather)
    axis = blocked + indices.ndim - 1 if blocked > gather else blocked
    if packed and bits < 8:
        taken = unpacked(taken, bits)
        zeros = zeros if zeros.ndim == 0 else unpacked(zeros, bits)
    values = cast(taken, np.float32)
    if zeros is not None:
        shown = zeros if zeros.ndim == 0 else spread(_first(zeros, scale.shape), taken, axis, block_size)
        values = values - cast(shown, np.float32)
    return cast(values * spread(scale, taken, axis, block_size or taken.shape[axis]), scales.dtype)


def _first(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Return the first elements along the last axis: packed zero points may have padding to fill a byte."""
    return x if x.shape == tuple(shape) else x[..., : shape[-1]]


@op(DOMAIN, "MulInteger", since=1)
def mul_integer(A, A_zero_point, B, B_zero_point=None):
    a, b = (cast(x, np.int32) for x in (A, B))
    a = a if A_zero_point is None else a - cast(A_zero_point, np.int32)
    return a * (b if B_zero_point is None else b - cast(B_zero_point, np.int32))
