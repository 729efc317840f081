"""Reductions over sliding windows: pooling in any layout and dtype, any monoid, and the derivatives of max pooling."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxport.export import dims
from jaxport.export.registry import rule
from jaxport.export.rules.sliding import Window, fitted, padded, seen, windows

#: The dtype that holds all values of an integer dtype and that the runtime pools.
CARRIERS = {
    np.dtype(dtype): np.dtype(carrier)
    for dtype, carrier in {
        "bool": "uint8",
        "int8": "int8",
        "uint8": "uint8",
        "int16": "float32",
        "uint16": "float32",
        "int32": "float64",
        "uint32": "float64",
    }.items()
}


def window_over(*, window_dimensions, window_strides, padding, window_dilation=None, base_dilation=None):
    """A `Window` per axis from the parameters of a primitive."""
    ones = (1,) * len(window_dimensions)
    return windows(window_dimensions, window_strides, padding, window_dilation or ones, base_dilation or ones)


@rule("reduce_window_sum")
def reduce_window_sum(op, x, **parameters):
    return pooled(op, x, window_over(**parameters), 0, sum_pool, jnp.sum)


@rule("reduce_window_max")
def reduce_window_max(op, x, **parameters):
    return pooled(op, x, window_over(**parameters), lowest(x.dtype), max_pool, jnp.max)


@rule("reduce_window_min")
def reduce_window_min(op, x, **parameters):
    return pooled(op, x, window_over(**parameters), highest(x.dtype), min_pool, jnp.min)


def lowest(dtype):
    """The identity of the maximum."""
    return False if dtype.kind == "b" else np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def highest(dtype):
    """The identity of the minimum."""
    return True if dtype.kind == "b" else np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def pooled(op, x, window, identity, pool, reduction):
    """A reduction over a window: by a pooling operator where it takes the dtype and the rank, else axis by axis."""
    out = op.out.shape
    if any(dims.same(size, 0) for size in (*x.shape, *out)):
        return op.expand(op.const(identity, x.dtype), out)
    axes = [axis for axis, w in enumerate(window) if w.slides]
    if all(window[axis] == Window(x.shape[axis], window[axis].stride) for axis in axes):  # there is but one place
        return op.call(reduced, x, reduction=reduction, axes=tuple(axes)) if axes else x
    if len(axes) <= 3 and dims.all_static([window[axis].size for axis in axes]):
        order = [axis for axis in range(x.rank) if axis not in axes] + axes
        images = channels_first(op, op.transpose(x, order), len(axes))
        result = pool(op, images, [window[axis] for axis in axes], identity)
        if result is not None:
            return op.transpose(op.reshape(result, [out[axis] for axis in order]), np.argsort(order))
    x = padded(op, x, window, identity)
    for axis in axes:
        x = op.Gather(x, seen(op, window[axis], out[axis]), axis=axis)
        x = op.call(reduced, x, reduction=reduction, axes=(axis + 1,), keepdims=False)
    return x


def reduced(x, *, reduction, axes, keepdims=True):
    """A sum, maximum or minimum over axes in the dtype of `x`."""
    return reduction(x, axis=axes, keepdims=keepdims).astype(x.dtype)


def channels_first(op, x, spatial):
    """`x` as (N, C, ...): all axes before the spatial ones as two."""
    lead = x.shape[: x.rank - spatial]
    return op.reshape(x, (math.prod(lead[:-1]), math.prod(lead[-1:]), *x.shape[x.rank - spatial :]))


def reachable(w):
    """The padding that leaves at least one element of the data in every window, as pooling operators ask."""
    return w.size - 1 if w.dilation == 1 else 0


def sum_pool(op, x, window, identity):
    """A sum as the mean times the number of elements."""
    dilated = any(w.dilation != 1 for w in window)
    if x.dtype == np.float64 or x.dtype.kind in "iu" or (dilated and op.opset < 19):
        return None
    sizes, dtype = [w.size for w in window], x.dtype
    x, options = fitted(op, op.cast(x, np.float32), window, identity, reachable)
    mean = op.AveragePool(x, kernel_shape=sizes, count_include_pad=1, **options)
    return op.cast(op.Mul(mean, op.const(math.prod(sizes), np.float32)), dtype)


def max_pool(op, x, window, identity):
    """The maximum, which is NaN where a NaN is in the window: the runtime sees only some of them."""
    dtype, integer = x.dtype, x.dtype.kind in "iub"
    if integer and dtype not in CARRIERS:
        return None
    x, options = fitted(op, x, window, identity, reachable)
    options["kernel_shape"] = [w.size for w in window]
    if integer:
        return op.cast(op.MaxPool(op.cast(x, CARRIERS[dtype]), **options), dtype)
    any_nan = op.MaxPool(op.cast(op.IsNaN(x), np.uint8), **options)
    return op.Where(op.cast(any_nan, np.bool_), op.const(np.nan, dtype), op.MaxPool(x, **options))


def min_pool(op, x, window, identity):
    """The minimum as the opposite of the maximum of the opposites: negatives, or complements of integers."""
    kind = x.dtype.kind
    opposite = op.Not if kind == "b" else op.BitwiseNot if kind in "iu" else op.Neg
    result = max_pool(op, opposite(x), window, lowest(x.dtype))
    return result if result is None else opposite(result)


@rule("reduce_window")
def reduce_window(op, *operands, jaxpr, consts, **parameters):
    """Any monoid: what the window sees at each place is folded by halves."""
    window, count = window_over(**parameters), len(operands) // 2
    xs, initial = operands[:count], operands[count:]
    views = [flat_views(op, x, window, start) for x, start in zip(xs, initial, strict=True)]
    return op.call(folded, *views, *initial, combine=jaxpr_as_fun(ClosedJaxpr(jaxpr, consts)))


def flat_views(op, x, window, fill):
    """What a window sees at each place along a last axis: `(*places, elements)`."""
    axes = [axis for axis, w in enumerate(window) if w.slides]
    x = padded(op, x, window, fill)
    places = places_of(x.shape, window)
    for axis in reversed(axes):
        x = op.Gather(x, seen(op, window[axis], places[axis]), axis=axis)
    elements = [axis + 1 + i for i, axis in enumerate(axes)]
    x = op.transpose(x, [axis for axis in range(x.rank) if axis not in elements] + elements)
    return op.reshape(x, (*places, math.prod(window[axis].size for axis in axes)))


def places_of(shape, window):
    """How often a window fits into padded data of a shape."""
    return [(size - w.reach - 1) // w.stride + 1 for size, w in zip(shape, window, strict=True)]


def folded(*operands, combine):
    """The fold of the last axis of some arrays, starting from as many scalars, neighbours first."""
    count = len(operands) // 2
    views, initial = list(operands[:count]), operands[count:]
    elements = views[0].shape[-1]
    for _ in range(views[0].ndim):
        combine = jax.vmap(combine)
    while elements > 1:
        even = elements // 2 * 2
        first, second, rest = (
            [lax.slice_in_dim(view, *bounds, axis=view.ndim - 1) for view in views]
            for bounds in ((0, even, 2), (1, even, 2), (even, elements))
        )
        views = [jnp.concatenate(pair, -1) for pair in zip(combine(*first, *second), rest, strict=True)]
        elements -= even // 2
    starts = [jnp.broadcast_to(start, views[0].shape) for start in initial]
    return [result.squeeze(-1) for result in combine(*starts, *views)]


@rule("select_and_gather_add")
def select_and_gather_add(op, tangents, x, *, select_prim, **parameters):
    """The tangent at the element of `x` that a window selects: the derivative of max and min pooling."""
    window = window_over(**parameters)
    views = [
        flat_views(op, value, window, fill) for value, fill in ((tangents, 0), (ascending(op, x, select_prim), -np.inf))
    ]
    return op.call(selected_tangent, *views)


@rule("select_and_scatter_add")
def select_and_scatter_add(op, source, x, *, select_prim, **parameters):
    """Each element of `source` added where its window selects an element of `x`: max pooling backwards."""
    window = window_over(**parameters)
    if any(dims.same(size, 0) for size in (*x.shape, *source.shape)):
        return op.expand(op.const(0, source.dtype), op.out.shape)
    views = flat_views(op, ascending(op, x, select_prim), window, -np.inf)
    shape = tuple(size + sum(w.pads) for size, w in zip(x.shape, window, strict=True))
    index = op.call(selected_index, views, window=tuple(window), shape=shape)
    dtype = np.float64 if source.dtype == np.float64 else np.float32  # the runtime adds in no narrower float
    zeros = op.expand(op.const(0, dtype), (math.prod(shape),))
    updates = op.reshape(op.cast(source, dtype), index.shape)
    total = op.ScatterElements(zeros, index, updates, axis=0, reduction="add")
    cropped = [Window(1, pads=(-w.pads[0], -w.pads[1])) for w in window]
    return op.cast(padded(op, op.reshape(total, shape), cropped, 0), source.dtype)


def ascending(op, x, select_prim):
    """`x`, or its negative where a window selects the smallest element."""
    return op.Neg(x) if select_prim.name == "le" else x


def selection(views):
    """The element of the last axis that a scan with `>=` ends with: the first of the largest after the last NaN."""
    places, last, nan = jnp.arange(views.shape[-1]), views.shape[-1] - 1, jnp.isnan(views)
    last_nan = jnp.where(nan, places, -1).max(-1, keepdims=True)
    candidate = places > jnp.minimum(last_nan, last - 1)
    largest = jnp.where(candidate, views, -jnp.inf).max(-1, keepdims=True)
    return jnp.where(candidate & ((views == largest) | nan), places, last).min(-1)


def selected_tangent(tangents, views):
    """The tangent at the selected element; none where nothing exceeds what a scan starts with."""
    chosen = (jnp.arange(views.shape[-1]) == selection(views)[..., None]) & (views != -jnp.inf)
    return jnp.where(chosen, tangents, 0).sum(-1, dtype=tangents.dtype)


def selected_index(views, *, window, shape):
    """Where the selected elements lie in the flattened data that the window slides over."""
    chosen, flat = selection(views), 0
    places = [lax.broadcasted_iota(chosen.dtype, chosen.shape, axis) for axis in range(chosen.ndim)]
    for axis in reversed(range(chosen.ndim)):
        w = window[axis]
        size = jnp.asarray(w.size, chosen.dtype)
        chosen, element = lax.div(chosen, size), lax.rem(chosen, size)  # neither is negative
        flat = flat + (places[axis] * w.stride + element * w.dilation) * math.prod(shape[axis + 1 :])
    return flat.ravel()
