"""Reductions over sliding windows: pooling in any layout and dtype, any monoid, and the derivatives of max pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from jaxport.export.emit import intervals
from jaxport.export.emit.registry import rule
from jaxport.export.rules.sliding import Window, fitted, padded, seen, windows
from jaxport.jaxprs import ClosedJaxpr, PythonFunction, dims, jaxpr_as_fun


@dataclass(frozen=True)
class Reduction:
    """A reduction over windows.

    Attributes:
      identity: the padding value in a dtype.
      over_axes: the reduction over axes, a function of `jax.numpy`.
      pool: the reduction by a pooling operator: `(op, x, attributes, exact)`; `exact` is set for integers.
      dtypes: the dtypes that the operator pools, each with the one that it computes in.
    """

    identity: Callable[[np.dtype], ArrayLike]
    over_axes: PythonFunction
    pool: PythonFunction
    dtypes: Mapping[np.dtype, np.dtype]


def computed_in(**rows: str) -> dict[np.dtype, np.dtype]:
    """Return a table of dtypes from their names, with several in one entry."""
    named = lambda name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    return {named(name): named(carrier) for carrier, names in rows.items() for name in names.split()}


def window_over(*, window_dimensions, window_strides, padding, window_dilation=None, base_dilation=None):
    """Return a `Window` per axis from the parameters of a primitive."""
    ones = (1,) * len(window_dimensions)
    return windows(window_dimensions, window_strides, padding, window_dilation or ones, base_dilation or ones)


def pooled(op, x, window, reduction):
    """Reduce over a window: by a pooling operator if it can, else axis by axis."""
    out, identity = op.out.shape, reduction.identity(x.dtype)
    if any(dims.same(size, 0) for size in (*x.shape, *out)):
        return op.expand(op.const(identity, x.dtype), out)
    axes = [axis for axis, w in enumerate(window) if w.slides]
    if all(window[axis] == Window(x.shape[axis], window[axis].stride) for axis in axes):  # there is a single place
        return op.call(reduced, x, over_axes=reduction.over_axes, axes=tuple(axes)) if axes else x
    sliding = [window[axis] for axis in axes]
    if x.dtype in reduction.dtypes and poolable(op, sliding, reduction):
        order = [axis for axis in range(x.rank) if axis not in axes] + axes
        images, options = fitted(op, channels_first(op, op.transpose(x, order), len(axes)), sliding, identity)
        images, options["kernel_shape"] = op.cast(images, reduction.dtypes[x.dtype]), [w.size for w in sliding]
        result = op.cast(reduction.pool(op, images, options, x.dtype.kind in "iub"), x.dtype)
        return op.transpose(op.reshape(result, [out[axis] for axis in order]), np.argsort(order))
    x = padded(op, x, window, identity)
    for axis in axes:
        x = op.Gather(x, seen(op, window[axis], out[axis]), axis=axis)
        x = op.call(reduced, x, over_axes=reduction.over_axes, axes=(axis + 1,), keepdims=False)
    return x


def reduced(x, *, over_axes, axes, keepdims=True):
    """Sum, maximize or minimize over axes in the dtype of `x`."""
    return over_axes(x, axis=axes, keepdims=keepdims).astype(x.dtype)


def poolable(op, window, reduction):
    """Whether a pooling operator supports a window: at most three axes, and some of the data at each place."""
    if len(window) > 3 or not dims.all_static([w.size for w in window]):
        return False
    if reduction is SUM and op.opset < 19 and any(w.dilation != 1 for w in window):
        return False  # AveragePool had no dilation before
    # Not even with a Pad before it: ONNX Runtime fuses the two into one operator, which it then refuses.
    largest = lambda w: w.size - 1 if w.dilation == 1 else 0
    static = [w for w in window if dims.all_static(w.pads)]
    return all(w.base_dilation == 1 for w in window) and all(0 <= p <= largest(w) for w in static for p in w.pads)


def channels_first(op, x, spatial):
    """Return `x` as (N, C, ...): all axes before the spatial ones merged into two."""
    lead = x.shape[: x.rank - spatial]
    return op.reshape(x, (math.prod(lead[:-1]), math.prod(lead[-1:]), *x.shape[x.rank - spatial :]))


def sum_pool(op, x, options, exact):
    """Compute a sum as the mean times the number of elements."""
    size = op.const(math.prod(options["kernel_shape"]), x.dtype)
    return op.Mul(op.AveragePool(x, count_include_pad=1, **options), size)


def max_pool(op, x, options, exact):
    """Compute the maximum. The runtime's ignores NaN, and replaces minus infinity by the lowest finite number."""
    if exact:
        return op.MaxPool(x, **options)
    if op.walker.nonfinite != "exact":
        op.remark = 'passes over NaN, minus infinity is the lowest float; `nonfinite="exact"` keeps both'
        return op.MaxPool(x, **options)
    any_nan = op.cast(op.MaxPool(op.cast(op.IsNaN(x), np.uint8), **options), np.bool_)
    if intervals.above_minus_infinity(x):
        result = op.MaxPool(x, **options)
    else:  # of halves: none is the lowest float, and doubling that gives minus infinity
        result = op.Mul(op.MaxPool(op.Mul(x, op.const(0.5, x.dtype)), **options), op.const(2, x.dtype))
    return op.Where(any_nan, op.const(np.nan, x.dtype), result)


