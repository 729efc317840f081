"""Reading parts of an array: gather in full generality, and dynamic slices.

A gather takes one window of the operand for each element of the indices. An axis without an index needs none: the
general form is GatherND over the indexed axes only, and one indexed axis is Gather, or GatherElements if all others are
batch axes.
"""

from __future__ import annotations

import numpy as np
from jax.lax import GatherScatterMode

from jaxport.export.emit.registry import rule
from jaxport.export.rules import window_starts
from jaxport.export.rules.elementwise import where
from jaxport.export.rules.window_starts import INT64
from jaxport.jaxprs import dims


@rule("dynamic_slice")
def dynamic_slice(op, x, *indices, slice_sizes):
    columns = {axis: window_starts.signed(op, index) for axis, index in enumerate(indices)}
    starts = window_starts.of(op, x.shape, slice_sizes, columns)
    return one_window(op, x, starts.at, slice_sizes)


def one_window(op, x, starts, sizes):
    """Return the window of `x` that begins at scalar `starts` (by axis, 0 for missing ones) and has `sizes`."""
    moving = [axis for axis, start in starts.items() if start.constant is None]
    x = sliced(
        op, x, {a: int(starts[a].constant) if a in starts else 0 for a in range(x.rank) if a not in moving}, sizes
    )
    for axis in [a for a in moving if dims.same(sizes[a], 1)]:
        x = op.Gather(x, op.reshape(starts[axis], (1,)), axis=axis)
    moving = [a for a in moving if not dims.same(sizes[a], 1)]
    if not moving:
        return x
    begin = window_starts.vector(op, [starts[a] for a in moving])
    end = op.Add(begin, tuple(sizes[a] for a in moving))
    return op.emit("Slice", x, begin, end, tuple(moving), results=[(x.dtype, tuple(sizes))])


def sliced(op, x, begins, sizes):
    """Return the part of `x` that begins at `begins` (dims, by axis) and has `sizes` on these axes."""
    cut = [a for a, begin in begins.items() if not dims.same(begin, 0) or not dims.same(sizes[a], x.shape[a])]
    if not cut:
        return x
    shape = [sizes[a] if a in cut else size for a, size in enumerate(x.shape)]
    first, last = tuple(begins[a] for a in cut), tuple(begins[a] + sizes[a] for a in cut)
    return op.emit("Slice", x, first, last, tuple(cut), results=[(x.dtype, shape)])


@rule("gather", irrelevant=("indices_are_sorted", "unique_indices"))
def gather(op, x, indices, *, dimension_numbers, slice_sizes, mode, fill_value):
    numbers, batch, fill = dimension_numbers, indices.shape[:-1], mode == GatherScatterMode.FILL_OR_DROP
    if mode == GatherScatterMode.ONE_HOT:
        op.refuse('has mode="one_hot", which JAX computes only in Pallas kernels; use mode="clip" or mode="fill"')
    shared = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    columns = window_starts.columns(op, indices, numbers.start_index_map)
    if not shared:
        shared = window_starts.counted(op, columns, x.shape, slice_sizes, batch)
    starts = window_starts.of(op, x.shape, slice_sizes, columns, batch, check=fill)
    if batch:
        result, labels = many_windows(op, x, starts, shared, slice_sizes)
        hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        windows = iter([("window", a) for a in range(x.rank) if a not in hidden])
        rest = iter([("batch", i) for i in range(len(batch))])
        wanted = [next(windows) if p in numbers.offset_dims else next(rest) for p in range(op.out.ndim)]
        result = arranged(op, result, labels, wanted, op.out.shape)
    else:
        result = op.reshape(one_window(op, x, starts.at, slice_sizes), op.out.shape)
    if starts.inside is None:
        return result
    shown = [1 if p in numbers.offset_dims else d for p, d in enumerate(op.out.shape)]
    inside = op.reshape(op.expand(starts.inside, batch), shown)
    return where(op, inside, result, op.const(np.asarray(fill_value).astype(x.dtype)))


