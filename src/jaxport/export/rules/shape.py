"""Primitives that move data, pad it, or create it from a shape."""

from __future__ import annotations

import numpy as np

from jaxport.export.emit.registry import rule
from jaxport.export.rules.indexing import without_axes
from jaxport.export.rules.window_starts import positions
from jaxport.jaxprs import dims

#: Less than any index along an axis: the end of a Slice with a negative step.
BEFORE_FIRST = np.iinfo(np.int64).min + 1


@rule("broadcast_in_dim", broadcasts=True)
def broadcast_in_dim(op, x, *dynamic_sizes, shape, broadcast_dimensions):
    if x.broadcast is not None:  # the axes along which x itself is broadcast
        missing = len(x.broadcast) - x.rank
        x = op.reshape(x.stored(), (1,) * missing + x.shape) if x.rank else x.stored()
    if x.rank == 0:
        return x
    wide = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        wide[axis] = size
    return op.reshape(x, wide[broadcast_dimensions[0] :])  # axes are aligned at the end: leading ones do not matter


@rule("iota", broadcasts=True)
def iota(op, *dynamic_sizes, dtype, shape, dimension):
    size = shape[dimension]
    steps = positions(op, size, dtype)
    return op.reshape(steps, [size if axis == dimension else 1 for axis in range(len(shape))])


@rule("empty", "empty2", broadcasts=True, irrelevant=("shape", "dtype", "memory_space"))
def empty(op):
    return op.const(0, op.out.dtype)


@rule("dim_as_value")
def dim_as_value(op, *, dim):
    return op.dim(dim, op.out.dtype)


@rule("reshape", broadcasts=True)
def reshape(op, x, *dynamic_sizes, new_sizes, dimensions=None):
    if dimensions is not None:  # the order in which elements are taken
        return op.reshape(op.transpose(op.expanded(x), dimensions), new_sizes)
    added = len(new_sizes) - x.rank
    if x.broadcast is None and added >= 0 and all(map(dims.same, (*[1] * added, *x.shape), new_sizes)):
        return x  # leading axes of size one are a broadcast
    return op.reshape(op.expanded(x), new_sizes)


@rule("squeeze", "expand_dims")
def squeeze(op, x, *, dimensions):
    return without_axes(op, x, dimensions) or op.reshape(x, op.out.shape)


@rule("transpose")
def transpose(op, x, *, permutation):
    return op.transpose(x, permutation)


@rule("concatenate")
def concatenate(op, *xs, dimension):
    return op.concat(xs, dimension)


@rule("stack")
def stack(op, *xs, axis):
    return op.concat([op.unsqueeze(x, (axis,)) for x in xs], axis)


@rule("unstack")
def unstack(op, x, *, axis):
    rows = op.Split(x, (1,) * len(op.outs), axis=axis, outputs=len(op.outs)) if len(op.outs) > 1 else [x]
    return [op.reshape(row, aval.shape) for row, aval in zip(rows, op.outs, strict=True)]


@rule("tile")
def tile(op, x, *, reps):
    return op.Tile(x, op.dims(reps), results=[(x.dtype, op.out.shape)])


@rule("split")
def split(op, x, *, sizes, axis):
    return op.Split(x, tuple(sizes), axis=axis, outputs=len(sizes))


@rule("slice")
def slice_(op, x, *, start_indices, limit_indices, strides):
    cut = [
        axis
        for axis, (start, limit, size) in enumerate(zip(start_indices, limit_indices, x.shape, strict=True))
        if not (dims.same(start, 0) and dims.same(limit, size)) or (strides and strides[axis] != 1)
    ]
    pick = lambda values: [values[axis] for axis in cut]
    result = op.slice(x, pick(start_indices), pick(limit_indices), cut, strides and pick(strides))
    result.shape = op.out.shape if result is not x else result.shape
    return result


@rule("rev")
def rev(op, x, *, dimensions):
    n = len(dimensions)
    result = op.slice(x, [-1] * n, [BEFORE_FIRST] * n, dimensions, [-1] * n)
    result.shape = x.shape
    return result


@rule("pad")
def pad(op, x, value, *, padding_config):
    """Pad around and between the elements; negative amounts crop."""
    lows, highs, gaps = (list(column) for column in zip(*padding_config, strict=True)) if x.rank else ([], [], [])
    axes = range(x.rank)
    spread = [axis for axis, gap in enumerate(gaps) if gap and not dims.same(x.shape[axis], 0)]
    if spread:
        filled = all(dims.known(lambda a=axis: x.shape[a] >= 1) for axis in spread)
        x = spread_out(op, x, value, {axis: gaps[axis] for axis in spread})
        if filled:  # the gap after the last element is padding already
            highs = [high - gaps[axis] if axis in spread else high for axis, high in enumerate(highs)]
        else:
            x = op.slice(x, [0] * len(spread), [-gaps[axis] for axis in spread], spread)
    shrinking = [axis for axis in axes if not (not_negative(lows[axis]) and not_negative(highs[axis]))]
    if not all(dims.known(lambda d=d: d <= 0) for d in (*lows, *highs)):
        amounts = op.dims([*lows, *highs])
        x = op.Pad(x, op.Max(amounts, (0,)) if shrinking else amounts, value)
    if shrinking:
        begins = op.Max(op.dims([-lows[axis] for axis in shrinking]), (0,))
        ends = op.Add(begins, tuple(op.out.shape[axis] for axis in shrinking))
        x = op.emit("Slice", x, begins, ends, tuple(shrinking), results=[(x.dtype, op.out.shape)])
    return x


def not_negative(dim):
    return dims.known(lambda: dim >= 0)


def spread_out(op, x, value, gaps):
    """Return `x` with padding elements inserted after each element, as many as `gaps` has for the axis."""
    apart, merged = [], []
    for axis, size in enumerate(x.shape):
        apart += [size, 1] if axis in gaps else [size]
        merged.append(size * (1 + gaps[axis]) if axis in gaps else size)
    added = [
        gaps[axis] if last else 0 for axis in range(x.rank) for last in ((False, True) if axis in gaps else (False,))
    ]
    x = op.Pad(op.reshape(x, apart), (*[0] * len(added), *added), value)
    x.shape = tuple(size + gap for size, gap in zip(apart, added, strict=True))
    return op.reshape(x, merged)