def min_pool(op, x, options, exact):
    """Compute the minimum, as the negative of the maximum of negatives."""
    return op.Neg(max_pool(op, op.Neg(x), options, exact))


def zero(dtype):
    """Return the identity of the sum."""
    return np.zeros((), dtype)


def lowest(dtype):
    """Return the identity of the maximum."""
    return False if dtype.kind == "b" else -np.inf if jnp.issubdtype(dtype, np.floating) else int(jnp.iinfo(dtype).min)


def highest(dtype):
    """Return the identity of the minimum."""
    return True if dtype.kind == "b" else np.inf if jnp.issubdtype(dtype, np.floating) else int(jnp.iinfo(dtype).max)


SUM = Reduction(zero, jnp.sum, sum_pool, computed_in(float32="float16 bfloat16 float32"))
MAX = Reduction(
    lowest,
    jnp.max,
    max_pool,
    computed_in(uint8="bool uint8", int8="int8", float32="int16 uint16 float16 bfloat16 float32", float64="float64"),
)
MIN = Reduction(
    highest,
    jnp.min,
    min_pool,
    computed_in(float32="bool int8 uint8 int16 uint16 float16 bfloat16 float32", float64="float64"),
)


@rule("reduce_window_sum")
def reduce_window_sum(op, x, **parameters):
    return pooled(op, x, window_over(**parameters), SUM)


@rule("reduce_window_max")
def reduce_window_max(op, x, **parameters):
    return pooled(op, x, window_over(**parameters), MAX)


@rule("reduce_window_min")
def reduce_window_min(op, x, **parameters):
    return pooled(op, x, window_over(**parameters), MIN)


@rule("reduce_window")
def reduce_window(op, *operands, jaxpr, consts, **parameters):
    """Reduce by any monoid: fold the elements of each window by halves."""
    window, count = window_over(**parameters), len(operands) // 2
    xs, initial = operands[:count], operands[count:]
    views = [flat_views(op, x, window, start) for x, start in zip(xs, initial, strict=True)]
    combine = jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))
    if all(w.base_dilation == 1 and all(dims.same(pad, 0) for pad in w.pads) for w in window):
        return op.call(folded, *views, *initial, combine=combine)
    # What is around and between the data is passed over: the initial value, which may change others, is used once.
    inside = flat_views(op, op.expand(op.const(True), xs[0].shape), window, op.const(False))
    return op.call(folded, inside, *views, op.const(True), *initial, combine=of_those_inside(combine))[1:]


def of_those_inside(combine):
    """Return the function that combines those of its operands, led by a flag, whose flag is set."""

    def combined(*operands):
        (first, *xs), (second, *ys) = operands[: len(operands) // 2], operands[len(operands) // 2 :]
        both = combine(*xs, *ys)
        kept = [jnp.where(first & second, b, jnp.where(first, x, y)) for b, x, y in zip(both, xs, ys, strict=True)]
        return [first | second, *kept]

    return combined


def flat_views(op, x, window, fill):
    """Return the elements of a window at each place along a last axis: `(*places, elements)`."""
    axes = [axis for axis, w in enumerate(window) if w.slides]
    x = padded(op, x, window, fill)
    places = places_of(x.shape, window)
    for axis in reversed(axes):
        x = op.Gather(x, seen(op, window[axis], places[axis]), axis=axis)
    elements = [axis + 1 + i for i, axis in enumerate(axes)]
    x = op.transpose(x, [axis for axis in range(x.rank) if axis not in elements] + elements)
    return op.reshape(x, (*places, math.prod(window[axis].size for axis in axes)))


def places_of(shape, window):
    """Return the number of places of a window, by axis, in padded data of a shape."""
    return [(size - w.reach - 1) // w.stride + 1 for size, w in zip(shape, window, strict=True)]


def folded(*operands, combine):
    """Fold the last axis of some arrays, starting from as many scalars, neighbours first."""
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
    """Return the tangent at the element of `x` that a window selects: the derivative of max and min pooling."""
    window = window_over(**parameters)
    views = [
        flat_views(op, value, window, fill) for value, fill in ((tangents, 0), (ascending(op, x, select_prim), -np.inf))
    ]
    return op.call(selected_tangent, *views)


@rule("select_and_scatter_add")
def select_and_scatter_add(op, source, x, *, select_prim, **parameters):
    """Add each element of `source` where its window selects an element of `x`: the transpose of max pooling."""
    window = window_over(**parameters)
    if any(dims.same(size, 0) for size in (*x.shape, *source.shape)):
        return op.expand(op.const(0, source.dtype), op.out.shape)
    views = flat_views(op, ascending(op, x, select_prim), window, -np.inf)
    shape = padded_shape(x, window)
    index = flat_index(op, op.call(selection, views), window, shape)
    dtype = np.float64 if source.dtype == np.float64 else np.float32  # the runtime adds in no narrower float
    zeros = op.expand(op.const(0, dtype), (math.prod(shape),))
    updates = op.reshape(op.cast(source, dtype), index.shape)
    if op.opset < 16 and not dims.all_static(shape):
        op.refuse("needs ScatterElements with `reduction` for open sizes, which is new in opset 16")
    if op.opset < 16:
        total = op.call(lambda zeros, index, updates: zeros.at[index].add(updates), zeros, index, updates)
    else:
        total = op.ScatterElements(zeros, index, updates, axis=0, reduction="add")
    return op.cast(cropped(op, op.reshape(total, shape), window), source.dtype)


@rule("select_and_scatter")
def select_and_scatter(
    op, x, source, initial, *, select_jaxpr, select_consts, scatter_jaxpr, scatter_consts, **parameters
):
    """Combine each element of `source` with the element that its window selects in `x`, in turn."""
    window = window_over(**parameters)
    inside = op.expand(op.const(True), x.shape)
    views = [flat_views(op, value, window, fill) for value, fill in ((x, 0), (inside, False))]
    select, scatter = (
        jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))
        for jaxpr, consts in ((select_jaxpr, select_consts), (scatter_jaxpr, scatter_consts))
    )
    shape = padded_shape(x, window)
    index = flat_index(op, op.call(first_selected, *views, select=select), window, shape)
    total = op.call(combined, initial, index, source, scatter=scatter, size=math.prod(shape))
    return cropped(op, op.reshape(total, shape), window)


