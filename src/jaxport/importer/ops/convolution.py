"""Convolutions and their transposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxport.errors import AGAIN, ModelError
from jaxport.importer.ops.grouped_convolutions import lowering
from jaxport.importer.resolving.registry import image_op, op
from jaxport.importer.values.image_layout import ONNX
from jaxport.importer.values.namespaces import helper, jnp, lax, nn
from jaxport.jaxprs import Dim

AUTO_PADS = {"SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER", "VALID": "VALID"}


@dataclass(frozen=True, kw_only=True)
class WindowAttributes:
    """The attributes of operators that move a window over images."""

    auto_pad: str = "NOTSET"
    dilations: Sequence[int] | None = None
    pads: Sequence[int] | None = None
    strides: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name, steps in (("strides", self.strides), ("dilations", self.dilations)):
            if steps is not None and any(step < 1 for step in steps):
                raise ModelError(f"`{name}` has steps of {min(steps)}", why="a window moves forward", instead=AGAIN)

    def padding(self, axes: int) -> str | tuple[tuple[int, int], ...]:
        """Return the padding of `axes` spatial axes as `lax` takes it: a name, or the sizes before and after."""
        return self.pads_by_axis(axes) if self.auto_pad == "NOTSET" else AUTO_PADS[self.auto_pad]

    def pads_by_axis(self, axes: int) -> tuple[tuple[int, int], ...]:
        """Return `pads` as the sizes before and after each of `axes` spatial axes."""
        pads = self.pads or (0,) * (2 * axes)
        return tuple(zip(pads[:axes], pads[axes:], strict=True))


@dataclass(frozen=True, kw_only=True)
class ConvolutionAttributes(WindowAttributes):
    """The attributes of convolutions; the shape of the kernel itself counts, not `kernel_shape`."""

    group: int = 1
    kernel_shape: Sequence[int] | None = None


@image_op("Conv", since=1)
def conv(layout, X, W, B=None, *, window: ConvolutionAttributes):
    return _convolved(layout, X, W, B, window, {})


def convolution_in_single(layout, X, W, B=None, **attributes):
    """Return a Conv of operands in half precision, summed in float32."""
    return _convolved(layout, X, W, B, ConvolutionAttributes(**attributes), {"preferred_element_type": np.float32})


def _convolved(layout, X, W, B, window, options: dict[str, Any]):
    axes, group, dilations = X.ndim - 2, window.group, window.dilations
    options = options if group == 1 else {**options, "feature_group_count": group}
    if layout != ONNX:
        options["dimension_numbers"] = (layout.images, layout.kernel, layout.images)
    if dilations is not None and set(dilations) != {1}:
        options["rhs_dilation"] = dilations
    convolved = lowering(layout, X, W, group)
    return layout.with_bias(convolved(X, W, window.strides or (1,) * axes, window.padding(axes), **options), B)


def _transposed_pads(
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    window: WindowAttributes,
    strides: Sequence[int],
    output_padding: Sequence[int],
    output_shape: Sequence[int] | None,
) -> Sequence[tuple[Dim, Dim]]:
    """Return how much a transposed convolution crops before and after each axis of an image of these sizes.

    `kernel` is the size of the dilated kernel.
    """
    axes = len(kernel)
    if output_shape is None and not window.auto_pad.startswith("SAME"):
        return window.pads_by_axis(axes)
    wanted = [n * stride for n, stride in zip(sizes, strides, strict=True)] if output_shape is None else output_shape
    totals = [
        stride * (n - 1) + extra + k - size
        for n, stride, extra, k, size in zip(sizes, strides, output_padding, kernel, wanted[-axes:], strict=True)
    ]
    if window.auto_pad == "SAME_UPPER":
        return [(total // 2, total - total // 2) for total in totals]
    return [(total - total // 2, total // 2) for total in totals]


@helper
def transposed_kernel(w, groups):
    """Turn a kernel (in, out / groups, *spatial) into that of the forward convolution: (out, in / groups, *flipped)."""
    w = jnp.flip(w, range(2, w.ndim))
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).swapaxes(1, 2)
    return w.reshape(w.shape[0] * w.shape[1], *w.shape[2:])


@image_op("ConvTranspose", since=1)
def conv_transpose(layout, X, W, B=None, *, output_padding=None, output_shape=None, window: ConvolutionAttributes):
    ones = (1,) * (X.ndim - 2)
    strides, dilations = window.strides or ones, window.dilations or ones
    extra = output_padding or (0,) * len(ones)
    kernel = [(k - 1) * dilation + 1 for k, dilation in zip(W.shape[2:], dilations, strict=True)]
    options = {} if layout == ONNX else {"dimension_numbers": (layout.images, layout.kernel, layout.images)}
    cut = _transposed_pads(layout.sizes(X), kernel, window, strides, extra, output_shape)
    y = lax.conv_general_dilated(
        X,
        transposed_kernel(W, window.group),
        ones,
        [(k - 1 - low, k - 1 - high + more) for k, (low, high), more in zip(kernel, cut, extra, strict=True)],
        lhs_dilation=strides,
        rhs_dilation=dilations,
        feature_group_count=window.group,
        **options,
    )
    return layout.with_bias(y, B)


@op("CausalConvWithState", since=27)
def causal_conv_with_state(input, weight, bias=None, past_state=None, *, activation="none"):
    kept = weight.shape[-1] - 1
    if past_state is None:
        past_state = jnp.zeros((*input.shape[:2], kept), input.dtype)
    x = jnp.concatenate([past_state, input], axis=2)
    y = ONNX.with_bias(lax.conv_general_dilated(x, weight, (1,), "VALID", feature_group_count=input.shape[1]), bias)
    return (nn.silu(y) if activation in ("silu", "swish") else y), x[:, :, x.shape[2] - kept :]
