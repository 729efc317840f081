"""Gathers and scatters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.stablehlo import host, recognised
from jaxport.stablehlo.ops.arithmetic import as_type
from jaxport.stablehlo.reading import unread
from jaxport.stablehlo.registry import define


def _rows(indices, axis):
    """Return indices whose last axis is that of the vectors, and where it was before."""
    return lax.expand_dims(indices, (axis,)) if axis == indices.ndim else jnp.moveaxis(indices, axis, -1)


def _of(numbers, name):
    return tuple(getattr(numbers, name, ()))


@define("gather")
def gather(x, indices, *, dimension_numbers, slice_sizes, indices_are_sorted=False, **mode):
    names = (
        "offset_dims",
        "collapsed_slice_dims",
        "start_index_map",
        "operand_batching_dims",
        "start_indices_batching_dims",
    )
    numbers = lax.GatherDimensionNumbers(*(_of(dimension_numbers, name) for name in names))
    axis = getattr(dimension_numbers, "index_vector_dim", 0)
    numbers = _with_last(numbers, "start_indices_batching_dims", axis)
    given = {"mode": "clip", **mode, "indices_are_sorted": indices_are_sorted}
    return lax.gather(x, _rows(indices, axis), numbers, slice_sizes, **given)


@define("select")
def select(condition, x, y, *, context):
    """A selection, or the gather that fills in a number where its indices are out of range."""
    module, operation, made = context.walk.module, context.operation, context.makers[1]
    number = (
        None if made is None or not made.name.endswith("gather") else recognised.number(module, operation.operands[2])
    )
    if made is None or number is None or recognised.number(module, operation.operands[0]) is not None:
        return lax.select(condition, x, y)
    given, operands = {**unread(made.attributes), "mode": "fill", "fill_value": number}, made.operands[:2]
    sizes = given.pop("slice_sizes", None) or host.dims_of(context.values[made.operands[2]], context.where)
    is_whole = [
        size is whole or size == whole for size, whole in zip(sizes, np.shape(context.values[operands[0]]), strict=True)
    ]

    def filling(x, indices):
        own = [whole if is_own else size for size, whole, is_own in zip(sizes, x.shape, is_whole, strict=True)]
        return gather(x, indices, slice_sizes=own, **given)

    if recognised.is_lowered(context, operation.results[0], filling, operands):
        return filling(*(host.as_jax(context.values[value]) for value in operands))
    return lax.select(condition, x, y)


def _with_last(numbers, name, axis):
    """Return dimension numbers for indices whose vectors are moved from an axis to the last."""
    moved = tuple(dim - (dim > axis) for dim in getattr(numbers, name))
    return type(numbers)(**{**_fields(numbers), name: moved})


def _fields(numbers):
    return {name: getattr(numbers, name) for name in type(numbers)._fields}


@define("dynamic_gather")
def dynamic_gather(x, indices, sizes, *, dimension_numbers, indices_are_sorted=False, context):
    return gather(
        host.as_jax(x), host.as_jax(indices), dimension_numbers=dimension_numbers,
        slice_sizes=host.dims_of(sizes, context.where), indices_are_sorted=indices_are_sorted,
    )  # fmt: skip


@define("torch_index_select")
def torch_index_select(x, index, *, dim, batch_dims):
    function = lambda x, index: jnp.take(x, index, dim - batch_dims, mode="clip")
    for _ in range(batch_dims):
        function = jax.vmap(function)
    return function(x, index)


_SCATTERS = {
    lax.add: lax.scatter_add,
    lax.mul: lax.scatter_mul,
    lax.max: lax.scatter_max,
    lax.min: lax.scatter_min,
}


@define("scatter")
def scatter(*xs, regions, context, **given):
    """Scatter; indices that were clamped by the scatter itself are those before."""
    operation, clamped = context.operation, context.makers[len(xs) // 2]
    if len(xs) == 3 and clamped is not None and clamped.name == "stablehlo.clamp":
        operands = (operation.operands[0], clamped.operands[1], operation.operands[2])
        clipping = lambda *xs: _scatter(xs, "clip", regions, **given)
        if recognised.is_lowered(context, operation.results[0], clipping, operands):
            return clipping(*(host.as_jax(context.values[value]) for value in operands))
    return _scatter(xs, "drop", regions, **given)


def _scatter(xs, mode, regions, *, scatter_dimension_numbers, indices_are_sorted=False, unique_indices=False):
    count = len(xs) // 2
    kinds = regions[0].body.types[:count]  # which may be wider
    operands, updates = (list(map(as_type, each, kinds)) for each in (xs[:count], xs[count + 1 :]))
    indices = xs[count]
    names = (
        "update_window_dims",
        "inserted_window_dims",
        "scatter_dims_to_operand_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
    )
    numbers = lax.ScatterDimensionNumbers(*(_of(scatter_dimension_numbers, name) for name in names))
    axis = getattr(scatter_dimension_numbers, "index_vector_dim", 0)
    numbers, indices = _with_last(numbers, "scatter_indices_batching_dims", axis), _rows(indices, axis)
    given = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": mode}
    if count == 1:
        function = _SCATTERS.get(recognised.monoid(regions[0]))
        if recognised.returned_argument(regions[0]) == 1:
            function = lax.scatter
        if function is not None:
            return function(operands[0], indices, updates[0], numbers, **given)
    return _one_by_one(operands, indices, updates, numbers, regions[0])


def _one_by_one(operands, indices, updates, numbers, region):
    """Scatter by any function: each element of the updates in its turn."""
    targets = _targets(operands[0].shape, indices, updates[0].shape, numbers)
    flat = [x.ravel() for x in operands]
    rows = (targets.ravel(), *(update.ravel() for update in updates))

    def step(state, row):
        target, *values = row
        is_inside, at = target >= 0, jnp.maximum(target, 0)
        made = region(*(x[at] for x in state), *values)
        return tuple(x.at[at].set(jnp.where(is_inside, y, x[at])) for x, y in zip(state, made, strict=True)), None

    state, _ = lax.scan(step, tuple(flat), rows)
    return tuple(x.reshape(operand.shape) for x, operand in zip(state, operands, strict=True))


def _targets(shape, indices, updates, numbers):
    """Return the place in the flat operand of each element of the updates; -1 for windows that are not inside."""
    window = numbers.update_window_dims
    outer = [axis for axis in range(len(updates)) if axis not in window]
    kept = [
        axis
        for axis in range(len(shape))
        if axis not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    ]
    places, inside = jnp.zeros(updates, int), jnp.ones(updates, bool)
    stride = 1
    for axis in reversed(range(len(shape))):
        at = jnp.zeros(updates, int)
        if axis in numbers.scatter_dims_to_operand_dims:
            column = indices[..., numbers.scatter_dims_to_operand_dims.index(axis)].astype(at.dtype)
            at = at + lax.broadcast_in_dim(column, updates, outer)
        if axis in numbers.operand_batching_dims:
            batch = numbers.scatter_indices_batching_dims[numbers.operand_batching_dims.index(axis)]
            at = at + lax.broadcasted_iota(at.dtype, updates, outer[batch])
        size = 1
        if axis in kept:
            own = window[kept.index(axis)]
            size = updates[own]
            start, at = at, at + lax.broadcasted_iota(at.dtype, updates, own)
        else:
            start = at
        inside &= (start >= 0) & (start + size <= shape[axis])
        places, stride = places + at * stride, stride * shape[axis]
    return jnp.where(inside, places, -1)
