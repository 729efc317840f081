"""Reading parts of an array: gather in all its generality, and dynamic slices.

A gather cuts one window out of the operand for each element of the indices. What is not indexed needs no index: the
general form is GatherND over the indexed axes alone, and one indexed axis is Gather, or GatherElements where all
others are batch axes.
"""

from __future__ import annotations


import numpy as np
from jax.lax import GatherScatterMode

from jaxport.export import dims
from jaxport.export.registry import rule
from jaxport.export.rules import starts as window_starts
from jaxport.export.rules.elementwise import where
from jaxport.export.rules.starts import INT64


@rule("dynamic_slice", irrelevant=("dynamic_sizes",))
def dynamic_slice(op, x, *indices, slice_sizes):
    columns = {axis: window_starts.signed(op, index) for axis, index in enumerate(indices[: x.rank])}
    starts = window_starts.of(op, x.shape, slice_sizes, columns)
    return one_window(op, x, starts.at, slice_sizes)


def one_window(op, x, starts, sizes):
    """The window of `x` that begins at scalar `starts` (by axis, 0 where there is none) and has `sizes`."""
    moving = [axis for axis, start in starts.items() if start.constant is None]
    x = sliced(op, x, {a: int(starts[a].constant) if a in starts else 0 for a in range(x.rank) if a not in moving}, sizes)
    for axis in [a for a in moving if dims.same(sizes[a], 1)]:
        x = op.Gather(x, op.reshape(starts[axis], (1,)), axis=axis)
    moving = [a for a in moving if not dims.same(sizes[a], 1)]
    if not moving:
        return x
    begin = op.concat([op.reshape(op.cast(starts[a], INT64), (1,)) for a in moving], 0)
    end = op.Add(begin, tuple(sizes[a] for a in moving))
    return op.emit("Slice", x, begin, end, tuple(moving), results=[(x.dtype, tuple(sizes))])


def sliced(op, x, begins, sizes):
    """The part of `x` that begins at `begins` (dims, by axis) and has `sizes` on these axes."""
    cut = [a for a, begin in begins.items() if not dims.same(begin, 0) or not dims.same(sizes[a], x.shape[a])]
    result = op.slice(x, [begins[a] for a in cut], [begins[a] + sizes[a] for a in cut], cut)
    result.shape = tuple(sizes[a] if a in cut else size for a, size in enumerate(x.shape))
    return result


@rule("gather", irrelevant=("indices_are_sorted", "unique_indices"))
def gather(op, x, indices, *, dimension_numbers, slice_sizes, mode, fill_value):
    numbers, fill = dimension_numbers, mode == GatherScatterMode.FILL_OR_DROP
    columns = window_starts.columns(op, indices, [int(a) for a in numbers.start_index_map])
    starts = window_starts.of(op, x.shape, slice_sizes, columns, indices.shape[:-1], check=fill)
    whole = [a for a in range(x.rank) if a not in starts.at and a not in numbers.operand_batching_dims]
    x = sliced(op, x, dict.fromkeys(whole, 0), slice_sizes)
    if not starts.batch:
        result = op.reshape(one_window(op, x, starts.at, slice_sizes), op.out.shape)
    else:
        result = many_windows(op, x, starts, numbers, slice_sizes)
    if starts.inside is None:
        return result
    kept = op.expand(starts.inside, starts.batch)
    shown = [1 if p in numbers.offset_dims else d for p, d in enumerate(op.out.shape)]
    fill_constant = op.const(np.asarray(fill_value).astype(x.dtype))
    return where(op, op.reshape(kept, shown), result, fill_constant)


