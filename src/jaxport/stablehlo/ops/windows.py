"""Reductions, windows and sorting: a region that is one operation of JAX is that operation."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.stablehlo import host, recognised
from jaxport.stablehlo.ops.arithmetic import as_type, order_key
from jaxport.stablehlo.registry import define


def _halves(xs):
    return xs[: len(xs) // 2], xs[len(xs) // 2 :]


def _pairwise(region):
    """Return a region of values and values as a function of two tuples, or of two values."""
    return lambda x, y: region(*x, *y) if isinstance(x, tuple) else region(x, y)[0]


def _promoted(xs, region):
    """Return operands in the types that a region computes with, which may be wider: as many as there are."""
    return [as_type(x, kind) for x, kind in zip(xs, itertools.cycle(region.body.types), strict=False)]


@define("reduce")
def reduce(*xs, dimensions, regions, context):
    xs, inits = _halves(_promoted(xs, regions[0]))
    if not dimensions:
        return _elementwise(regions[0], xs[0].ndim, len(xs))(*(jnp.broadcast_to(i, xs[0].shape) for i in inits), *xs)
    first = recognised.first_extreme(context.walk.module, context.operation)
    if first is not None:
        index = first(xs[0], dimensions[0], context.operation.types[1].dtype)
        wide = lax.expand_dims(index, dimensions)
        return jnp.take_along_axis(xs[0], wide, dimensions[0]).squeeze(dimensions), index
    if len(xs) == 1:
        return lax.reduce(xs[0], inits[0], recognised.monoid(regions[0]) or _pairwise(regions[0]), dimensions)
    return lax.reduce(tuple(xs), tuple(inits), _pairwise(regions[0]), dimensions)


_CUMULATIVE = {
    lax.add: lax.cumsum, lax.mul: lax.cumprod, lax.max: lax.cummax, lax.min: lax.cummin,
    jnp.logaddexp: lax.cumlogsumexp,
}  # fmt: skip
MOST_UNROLLED = 64
"""How many elements a window has at most that is reduced one place after the other, which has a derivative."""


def _running(function, x, init, window, padding):
    """Return the running reduction that a window over all that is before an element is; None if it is another."""
    axes = [axis for axis, size in enumerate(window) if size != 1]
    if (
        function not in _CUMULATIVE
        or len(axes) != 1
        or window[axes[0]] != x.shape[axes[0]]
        or not _is_start(function, init)
    ):
        return None
    (axis,) = axes
    size, pads = x.shape[axis], [tuple(pair) for pair in padding]
    if any(pair != (0, 0) for at, pair in enumerate(pads) if at != axis):
        return None
    if pads[axis] not in ((size - 1, 0), (0, size - 1)):
        return None
    return _CUMULATIVE[function](x, axis, reverse=pads[axis] == (0, size - 1))


def _is_start(function, init):
    if not isinstance(init, np.ndarray):
        return False
    kind = init.dtype
    lowest = -np.inf if jnp.issubdtype(kind, jnp.floating) else (np.iinfo(kind).min if kind.kind in "iu" else 0)
    highest = np.inf if jnp.issubdtype(kind, jnp.floating) else (np.iinfo(kind).max if kind.kind in "iu" else 1)
    start = {lax.add: 0, lax.mul: 1, lax.max: lowest, lax.min: highest, jnp.logaddexp: lowest}[function]
    return bool(init == np.asarray(start, kind))


@define("reduce_window")
def reduce_window(
    *xs,
    window_dimensions,
    window_strides=None,
    base_dilations=None,
    window_dilations=None,
    padding=None,
    regions,
    context,
):
    xs, inits = _halves(xs)
    return _windows(
        xs, inits, window_dimensions, window_strides, base_dilations, window_dilations, padding, regions, context
    )


@define("@stablehlo.dynamic_reduce_window")
def dynamic_reduce_window(x, init, *sizes, called_computations, context, **_):
    window, strides, base, dilations, pads = (host.dims_of(each, context.where) for each in sizes)
    module = context.walk.module
    region = context.walk.region(module.functions[called_computations[0]].body, {})
    padding = list(zip(pads[::2], pads[1::2], strict=True))
    return _windows((x,), (init,), window, strides, base, dilations, padding, (region,), context)


def _windows(xs, inits, window_dimensions, window_strides, base_dilations, window_dilations, padding, regions, context):
    ones, (region,) = (1,) * len(window_dimensions), regions
    padding = [(0, 0)] * len(ones) if padding is None else [tuple(pair) for pair in padding]
    xs, inits = _halves(_promoted([*xs, *inits], region))
    monoid = recognised.monoid(region) if len(xs) == 1 else None
    plain = all(set(given or (1,)) == {1} for given in (window_strides, base_dilations, window_dilations))
    if monoid is not None and plain:
        running = _running(monoid, xs[0], context.known(1), window_dimensions, padding)
        if running is not None:
            return running
    given = (window_dimensions, window_strides or ones, padding, base_dilations or ones, window_dilations or ones)
    if monoid is not None and monoid is not jnp.logaddexp:
        init = inits[0] if context.known(1) is None else context.known(1).astype(xs[0].dtype)
        return lax.reduce_window(xs[0], init, monoid, *given)
    if math.prod(window_dimensions) <= MOST_UNROLLED:
        return _unrolled(xs, inits, region, *given)
    return lax.reduce_window(
        *((xs[0], inits[0]) if len(xs) == 1 else (tuple(xs), tuple(inits))), _pairwise(region), *given
    )


def _unrolled(xs, inits, region, window, strides, padding, base_dilations, window_dilations):
    """Reduce windows by any function, one place within the windows after the other, each for all windows at once."""
    pads = [(low, high, dilation - 1) for (low, high), dilation in zip(padding, base_dilations, strict=True)]
    padded = [lax.pad(x, init, pads) for x, init in zip(xs, inits, strict=True)]
    rows = list(zip(padded[0].shape, window, strides, window_dilations, strict=True))
    places = [max((size - (count - 1) * apart - 1) // stride + 1, 0) for size, count, stride, apart in rows]
    function = _elementwise(region, len(places), len(xs))
    state = [jnp.broadcast_to(init, places) for init in inits]
    for offset in itertools.product(*map(range, window)):
        starts = [at * apart for at, apart in zip(offset, window_dilations, strict=True)]
        ends = [start + (n - 1) * stride + 1 for start, n, stride in zip(starts, places, strides, strict=True)]
        parts = [
            lax.slice(x, starts, ends, strides) if 0 not in places else y for x, y in zip(padded, state, strict=True)
        ]
        state = function(*state, *parts)
        state = state if isinstance(state, tuple) else (state,)
    return tuple(state)


@define("select_and_scatter")
def select_and_scatter(x, source, init, *, window_dimensions=None, window_strides=None, padding=None, regions, context):
    source, init = _promoted((source, init), regions[1])
    ones = (1,) * x.ndim
    window, strides = window_dimensions or ones, window_strides or ones
    pads = [(0, 0)] * x.ndim if padding is None else [tuple(map(int, pair)) for pair in padding]
    steps = context.operation.bodies[0].operations
    chosen = [o.attributes.get("comparison_direction") for o in steps] if len(steps) == 1 else []
    is_sum = recognised.monoid(regions[1]) is lax.add and context.known(2) is not None and not np.any(context.known(2))
    is_first = steps and steps[0].operands == context.operation.bodies[0].arguments
    if (
        is_sum
        and chosen in (["GE"], ["LE"])
        and is_first
        and jnp.issubdtype(x.dtype, jnp.floating)
        and x.dtype == source.dtype
    ):
        worst, function = (-np.inf, lax.max) if chosen == ["GE"] else (np.inf, lax.min)
        pooled = lambda x: lax.reduce_window(x, np.array(worst, x.dtype), function, window, strides, pads)
        return jax.vjp(pooled, x)[1](source)[0]
    return _by_offsets(x, source, init, window, strides, pads, *regions)


def _by_offsets(x, source, init, window, strides, pads, select, scatter):
    """Select in windows, and scatter: one place within the windows after the other, each for all windows at once."""
    inside = lax.pad(jnp.ones(x.shape, bool), False, [(*pair, 0) for pair in pads])
    padded = lax.pad(x, jnp.zeros((), x.dtype), [(*pair, 0) for pair in pads])
    offsets = list(itertools.product(*map(range, window)))
    ends = lambda offset: [o + (n - 1) * s + 1 for o, n, s in zip(offset, source.shape, strides, strict=True)]
    of_numbers = lambda function: _elementwise(function, source.ndim)
    best, place, found = None, None, None
    for at, offset in enumerate(offsets):
        value, is_inside = (lax.slice(each, offset, ends(offset), strides) for each in (padded, inside))
        if at == 0:
            best, place, found = value, jnp.zeros(value.shape, np.int32), is_inside
            continue
        keeps = (of_numbers(select)(best, value) & found) | ~is_inside
        best, place, found = jnp.where(keeps, best, value), jnp.where(keeps, place, at), found | is_inside
    made = jnp.broadcast_to(init, padded.shape)
    for at, offset in reversed([*enumerate(offsets)]):  # what is far into its window is in the first one, as XLA goes
        cells = tuple(slice(o, e, s) for o, e, s in zip(offset, ends(offset), strides, strict=True))
        made = made.at[cells].set(jnp.where(place == at, of_numbers(scatter)(made[cells], source), made[cells]))
    return lax.slice(made, [low for low, _ in pads], [low + n for (low, _), n in zip(pads, x.shape, strict=True)])


def _elementwise(region, rank, count=1):
    """Return a region of numbers as a function of arrays, which returns one, or a tuple of `count`."""
    function = region if count > 1 else lambda *numbers: region(*numbers)[0]
    for _ in range(rank):
        function = jax.vmap(function)
    return function


@define("sort")
def sort(*xs, dimension=-1, is_stable=False, regions, context):
    dimension, body, dtypes = dimension % xs[0].ndim, regions[0].body, [x.dtype for x in xs]
    keys = recognised.sort_keys(context.walk.module, body, dtypes)
    if keys > 0:
        return lax.sort(xs, dimension, is_stable, keys)
    single = _single_key(body, xs)
    if single is not None:
        return lax.sort((single, *xs), dimension, True)[1:]
    return _by_ranks(xs, dimension, regions[0])


def _single_key(body, xs):
    """Return whole numbers that order as a comparator that only compares one pair of its operands; else None."""
    step = body.operations[0] if len(body.operations) == 1 else None
    if step is None or step.name != "stablehlo.compare" or step.results != body.returned:
        return None
    at, direction = body.arguments.index(step.operands[0]), step.attributes["comparison_direction"]
    pair = body.arguments[at - at % 2 : at - at % 2 + 2]
    if set(step.operands) != set(pair) or direction not in ("LT", "GT") or jnp.iscomplexobj(xs[at // 2]):
        return None
    x = xs[at // 2]
    is_total = step.attributes.get("compare_type") == "TOTALORDER"
    key = order_key(x if is_total or not jnp.issubdtype(x.dtype, jnp.floating) else jnp.where(x == 0, 0 * abs(x), x))
    is_up = (direction == "LT") == (step.operands == pair)
    return key if is_up else ~key


def _by_ranks(xs, axis, region):
    """Sort by any comparator: the rank of an element is how many come before it."""
    xs, count = [jnp.moveaxis(x, axis, -1) for x in xs], xs[0].shape[axis]
    less = _elementwise(region, xs[0].ndim + 1)
    rows = [x[..., :, None] for x in xs]
    wide = [jnp.broadcast_to(x, (*x.shape[:-1], count)) for x in rows]
    operands = [each for x in wide for each in (x, jnp.swapaxes(x, -1, -2))]
    before = less(*operands)
    first = jnp.arange(count)[:, None] < jnp.arange(count)[None, :]
    is_tied = ~before & ~jnp.swapaxes(before, -1, -2)
    ranks = jnp.sum(before | (is_tied & first), -2)
    order = jnp.argsort(ranks, -1)
    return tuple(jnp.moveaxis(jnp.take_along_axis(x, order, -1), -1, axis) for x in xs)
