"""Convolutions and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxport.importer.host import RuntimeValue, Tensor
from jaxport.importer.namespaces import helper, jnp, lax, nn
from jaxport.importer.registry import ChannelsLast, KernelLayout, op
from jaxport.jaxprs import Dim

MOST_PRODUCTS = 64
"""The largest kernel of a depthwise convolution, in elements, that is computed as a sum of products."""

MOST_GROUPS = 32
"""The largest number of groups that are convolved one by one."""

AUTO_PADS = {"SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER", "VALID": "VALID"}


def padding(auto_pad: str, pads: Sequence[int] | None, axes: int) -> RuntimeValue:
    """Return the padding of `axes` spatial axes as `lax` takes it: a name, or the sizes before and after."""
    if auto_pad != "NOTSET":
        return AUTO_PADS[auto_pad]
    pads = pads or (0,) * (2 * axes)
    return tuple(zip(pads[:axes], pads[axes:], strict=True))


def with_bias(y: Tensor, bias: Tensor | None, channels_last: bool = False) -> Tensor:
    if bias is None:
        return y
    return y + (bias if channels_last else jnp.reshape(bias, (-1, *[1] * (y.ndim - 2))))


@helper
def depthwise_convolution(x, kernel, strides, pads, *, feature_group_count, dimension_numbers=None, rhs_dilation=None):
    """Convolve each channel separately.

    On CPUs it is a sum of products, one for each element of the kernel: XLA's convolution is ten times slower there.
    """
    images, kernels, _ = dimension_numbers or ("NC", "OI", "NC")
    channels_last = images == "NHWC"
    first = 1 if channels_last else 2
    spatial = range(first, first + len(strides))

    def part(x, axis, start, length, stride):
        return lax.slice_in_dim(x, start, start + length, stride, axis)

    def products(x, kernel):
        rows = kernel[:, :, 0] if kernels == "HWIO" else jnp.moveaxis(kernel[:, 0], 0, -1)
        sizes, steps = rows.shape[:-1], rhs_dilation or (1,) * len(strides)
        spans = [(size - 1) * step + 1 for size, step in zip(sizes, steps, strict=True)]
        lengths = [x.shape[axis] for axis in spatial]
        around = lax.padtype_to_pads(lengths, spans, strides, pads) if isinstance(pads, str) else pads
        widths = [(0, 0)] * x.ndim
        widths[spatial.start : spatial.stop] = around
        x = jnp.pad(x, widths)
        lengths = [
            (x.shape[axis] - span) // stride * stride + 1
            for axis, span, stride in zip(spatial, spans, strides, strict=True)
        ]
        # Row by row: the accesses to a row are consecutive.
        total = 0.0
        for outer in np.ndindex(*sizes[:1]):
            row = part(x, first, outer[0] * steps[0], lengths[0], strides[0])
            parts = []
            for inner in np.ndindex(*sizes[1:]):
                tap = row
                for axis, at, step, length, stride in zip(
                    spatial[1:], inner, steps[1:], lengths[1:], strides[1:], strict=True
                ):
                    tap = part(tap, axis, at * step, length, stride)
                factor = rows[(*outer, *inner)]
                parts.append(tap * (factor if channels_last else factor.reshape(-1, *[1] * len(sizes))))
            total = total + sum(parts[1:], parts[0])
        return total

    def convolution(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, strides, pads, rhs_dilation=rhs_dilation, dimension_numbers=dimension_numbers,
            feature_group_count=feature_group_count,
        )  # fmt: skip

    return lax.platform_dependent(x, kernel, cpu=products, onnx=convolution, default=convolution)


@helper
def grouped_convolution(x, kernel, strides, pads, *, feature_group_count, dimension_numbers, rhs_dilation=None):
    """Convolve groups of channels, of an image with the channels last.

    On CPUs it is one convolution for each group: XLA's own is half as fast there.
    """

    def apart(x, kernel):
        images, kernels = jnp.split(x, feature_group_count, axis=-1), jnp.split(kernel, feature_group_count, axis=out)
        parts = [
            lax.conv_general_dilated(
                image, part, strides, pads, rhs_dilation=rhs_dilation, dimension_numbers=dimension_numbers
            )
            for image, part in zip(images, kernels, strict=True)
        ]
        return jnp.concatenate(parts, axis=-1)

    def convolution(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, strides, pads, rhs_dilation=rhs_dilation, dimension_numbers=dimension_numbers,
            feature_group_count=feature_group_count,
        )  # fmt: skip

    out = dimension_numbers[1].index("O")
    return lax.platform_dependent(x, kernel, cpu=apart, onnx=convolution, default=convolution)


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
    channels_last: ChannelsLast = False,
):
    axes = X.ndim - 2
    strides, pads = strides or (1,) * axes, padding(auto_pad, pads, axes)
    options: dict[str, Any] = {} if group == 1 else {"feature_group_count": group}
    images, channels = ("NHWC", X.shape[-1]) if channels_last else ("NCHW", X.shape[1])
    if (images, layout) != ("NCHW", "OIHW"):
        options["dimension_numbers"] = (images, layout, images)
    if dilations is not None and set(dilations) != {1}:
        options["rhs_dilation"] = dilations
    out, spatial = (W.shape[0], W.shape[2:]) if layout == "OIHW" else (W.shape[3], W.shape[:2])
    exact = X.dtype in (np.float32, np.float64)  # a sum in half precision would round after each product
    convolve = lax.conv_general_dilated
    if exact and 1 < group == channels == out and math.prod(spatial) <= MOST_PRODUCTS:
        convolve = depthwise_convolution
    elif channels_last and 1 < group <= MOST_GROUPS:
        convolve = grouped_convolution
    return with_bias(convolve(X, W, strides, pads, **options), B, channels_last)


def _transposed_pads(
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    auto_pad: str,
    pads: Sequence[int] | None,
    strides: Sequence[int],
    output_padding: Sequence[int],
    output_shape: Sequence[int] | None,
) -> list[tuple[RuntimeValue, RuntimeValue]]:
    """Return how much a transposed convolution crops before and after each axis of an image of these sizes.

    `kernel` is the size of the dilated kernel.
    """
    axes = len(kernel)
    if output_shape is None and not auto_pad.startswith("SAME"):
        return list(zip(pads[:axes], pads[axes:], strict=True)) if pads else [(0, 0)] * axes
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
    """Turn a kernel (in, out / groups, *spatial) into that of the forward convolution: (out, in / groups, *flipped)."""
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
    channels_last: ChannelsLast = False,
):
    ones = (1,) * (X.ndim - 2)
    strides, dilations = strides or ones, dilations or ones
    extra = output_padding or (0,) * len(ones)
    kernel = [(k - 1) * dilation + 1 for k, dilation in zip(W.shape[2:], dilations, strict=True)]
    sizes = X.shape[1:-1] if channels_last else X.shape[2:]
    options = {"dimension_numbers": ("NHWC", "OIHW", "NHWC")} if channels_last else {}
    cut = _transposed_pads(sizes, kernel, auto_pad, pads, strides, extra, output_shape)
    y = lax.conv_general_dilated(
        X,
        transposed_kernel(W, group),
        ones,
        [(k - 1 - low, k - 1 - high + more) for k, (low, high), more in zip(kernel, cut, extra, strict=True)],
        lhs_dilation=strides,
        rhs_dilation=dilations,
        feature_group_count=group,
        **options,
    )
    return with_bias(y, B, channels_last)


@op("CausalConvWithState", since=27)
def causal_conv_with_state(input, weight, bias=None, past_state=None, *, activation="none"):
    kept = weight.shape[-1] - 1
    if past_state is None:
        past_state = jnp.zeros((*input.shape[:2], kept), input.dtype)
    x = jnp.concatenate([past_state, input], axis=2)
    y = with_bias(lax.conv_general_dilated(x, weight, (1,), "VALID", feature_group_count=input.shape[1]), bias)
    return (nn.silu(y) if activation in ("silu", "swish") else y), x[:, :, x.shape[2] - kept :]