def many_windows(op, x, starts, numbers, sizes):
    """The windows of a gather in the layout of its result.

    On the way every axis has a label: ("batch", i) is axis i of the indices, ("window", a) what the windows hold of
    axis a of the operand.
    """
    batching = [int(a) for a in numbers.operand_batching_dims]
    shared = [int(a) for a in numbers.start_indices_batching_dims]
    free = [i for i in range(len(starts.batch)) if i not in shared]
    indexed = sorted(starts.at)
    wide = [a for a in indexed if not dims.same(sizes[a], 1)]
    rest = [a for a in range(x.rank) if a not in batching and a not in indexed]
    if not batching and len(indexed) == 1:
        (axis,) = indexed
        index = op.expand(starts.at[axis], starts.batch)
        result = op.Gather(x, with_offsets(op, index, sizes, wide), axis=axis)
        labels = [("window", a) for a in range(x.rank)]
        labels[axis : axis + 1] = [("batch", i) for i in free] + [("window", a) for a in wide]
    elif batching and len(indexed) == 1 and not wide and not rest and len(free) == 1:
        (axis,) = indexed
        order = [free[0] if a == axis else shared[batching.index(a)] for a in range(x.rank)]
        index = op.transpose(op.expand(starts.at[axis], starts.batch), order)
        result = op.GatherElements(x, index, axis=axis)
        labels = [("batch", i) for i in order]
    else:
        x = op.transpose(x, (*batching, *indexed, *rest))
        labels = [("batch", i) for i in (*shared, *free)] + [("window", a) for a in (*wide, *rest)]
        if indexed:
            columns = [op.transpose(op.expand(starts.at[a], starts.batch), (*shared, *free)) for a in indexed]
            result = op.GatherND(x, stacked(op, columns, indexed, sizes, wide), batch_dims=len(batching))
        else:
            lead, tail = x.shape[: len(shared)], x.shape[len(shared) :]
            x = op.reshape(x, (*lead, *[1] * len(free), *tail))
            result = op.expand(x, (*lead, *[starts.batch[i] for i in free], *tail))
    return arranged(op, result, labels, numbers.offset_dims, numbers.collapsed_slice_dims, batching, sizes)


def arranged(op, result, labels, offset_dims, collapsed, batching, sizes):
    """A result with labelled axes in the layout that the gather's offset dims describe."""
    windows = iter(a for a in range(len(sizes)) if a not in collapsed and a not in batching)
    batch = iter(range(len(op.out.shape) - len(offset_dims)))
    wanted = [("window", next(windows)) if p in offset_dims else ("batch", next(batch)) for p in range(op.out.ndim)]
    ordered = [label for label in wanted if label in labels]
    dropped = [i for i, label in enumerate(labels) if label not in wanted]
    result = op.squeeze(result, dropped)
    labels = [label for label in labels if label in wanted]
    return op.reshape(op.transpose(result, [labels.index(label) for label in ordered]), op.out.shape)


def with_offsets(op, index, sizes, wide):
    """One index per element of the window: an axis more for each of the `wide` axes."""
    for axis in wide:
        index = op.Add(op.unsqueeze(index, (index.rank,)), positions(op, sizes[axis], index.dtype))
    return index


def stacked(op, columns, axes, sizes, wide):
    """The index of every row of every window, as GatherND and ScatterND take it: the axes last."""
    batch_rank = columns[0].rank
    full = (*columns[0].shape, *[sizes[a] for a in wide])
    pieces = []
    for axis, column in zip(axes, columns, strict=True):
        shape = (*column.shape, *[1] * len(wide))
        column = op.reshape(op.cast(column, INT64), shape)
        if axis in wide:
            place = batch_rank + wide.index(axis)
            steps = positions(op, sizes[axis], INT64)
            column = op.Add(column, op.reshape(steps, [sizes[axis] if i == place else 1 for i in range(len(full))]))
        pieces.append(op.unsqueeze(op.expand(column, full), (len(full),)))
    return op.concat(pieces, len(full))


def positions(op, size, dtype):
    """0, 1, … size - 1."""
    if dims.is_static(size):
        return op.const(np.arange(int(size)), dtype)
    return op.emit(
        "Range", op.const(0, dtype), op.dim(size, dtype), op.const(1, dtype), results=[(np.dtype(dtype), (size,))]
    )
