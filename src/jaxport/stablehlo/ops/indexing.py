"""Gathers and scatters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxport.stablehlo import host, recognised
from jaxport.stablehlo.registry import define


def _rows(indices, axis):
    """Return indices whose last axis is that of the vectors, and where it was before."""
    return lax.expand_dims(indices, (axis,)) if axis == indices.ndim else jnp.moveaxis(indices, axis, -1)


def _of(numbers, name):
    return tuple(getattr(numbers, name, ()))


@define("gather")
def gather(x, indices, *, dimension_numbers, slice_sizes, indices_are_sorted=False):
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
    return lax.gather(x, _rows(indices, axis), numbers, slice_sizes, indices_are_sorted=indices_are_sorted, mode="clip")


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
def scatter(*xs, scatter_dimension_numbers, indices_are_sorted=False, unique_indices=False, regions):
    count = len(xs) // 2
    operands, indices, updates = xs[:count], xs[count], xs[count + 1 :]
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
    given = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": "drop"}
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