def many_windows(op, x, starts, shared, sizes):
    """Return the windows that begin at `starts`, one for each element of the indices; `shared` are the batch axes.

    Returns:
      The windows, and the labels of their axes: ("batch", i) is axis i of the indices, ("window", a) the window's
        extent
      along axis a of `x`; if that is one element, the axis may be missing.
    """
    # If all windows begin at the same place on an axis, the rest of the operand is cut off beforehand.
    free = [i for i in range(len(starts.batch)) if i not in shared.values()]
    same = {a: int(c.flat[0]) for a, v in starts.at.items() if (c := v.constant) is not None and (c == c.flat[0]).all()}
    same = same if len(starts.at) > 1 else {}
    indexed = [a for a in sorted(starts.at) if a not in same]
    x = sliced(op, x, {a: same.get(a, 0) for a in range(x.rank) if a not in indexed and a not in shared}, sizes)
    wide = [a for a in indexed if not dims.same(sizes[a], 1)]
    rest = [a for a in range(x.rank) if a not in shared and a not in indexed]
    if not shared and len(indexed) == 1:
        (axis,) = indexed
        index = with_offsets(op, op.expand(starts.at[axis], starts.batch), sizes, wide)
        labels = [("batch", i) for i in free] + [("window", a) for a in wide]
        before, after = ([("window", a) for a in part] for part in (range(axis), range(axis + 1, x.rank)))
        return op.Gather(x, index, axis=axis), [*before, *labels, *after]
    if shared and len(indexed) == 1 and not wide and not rest and len(free) == 1:
        (axis,) = indexed
        order = [free[0] if a == axis else shared[a] for a in range(x.rank)]
        index = op.transpose(op.expand(starts.at[axis], starts.batch), order)
        return op.GatherElements(x, index, axis=axis), [("batch", i) for i in order]
    x = op.transpose(x, (*shared, *indexed, *rest))
    order = (*shared.values(), *free)
    labels = [("batch", i) for i in order] + [("window", a) for a in (*wide, *rest)]
    if indexed:
        columns = [op.transpose(op.expand(starts.at[a], starts.batch), order) for a in indexed]
        return op.GatherND(x, stacked(op, columns, indexed, sizes, wide), batch_dims=len(shared)), labels
    lead, tail = x.shape[: len(shared)], x.shape[len(shared) :]
    x = op.reshape(x, (*lead, *[1] * len(free), *tail))
    return op.expand(x, (*lead, *[starts.batch[i] for i in free], *tail)), labels


def arranged(op, x, labels, wanted, shape):
    """Return `x`, whose axes have labels, with the axes `wanted`, as `shape`; axes of size one may be missing."""
    x = op.squeeze(x, [i for i, label in enumerate(labels) if label not in wanted])
    labels = [label for label in labels if label in wanted]
    return op.reshape(op.transpose(x, [labels.index(label) for label in wanted if label in labels]), shape)


def with_offsets(op, index, sizes, wide):
    """Return one index per element of the window: a new axis for each of the `wide` axes."""
    for axis in wide:
        index = op.Add(op.unsqueeze(index, (index.rank,)), window_starts.positions(op, sizes[axis], index.dtype))
    return index


def stacked(op, columns, axes, sizes, wide):
    """Return the index of every row of every window, as GatherND and ScatterND take it: the axes last."""
    batch = columns[0].shape
    full = (*batch, *[sizes[a] for a in wide])
    dtype = columns[0].dtype if len({c.dtype for c in columns}) == 1 else INT64
    pieces = []
    for axis, column in zip(axes, columns, strict=True):
        column = op.reshape(op.cast(column, dtype), (*batch, *[1] * len(wide)))
        if axis in wide:
            steps = window_starts.positions(op, sizes[axis], dtype)
            column = op.Add(column, op.reshape(steps, [sizes[axis] if a == axis else 1 for a in wide]))
        pieces.append(op.unsqueeze(op.expand(column, full), (len(full),)))
    return op.cast(op.concat(pieces, len(full)), INT64)


def without_axes(op, x, axes):
    """Return `x` without axes of size one if it is a gather along one of them, else None."""
    origin = x.origin
    if origin is None or origin.op_type != "Gather" or origin.attributes["axis"] not in axes:
        return None
    source, index = origin.operands
    scalars = [v for v in window_starts.sources(index, ("Reshape", "Unsqueeze")) if v.rank == 0]
    if not scalars:
        return None
    axis = origin.attributes["axis"]
    picked = op.Gather(source, scalars[0], axis=axis)
    return op.squeeze(picked, [a - (a > axis) for a in axes if a != axis])
