"""Pooling over windows and over whole feature maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jaxport.importer.ops.arithmetic import divide, safe_root
from jaxport.importer.ops.convolution import WindowAttributes
from jaxport.importer.resolving.registry import Host, OutputCount, earlier, image_op, op
from jaxport.importer.values.host import HostValue, Tensor, host, is_dim
from jaxport.importer.values.image_layout import ImageLayout
from jaxport.importer.values.namespaces import helper, jnp, lax
from jaxport.jaxprs import Dim
from jaxport.jaxprs.dims import max_dim


@dataclass(frozen=True, kw_only=True)
class PoolingAttributes(WindowAttributes):
    """The attributes of pooling over windows."""

    ceil_mode: int = 0
    kernel_shape: Sequence[int]


def _windows(
    layout: ImageLayout, X: Tensor, window: PoolingAttributes
) -> tuple[tuple[int, ...], tuple[int, ...], str | tuple[tuple[Dim, Dim], ...], dict[str, tuple[int, ...]]]:
    """Return window, strides, padding and dilation of `lax.reduce_window` over images."""
    kernel, axes = window.kernel_shape, len(window.kernel_shape)
    strides, dilations = window.strides or (1,) * axes, window.dilations or (1,) * axes
    around = window.padding(axes)
    if not isinstance(around, str):
        kernel = tuple(map(_clipped, layout.sizes(X), kernel, strides, dilations, around))
        if window.ceil_mode:
            around = tuple(map(_rounded_up, layout.sizes(X), kernel, strides, dilations, around))
        around = layout.entries(around, (0, 0))
    options = {} if set(dilations) == {1} else {"window_dilation": layout.entries(dilations, 1)}
    return layout.entries(kernel, 1), layout.entries(strides, 1), around, options


def _clipped(size: Dim, kernel: int, stride: int, dilation: int, around: tuple[int, int]) -> int:
    """Crop a kernel with a single window to the input's end, since the rest would be computed for nothing.

    Without `ceil_mode` this occurs, too: ONNX and ONNX Runtime round the number of windows towards zero, to one.
    """
    if is_dim(size) or dilation > 1:
        return kernel
    whole = int(size) + sum(around)
    return whole if 0 < whole < kernel < whole + stride else kernel


def _rounded_up(size: Dim, kernel: int, stride: int, dilation: int, around: tuple[int, int]) -> tuple[int, Dim]:
    """Return the padding with what a last, incomplete window needs; it has to start inside the input or its padding.

    It lacks `mod(-beyond, stride)` elements, and starts there if these are less than `room`: a formula, so that nothing
    is decided about a size that is open.
    """
    low, high = around
    span = (kernel - 1) * dilation + 1
    beyond, room = size + low + high - span, min(span - high, stride)
    if room <= 0:
        return around
    more = (-beyond - room) % stride + room - stride
    return low, high + (more if room == stride else max_dim(more, 0))


def _lowest(dtype: np.dtype) -> HostValue | float:
    return host(np.iinfo(dtype).min, dtype) if dtype.kind in "iu" else -math.inf


@helper
def dilated_max_pool(x, window, strides, padding, dilation):
    """Return the maximum of each window of `x` whose elements are `dilation` apart.

    `lax.reduce_window` has no gradient there; that of the maximum of strided slices is taken.
    """
    lowest = jnp.iinfo(x.dtype).min if jnp.issubdtype(x.dtype, jnp.integer) else -jnp.inf
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]

    def pooled(x):
        low = jnp.asarray(lowest, x.dtype)[()]
        return lax.reduce_window(x, low, lax.max, window, strides, padding, window_dilation=dilation)

    def sliced(x):
        around = lax.padtype_to_pads(x.shape, spans, strides, padding) if isinstance(padding, str) else padding
        x = jnp.pad(x, around, constant_values=lowest)
        lengths = [(n - span) // s * s + 1 for n, span, s in zip(x.shape, spans, strides, strict=True)]
        parts = []
        for offset in np.ndindex(*window):
            first = [o * d for o, d in zip(offset, dilation, strict=True)]
            parts.append(lax.slice(x, first, [f + n for f, n in zip(first, lengths, strict=True)], strides))
        return jnp.stack(parts).max(0)

    pool = jax.custom_jvp(pooled)
    pool.defjvp(lambda primals, tangents: jax.jvp(sliced, primals, tangents))
    return pool(jnp.asarray(x))


@helper
def max_pool_indices(x, window, strides, padding, dilation, column_major):
    """Return the flat index in `x` of the largest element of each window."""
    spatial = x.shape[2:]
    if isinstance(padding, str):
        spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
        padding = lax.padtype_to_pads(x.shape, spans, strides, padding)
    lowest = jnp.iinfo(x.dtype).min if jnp.issubdtype(x.dtype, jnp.integer) else -jnp.inf
    padded = jnp.pad(x, padding, constant_values=lowest)
    starts, values, positions = [low for low, _ in padding[2:]], [], []
    strides, dilation = strides[2:], dilation[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(window[2:], dilation, strict=True)]
    counts = [(n - span) // s + 1 for n, span, s in zip(padded.shape[2:], spans, strides, strict=True)]
    order = range(len(spatial)) if column_major else reversed(range(len(spatial)))
    steps, step = [0] * len(spatial), 1
    for axis in order:
        steps[axis], step = step, step * spatial[axis]
    for offset in np.ndindex(*window[2:]):
        first = [o * d for o, d in zip(offset, dilation, strict=True)]
        index = tuple(slice(f, f + (c - 1) * s + 1, s) for f, c, s in zip(first, counts, strides, strict=True))
        values.append(padded[(slice(None), slice(None), *index)])
        at = 0
        for axis, (f, c, s) in enumerate(zip(first, counts, strides, strict=True)):
            along = (jnp.arange(c) * s + f - starts[axis]) * steps[axis]
            at = at + along.reshape([-1 if a == axis else 1 for a in range(len(spatial))])
        positions.append(at)
    largest = jnp.argmax(jnp.stack(values), axis=0)
    indices = jnp.take_along_axis(jnp.stack(positions)[:, None, None], largest[None], axis=0)[0]
    maps = jnp.arange(x.shape[0] * x.shape[1]) * step
    return indices + maps.reshape(x.shape[:2] + (1,) * len(spatial))


@image_op("MaxPool", since=10)
def max_pool(layout, X, *, storage_order=0, window: PoolingAttributes, outputs: OutputCount = 1):
    shape, strides, around, options = _windows(layout, X, window)
    dilation = options.get("window_dilation", (1,) * X.ndim)
    if options:
        y = dilated_max_pool(X, shape, strides, around, dilation)
    else:
        y = lax.reduce_window(X, _lowest(X.dtype), lax.max, shape, strides, around)
    if outputs == 1:
        return y
    return y, max_pool_indices(X, shape, strides, around, dilation, bool(storage_order))


earlier("MaxPool", since=8, until=9, without="ceil_mode dilations")
earlier("MaxPool", since=1, until=7, without="storage_order")


@helper
def avg_pool(x, window, strides, padding, **options):
    """Return the mean of each window of `x`, in which padding counts as zeros."""
    return lax.reduce_window(x, 0.0, lax.add, window, strides, padding, **options) / int(np.prod(window))


@image_op("AveragePool", since=19)
def average_pool(layout, X, *, count_include_pad=0, window: PoolingAttributes):
    shape, steps, around, options = _windows(layout, X, window)
    if around == "VALID" or (not isinstance(around, str) and not any(map(any, around))):
        return avg_pool(X, shape, steps, around, **options)
    # An element counts inside the input, and in the padding if that is requested, but not in the extra padding of
    # rounding up.
    counted = jnp.ones(layout.entries(layout.sizes(X), 1), X.dtype)
    if count_include_pad:
        if isinstance(around, str):
            return avg_pool(X, shape, steps, around, **options)
        asked = layout.entries(window.padding(len(window.kernel_shape)), (0, 0))
        counted = jnp.pad(counted, asked, constant_values=1)
        extra = tuple((0, high - more) for (_, high), (_, more) in zip(around, asked, strict=True))
        if not any(map(any, extra)):
            return avg_pool(X, shape, steps, around, **options)
    else:
        extra = around
    total = lax.reduce_window(X, 0.0, lax.add, shape, steps, around, **options)
    return divide(total, lax.reduce_window(counted, 0.0, lax.add, shape, steps, extra, **options))


earlier("AveragePool", since=10, until=18, without="dilations")
earlier("AveragePool", since=7, until=9, without="ceil_mode")
earlier("AveragePool", since=1, until=6, without="count_include_pad")


def _root(x: Tensor, p: float) -> Tensor:
    return x if p == 1 else safe_root(x) if p == 2 else safe_root(x, p)


def _powers(x: Tensor, p: float) -> Tensor:
    return jnp.abs(x) if p == 1 else x * x if p == 2 else jnp.power(jnp.abs(x), p)


@image_op("LpPool", since=18)
def lp_pool(layout, X, *, p=2, window: PoolingAttributes):
    shape, steps, around, options = _windows(layout, X, window)
    return _root(lax.reduce_window(_powers(X, p), 0.0, lax.add, shape, steps, around, **options), p)


earlier("LpPool", since=2, until=17, without="ceil_mode dilations")
earlier("LpPool", since=1, until=1, kernel_shape=None, p=2.0)


@image_op("GlobalAveragePool", since=1)
def global_average_pool(layout, X):
    return jnp.mean(X, axis=layout.spatial(X), keepdims=True)


@image_op("GlobalMaxPool", since=1)
def global_max_pool(layout, X):
    return jnp.max(X, axis=layout.spatial(X), keepdims=True)


@image_op("GlobalLpPool", since=2)
def global_lp_pool(layout, X, *, p=2):
    return _root(jnp.sum(_powers(X, p), axis=layout.spatial(X), keepdims=True), p)


earlier("GlobalLpPool", since=1, until=1, p=2.0)


@op("MaxUnpool", since=9)
def max_unpool(X, I, output_shape: Host | None = None, *, kernel_shape, pads=None, strides=None):
    axes = len(kernel_shape)
    strides, pads = strides or (1,) * axes, pads or (0,) * (2 * axes)
    sizes = [
        (n - 1) * stride + k - low - high
        for n, stride, k, low, high in zip(X.shape[2:], strides, kernel_shape, pads[:axes], pads[axes:], strict=True)
    ]
    # The indices count elements of the pooled array; a larger output only adds room at the end of each axis.
    inferred = (*X.shape[:2], *sizes)
    flat = jnp.zeros((math.prod(inferred),), X.dtype)
    y = jnp.reshape(flat.at[jnp.reshape(I, (-1,))].set(jnp.reshape(X, (-1,))), inferred)
    if output_shape is None:
        return y
    return jnp.pad(y, [(0, wanted - size) for wanted, size in zip(output_shape, inferred, strict=True)])