def padded_shape(x, window):
    """Return the shape of the data that a window slides over."""
    return tuple(size + sum(w.pads) for size, w in zip(x.shape, window, strict=True))


def cropped(op, x, window):
    """Remove the padding from padded data."""
    return padded(op, x, [Window(1, pads=(-w.pads[0], -w.pads[1])) for w in window], 0)


def first_selected(views, inside, *, select):
    """Return the element of the last axis that remains after comparing the best one so far with each next one."""
    for _ in range(views.ndim - 1):
        select = jax.vmap(select)

    def step(best, element):
        value, is_inside, place = element
        better = is_inside & ((best[1] < 0) | ~select(best[0], value)[0])
        return (jnp.where(better, value, best[0]), jnp.where(better, place, best[1])), None

    elements = (*(jnp.moveaxis(x, -1, 0) for x in (views, inside)), jnp.arange(views.shape[-1]))
    start = jnp.zeros(views.shape[:-1], views.dtype), jnp.full(views.shape[:-1], -1)
    return lax.scan(step, start, elements)[0][1]


def combined(initial, index, source, *, scatter, size):
    """Combine each element of `source` with the element of flat data at its index."""

    def step(total, update):
        place, value = update
        return total.at[place].set(scatter(total[place], value)[0]), None

    return lax.scan(step, jnp.full(size, initial), (index, source.ravel()))[0]


def ascending(op, x, select_prim):
    """Return `x`, or its negative if a window selects the smallest element, in a dtype that the runtime compares."""
    x = op.cast(x, np.float32) if x.dtype.itemsize < 4 else x
    return op.Neg(x) if select_prim.name == "le" else x


def selection(views):
    """Return the element of the last axis that a scan with `>=` ends with: the first of the largest after the last
    NaN.
    """
    places, last, nan = jnp.arange(views.shape[-1]), views.shape[-1] - 1, jnp.isnan(views)
    last_nan = jnp.where(nan, places, -1).max(-1, keepdims=True)
    candidate = places > jnp.minimum(last_nan, last - 1)
    largest = jnp.where(candidate, views, -jnp.inf).max(-1, keepdims=True)
    return jnp.where(candidate & ((views == largest) | nan), places, last).min(-1)


def selected_tangent(tangents, views):
    """Return the tangent at the selected element; zero if no element exceeds the initial value of the scan."""
    chosen = (jnp.arange(views.shape[-1]) == selection(views)[..., None]) & (views != -jnp.inf)
    return jnp.where(chosen, tangents, 0).sum(-1, dtype=tangents.dtype)


def flat_index(op, chosen, window, shape):
    """Return the positions of the windows' chosen elements in the flattened padded data, in order."""
    index = op.call(index_of, chosen, window=tuple(window), shape=shape)
    return op.reshape(index, (math.prod(index.shape),))


def index_of(chosen, *, window, shape):
    flat = jnp.zeros_like(chosen)
    places = [lax.broadcasted_iota(chosen.dtype, chosen.shape, axis) for axis in range(chosen.ndim)]
    for axis in reversed(range(chosen.ndim)):
        w = window[axis]
        size = jnp.asarray(w.size, chosen.dtype)
        chosen, element = lax.div(chosen, size), lax.rem(chosen, size)  # neither is negative
        flat = flat + (places[axis] * w.stride + element * w.dilation) * math.prod(shape[axis + 1 :])
    return flat
