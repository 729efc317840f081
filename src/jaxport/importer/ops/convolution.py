"""Convolutions and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxport.importer.namespaces import helper, jnp, lax, nn
from jaxport.importer.registry import KernelLayout, op

MOST_PRODUCTS = 64
"""Elements that the kernel of a depthwise convolution may have to be computed as a sum of products."""

AUTO_PADS = {"SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER", "VALID": "VALID"}


def padding(auto_pad: str, pads: Sequence[int] | None, axes: int) -> Any:
    """What `lax` calls the padding of `axes` spatial axes: a name, or the sizes before and after."""
    if auto_pad != "NOTSET":
        return AUTO_PADS[auto_pad]
    pads = pads or (0,) * (2 * axes)
    return tuple(zip(pads[:axes], pads[axes:], strict=True))


def with_bias(y: Any, bias: Any) -> Any:
    return y if bias is None else y + jnp.reshape(bias, (-1, *[1] * (y.ndim - 2)))


@helper
def depthwise_convolution(x, kernel, strides, pads, *, feature_group_count, dimension_numbers=None, rhs_dilation=None):
    """A convolution of each channel by itself.

    On CPUs it is a sum of products, one for each element of the kernel: XLA's convolution is ten times slower there.
    """

    def products(x, kernel):
        channels_last = dimension_numbers is not None
        rows = kernel[:, :, 0] if channels_last else jnp.moveaxis(kernel[:, 0], 0, -1)
        sizes, steps = rows.shape[:-1], rhs_dilation or (1,) * len(strides)
        spans = [(size - 1) * step + 1 for size, step in zip(sizes, steps, strict=True)]
        around = lax.padtype_to_pads(x.shape[2:], spans, strides, pads) if isinstance(pads, str) else pads
        x = jnp.pad(x, ((0, 0), (0, 0), *around))
        lengths = [
            (n - span) // stride * stride + 1 for n, span, stride in zip(x.shape[2:], spans, strides, strict=True)
        ]
        parts = []
        for position in np.ndindex(*sizes):
            starts = [i * step for i, step in zip(position, steps, strict=True)]
            ends = [i + length for i, length in zip(starts, lengths, strict=True)]
            part = lax.slice(x, (0, 0, *starts), (*x.shape[:2], *ends), (1, 1, *strides))
            parts.append(part * rows[position].reshape(-1, *[1] * len(sizes)))
        return sum(parts[1:], parts[0])

    def convolution(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, strides, pads, rhs_dilation=rhs_dilation, dimension_numbers=dimension_numbers,
            feature_group_count=feature_group_count,
        )  # fmt: skip

    return lax.platform_dependent(x, kernel, cpu=products, onnx=convolution, default=convolution)


@op("Conv", since=1)
def conv(
    X,
    W,
    B=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    pads=None,
    strides=None,
    layout: KernelLayout = "OIHW",
):
    axes = X.ndim - 2
    strides, pads = strides or (1,) * axes, padding(auto_pad, pads, axes)
    options: dict[str, Any] = {} if group == 1 else {"feature_group_count": group}
    if layout != "OIHW":
        options["dimension_numbers"] = ("NCHW", layout, "NCHW")
    if dilations is not None and set(dilations) != {1}:
        options["rhs_dilation"] = dilations
    out, spatial = (W.shape[0], W.shape[2:]) if layout == "OIHW" else (W.shape[3], W.shape[:2])
    exact = X.dtype in (np.float32, np.float64)  # a sum in half precision would round after each product
    by_channel = exact and 1 < group == X.shape[1] == out and math.prod(spatial) <= MOST_PRODUCTS
    convolve = depthwise_convolution if by_channel else lax.conv_general_dilated
    return with_bias(convolve(X, W, strides, pads, **options), B)


def _transposed_pads(
    X: Any,
    kernel: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int],
    output_padding: Sequence[int],
    output_shape: Sequence[int] | None,
) -> list[tuple[Any, Any]]:
    """What a transposed convolution cuts off before and after each axis; `kernel` is the size with its gaps."""
    axes = len(kernel)
    if output_shape is None and not auto_pad.startswith("SAME"):
        return list(zip(pads[:axes], pads[axes:], strict=True)) if pads else [(0, 0)] * axes
    sizes = X.shape[2:]
    wanted = [n * stride for n, stride in zip(sizes, strides, strict=True)] if output_shape is None else output_shape
    totals = [
        stride * (n - 1) + extra + k - size
        for n, stride, extra, k, size in zip(sizes, strides, output_padding, kernel, wanted[-axes:], strict=True)
    ]
    if auto_pad == "SAME_UPPER":
        return [(total // 2, total - total // 2) for total in totals]
    return [(total - total // 2, total // 2) for total in totals]


@helper
def transposed_kernel(w, groups):
    """A kernel of shape (in, out / groups, *spatial) as the forward convolution has it: (out, in / groups, *flipped)."""
    w = jnp.flip(w, range(2, w.ndim))
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    return w.reshape(w.shape[0] * w.shape[1], *w.shape[2:])


@op("ConvTranspose", since=1)
def conv_transpose(
    X,
    W,
    B=None,
    *,
    auto_pad="NOTSET",
    dilations=None,
    group=1,
    kernel_shape=None,
    output_padding=None,
    output_shape=None,
    pads=None,
    strides=None,
):
    ones = (1,) * (X.ndim - 2)
    strides, dilations = strides or ones, dilations or ones
    extra = output_padding or (0,) * len(ones)
    kernel = [(k - 1) * dilation + 1 for k, dilation in zip(W.shape[2:], dilations, strict=True)]
    cut = _transposed_pads(X, kernel, auto_pad, pads, strides, extra, output_shape)
    y = lax.conv_general_dilated(
        X,
        transposed_kernel(W, group),
        ones,
        [(k - 1 - low, k - 1 - high + more) for k, (low, high), more in zip(kernel, cut, extra, strict=True)],
        lhs_dilation=strides,
        rhs_dilation=dilations,
        feature_group_count=group,
    )
    return with_bias(y, B)


@op("CausalConvWithState", since=27)
def causal_conv_with_state(input, weight, bias=None, past_state=None, *, activation="none"):
    kept = weight.shape[-1] - 1
    if past_state is None:
        past_state = jnp.zeros((*input.shape[:2], kept), input.dtype)
    x = jnp.concatenate([past_state, input], axis=2)
    y = with_bias(lax.conv_general_dilated(x, weight, (1,), "VALID", feature_group_count=input.shape[1]), bias)
    return (nn.silu(y) if activation in ("silu", "swish") else y), x[:, :, x.shape[2] - kept :]
