"""Reading and writing elements by position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jaxport.errors import AGAIN, ModelError, Refusal, Unsupported
from jaxport.importer.resolving.registry import Extent, Host, Position, earlier, op, variant
from jaxport.importer.values.host import HostValue, SizesNeeded, Tensor, host, is_dim
from jaxport.importer.values.namespaces import helper, jnp, known, lax
from jaxport.jaxprs import Dim, dims


@op("GatherElements", since=11)
def gather_elements(data, indices, *, axis=0):
    axis %= data.ndim
    # ONNX reads a corner of the other axes if there are fewer indices; JAX would broadcast a single index over them.
    corner = [
        slice(None) if i == axis or size == count else slice(count)
        for i, (size, count) in enumerate(zip(data.shape, indices.shape, strict=True))
    ]
    corner = [] if all(part == slice(None) for part in corner) else corner
    return jnp.take_along_axis(data[tuple(corner)] if corner else data, indices, axis=axis)


@helper
def gather_nd(data, indices, batch_dims):
    """Return `data` at the positions in the last axis of `indices`; the first `batch_dims` axes of both are paired."""
    batch = [lax.broadcasted_iota(indices.dtype, indices.shape[:-1], axis) for axis in range(batch_dims)]
    return jnp.asarray(data)[(*batch, *(indices[..., i] for i in range(indices.shape[-1])))]


@op("GatherND", since=12)
def gather_at(data, indices, *, batch_dims=0):
    return gather_nd(data, indices, batch_dims)


earlier("GatherND", since=11, until=11, without="batch_dims")


@helper
def combined_at(data, index, updates, update: str):
    """Return `data` with `updates` combined into it at `index`: "set", "add", "multiply", "max" or "min".

    JAX has no gradient of the last three for positions that may repeat: that of one update after another is taken.
    """

    def at_once(data, updates, *index):
        return getattr(data.at[index], update)(updates)

    def one_by_one(data, updates, *index):
        combine = {"multiply": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}[update]
        step = lambda data, row: (data.at[row[1:]].set(combine(data[row[1:]], row[0])), None)
        updates = updates.reshape(-1, *updates.shape[index[0].ndim :])
        return lax.scan(step, data, (updates, *(part.reshape(-1) for part in index)))[0]

    data = jnp.asarray(data)
    if data.dtype == bool:
        update = {"add": "max", "multiply": "min"}.get(update, update)
    if update in ("set", "add") or not index or not jnp.issubdtype(data.dtype, jnp.inexact):
        return at_once(data, updates, *index)
    combined = jax.custom_jvp(at_once)
    combined.defjvp(
        lambda primals, tangents: jax.jvp(lambda *x: one_by_one(*x, *primals[2:]), primals[:2], tangents[:2])
    )
    return combined(data, updates, *index)


@helper
def scatter_elements(data, indices, updates, axis, update):
    """Return `data` with each element of `updates` written to its position in `indices` along `axis`."""
    index = [lax.broadcasted_iota(indices.dtype, indices.shape, i) for i in range(indices.ndim)]
    index[axis] = indices
    return combined_at(data, tuple(index), updates, update)


@helper
def scatter_nd(data, indices, updates, update):
    """Return `data` with `updates` written to the positions in the last axis of `indices`."""
    index = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return combined_at(data, index, updates, update)


UPDATES = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}
"""The names of the methods of `x.at[index]`."""


def _update(operator: str, reduction: str) -> str:
    if reduction not in UPDATES:
        raise Unsupported(
            "an attribute has a value that ONNX does not define",
            [Refusal(operator, "", f"`reduction` is {reduction!r}; it has to be one of {', '.join(UPDATES)}")],
        )
    return UPDATES[reduction]


@op("ScatterElements", since=16)
def scatter_elements_reduced(data, indices, updates, *, axis=0, reduction="none"):
    return scatter_elements(data, indices, updates, axis, _update("ScatterElements", reduction))


@op("ScatterND", since=16)
def scatter_nd_reduced(data, indices, updates, *, reduction="none"):
    return scatter_nd(data, indices, updates, _update("ScatterND", reduction))


earlier("ScatterND", since=11, until=15, without="reduction")
earlier("ScatterElements", since=11, until=15, without="reduction")
op("Scatter", since=9, until=10)(variant("reduction")(scatter_elements_reduced))


@helper
def write_into_cache(cache, update, starts, axis, circular):
    """Write `update` into `cache` along `axis`, from its own start in each row of the batch."""
    rows, update = jnp.moveaxis(cache, axis, 1), jnp.moveaxis(update, axis, 1)
    positions = starts[:, None] + jnp.arange(update.shape[1])
    if circular:
        positions = positions % rows.shape[1]
    batch = jnp.arange(rows.shape[0])[:, None]
    return jnp.moveaxis(rows.at[batch, positions].set(update), 1, axis)


@op("TensorScatter", since=24)
def tensor_scatter(past_cache, update, write_indices=None, *, axis=-2, mode="linear"):
    if write_indices is None:
        return lax.dynamic_update_slice_in_dim(past_cache, update, 0, axis)
    return write_into_cache(past_cache, update, write_indices, axis, mode == "circular")


@helper
def reverse_sequence(x, lengths, time_axis, batch_axis):
    """Return `x` with the first `lengths[b]` steps of each sequence `b` in reverse order."""
    steps = jnp.expand_dims(jnp.arange(x.shape[time_axis]), batch_axis)
    lengths = jnp.expand_dims(lengths, time_axis)
    source = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    return jnp.take_along_axis(x, source.reshape(source.shape + (1,) * (x.ndim - 2)), axis=time_axis)


@op("ReverseSequence", since=10)
def reversed_sequence(input, sequence_lens, *, batch_axis=1, time_axis=0):
    return reverse_sequence(input, sequence_lens, time_axis, batch_axis)


@helper
def columns_to_image(x, image, block, dilations, pads, strides):
    """Return the images whose blocks are the columns of `x` [N, C * prod(block), L]; overlapping blocks add up."""
    rank = len(image)
    padded = [size + pads[i] + pads[i + rank] for i, size in enumerate(image)]
    counts = [
        (size - step * (width - 1) - 1) // stride + 1
        for size, step, width, stride in zip(padded, dilations, block, strides, strict=True)
    ]
    index = []
    for i in range(rank):
        offsets = jnp.arange(block[i])[:, None] * dilations[i] + jnp.arange(counts[i]) * strides[i]
        index.append(
            offsets.reshape([block[i] if j == i else counts[i] if j == i + rank else 1 for j in range(2 * rank)])
        )
    columns = x.reshape(x.shape[0], -1, *block, *counts)
    canvas = jnp.zeros((*columns.shape[:2], *padded), x.dtype)
    canvas = canvas.at[(slice(None), slice(None), *index)].add(columns)
    return canvas[(..., *(slice(pads[i], pads[i] + size) for i, size in enumerate(image)))]


@op("Gather", since=1)
def gather(data, indices, *, axis=0):
    if data.shape[axis] == 0 and indices.size:
        # No position is valid: return what any position outside an axis gives. This is not reached at run time, but a
        # loop of no steps is traced all the same.
        shape = [1 if at == axis % data.ndim else size for at, size in enumerate(data.shape)]
        data, indices = jnp.full(shape, np.nan if data.dtype.kind == "f" else 0, data.dtype), jnp.zeros_like(indices)
    return jnp.take(data, indices, axis=axis)


OPEN_END = 10**9
"""An end from which on a slice goes to the end of any axis: exporters write this, or the largest integers."""


def _sliced(
    data: Tensor, starts: Iterable[Dim], ends: Iterable[Dim], axes: Iterable[int], steps: Iterable[int]
) -> Tensor:
    """Return `data[start:end:step]` along some axes; ONNX clamps positions outside as Python does."""
    starts, ends = list(starts), list(ends)
    if isinstance(data, HostValue) and any(map(is_dim, [*starts, *ends])):
        data = jnp.asarray(data)  # the extent taken from a known table is symbolic
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not is_dim(step):
            step = max(min(step, OPEN_END), -OPEN_END)  # XLA's have fewer bits, and beyond any axis all are the same
        begin = None if not is_dim(start) and not is_dim(step) and step < 0 and start == -1 else start
        index[axis] = slice(begin, None if _is_open(end, step) else end, None if step == 1 else step)
    whole = slice(None, None, -1)
    turned = [
        axis for axis, part in enumerate(index) if part == whole and not dims.known(lambda n=data.shape[axis]: n >= 1)
    ]
    if turned:  # what may have no elements JAX flips, but does not slice backward
        data = jnp.flip(data, tuple(turned) if len(turned) > 1 else turned[0])
        index = [slice(None) if axis in turned else part for axis, part in enumerate(index)]
    while len(index) > 1 and index[-1] == slice(None):
        index.pop()
    if turned and index == [slice(None)]:
        return data
    return data[tuple(index) if len(index) > 1 else index[0]]


def _is_open(end: Dim, step: Dim) -> bool:
    """Whether an end is one of the numbers that exporters write for "to the end"."""
    return not is_dim(end) and (end if step > 0 else -end) >= OPEN_END


@op("Slice", since=1, until=9)
def slice_attributes(data, *, starts, ends, axes=None):
    return _sliced(data, starts, ends, range(len(starts)) if axes is None else axes, [1] * len(starts))


@op("Slice", since=10)
def slice_(
    data,
    starts: Position,
    ends: Position,
    axes: Host | None = None,
    steps: Host | None = None,
    *,
    extent: Extent = None,
):
    first, last = known(starts), known(ends)
    if extent is not None and (first is None or last is None):
        for index, size in enumerate(extent):
            data = lax.dynamic_slice_in_dim(data, starts[index], size, axis=index if axes is None else int(axes[index]))
        return data
    starts, ends = first, last
    return _sliced(
        data, starts, ends, range(len(starts)) if axes is None else axes, [1] * len(starts) if steps is None else steps
    )


@op("jaxport", "UpdatedSlice", since=1)
def updated_slice(data, new, position, width: Host | None = None, highest: Host | None = None, *, axis, size=None):
    """Return `data` with `new`, `size` entries of `axis`, from a position on (see
    `jaxport.importer.resolving.data_dependent_slices`).

    Where `width` is given, it is the size; `highest` is where a position is clipped.
    """
    start = None if width is None else known(position)
    if width is not None and start is not None:  # as the file says, also where the position decides the size
        first, last = jnp.reshape(start, (1,)), jnp.reshape(jnp.add(start, width), (1,))
        before = _sliced(data, host([0]), first, [axis], [1])
        behind = _sliced(data, last, host([np.iinfo(np.int64).max]), [axis], [1])
        return jnp.concatenate([before, new, behind], axis=axis)
    replaced: Any = size if width is None else width.item()
    if not dims.same(new.shape[axis], replaced):
        raise ModelError(
            f"{new.shape[axis]} entries replace {replaced}",
            why="the size of the result would depend on the position",
            instead=AGAIN,
        )
    _check_inside(replaced, data.shape[axis], 0 if highest is None else highest.item())
    return lax.dynamic_update_slice_in_dim(data, new, jnp.reshape(position, ()), axis)


def _check_inside(size: Dim, length: Dim, highest: Dim = 0) -> None:
    """Check that a part of `size` entries, which begins at `highest` at most, is inside an axis of some length."""
    if (is_dim(size) or is_dim(length)) and not dims.known(lambda: size <= length):
        raise SizesNeeded(f"{length} >= {size}")
    if highest + size > length:
        raise ModelError(
            f"a part of {size} entries that may begin at {highest} does not fit into {length}",
            why="the size of the result would depend on the position",
            instead=AGAIN,
        )


@op("jaxport", "Window", since=1)
def window(data, starts, sizes: Host, axes: Host | None, *highest: Host):
    """Return a part of `data` of some sizes, wherever it begins (see
    `jaxport.importer.resolving.data_dependent_slices`).

    `highest` is where all starts, or each of them, are clipped.
    """
    along = range(starts.shape[0]) if axes is None else [*map(int, axes)]
    first = known(starts)
    if first is not None:  # as the file says, also where it cuts off what is outside
        return _sliced(data, first, first + jnp.reshape(sizes, (-1,)), along, [1] * len(along))
    sizes = jnp.broadcast_to(jnp.reshape(sizes, (-1,)), (len(along),)).tolist()
    limits = [limit for bound in highest for limit in jnp.reshape(bound, (-1,)).tolist()]
    limits = limits * len(along) if len(limits) == 1 else limits
    for index, (size, limit, axis) in enumerate(zip(sizes, limits, along, strict=True)):
        _check_inside(size, data.shape[axis], limit)
        data = lax.dynamic_slice_in_dim(data, starts[index], size, axis)
    return data
