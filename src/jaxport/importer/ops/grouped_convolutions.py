"""What convolutions of groups of channels become: the table of functions that compute them faster on CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jaxport.importer.values.host import Tensor
from jaxport.importer.values.image_layout import OIHW, ImageLayout
from jaxport.importer.values.namespaces import helper, jnp, lax

MOST_PRODUCTS = 64
"""The largest kernel of a depthwise convolution, in elements, that is computed as a sum of products."""

MOST_GROUPS = 32
"""The largest number of groups that are convolved one by one."""


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


def _is_depthwise(layout: ImageLayout, x: Tensor, kernel: Tensor, groups: int) -> bool:
    """Whether each channel has a small kernel, and sums are exact: those in half precision round after each product."""
    out, sizes = (kernel.shape[0], kernel.shape[2:]) if layout.kernel == OIHW else (kernel.shape[3], kernel.shape[:2])
    exact = x.dtype in (np.float32, np.float64)
    return exact and 1 < groups == x.shape[layout.channels(x)] == out and math.prod(sizes) <= MOST_PRODUCTS


def _has_few_groups(layout: ImageLayout, x: Tensor, kernel: Tensor, groups: int) -> bool:
    return layout.channels_last and 1 < groups <= MOST_GROUPS


LOWERINGS = ((_is_depthwise, depthwise_convolution), (_has_few_groups, grouped_convolution))
"""Convolutions that have a function of their own: the first row that applies is taken."""


def lowering(layout: ImageLayout, x: Tensor, kernel: Tensor, groups: int) -> Callable[..., Tensor]:
    """Return the function that convolves `x`, called as `lax.conv_general_dilated`."""
    rows = (function for applies, function in LOWERINGS if applies(layout, x, kernel, groups))
    return next(rows, lax.conv_general_dilated)
