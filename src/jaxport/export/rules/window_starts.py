"""Starts of the windows of a gather, scatter or dynamic slice: one index per axis of the operand, made safe.

JAX clamps or drops an index that is out of range; ONNX fails at run time, and counts a negative index from the end. So
the clamp costs one node, or none if the index is known to be in range. JAX's own treatment of negative indices, three
more nodes, is removed if the operator does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import DTypeLike

from jaxport.export.emit import intervals
from jaxport.export.emit.shapes import shape_of
from jaxport.export.emit.value import Value, beside
from jaxport.jaxprs import Dim, dims

if TYPE_CHECKING:
    from jaxport.export.emit.emitter import Emitter

INT64 = np.dtype(np.int64)

#: A range of at most this many elements is stored, not computed.
STORED_RANGE = 256


@dataclass
class Starts:
    """The starts of windows in an operand.

    Attributes:
      batch: the shape of the indices: one window for each of its elements.
      at: by axis, the start on that axis, in range; its shape broadcasts to `batch`. On missing axes the windows start
        at 0.
      inside: whether the requested window lies inside the operand, in a shape that broadcasts to `batch`; None if it
        always does.
    """

    batch: tuple[Dim, ...]
    at: dict[int, Value] = field(default_factory=dict)
    inside: Value | None = None


def of(
    op: Emitter,
    shape: Sequence[Dim],
    window: Sequence[Dim],
    columns: Mapping[int, Value],
    batch: Sequence[Dim] = (),
    *,
    check: bool = False,
    negative: bool = True,
) -> Starts:
    """Return starts that are in range.

    Args:
      op: the emitter.
      shape: the operand's shape.
      window: the window's size on each axis of the operand.
      columns: the index on each axis that has one; each broadcasts to `batch`.
      batch: the shape of the indices.
      check: whether to compute which windows lie inside before the clamp (`Starts.inside`).
      negative: whether a start on an axis where the window has size one may be negative, counted from the end.
    """
    starts = Starts(tuple(batch))
    for axis, column in columns.items():
        highest = shape[axis] - window[axis]
        if dims.same(highest, 0) and not check:
            continue
        lowest = 0
        unwrapped = _unwrapped(op, column, shape[axis]) if negative and dims.same(window[axis], 1) else None
        if unwrapped is not None:
            column, lowest = unwrapped, -shape[axis]
        start = column
        if not intervals.within(column, lowest, highest):
            if not dims.is_static(highest):
                column = op.cast(column, INT64)
            pinned = dims.same(lowest, highest)
            start = op.const(0, column.dtype) if pinned else op.Clip(column, lowest, highest)
            if check:
                equal = op.Equal(column, start)
                starts.inside = equal if starts.inside is None else op.And(starts.inside, equal)
        zero = start.constant is not None and not start.constant.any()
        if not zero and not dims.same(highest, 0):
            starts.at[axis] = start
    return starts


def of_one_window(op: Emitter, starts: Starts) -> Starts:
    """Return the starts of a single window as scalars."""
    inside = None if starts.inside is None else op.reshape(starts.inside, ())
    return Starts((), {axis: op.reshape(start, ()) for axis, start in starts.at.items()}, inside)


def counted(
    op: Emitter,
    columns: dict[int, Value],
    shape: Sequence[Dim],
    window: Sequence[Dim],
    batch: Sequence[Dim],
) -> dict[int, int]:
    """Find the axes whose index counts along an axis of the batch, as in `x[jnp.arange(n), i]`: explicit batch axes.

    They are removed from `columns`.

    Returns:
      By axis of the operand, the axis of the batch, each of them once.
    """
    batch_axes: dict[int, int] = {}
    for axis, column in list(columns.items()):
        long = [i for i, size in enumerate(shape_of(column)) if not dims.same(size, 1)]
        place = long[0] + len(batch) - column.rank if len(long) == 1 else None
        if place is None or place in batch_axes.values() or not dims.same(window[axis], 1):
            continue
        unwrapped = _unwrapped(op, column, shape[axis])
        if dims.same(shape[axis], batch[place]) and is_iota(unwrapped or column):
            batch_axes[axis] = place
            del columns[axis]
    return batch_axes


def is_iota(value: Value) -> bool:
    """Whether the elements of `value` are known to be 0, 1, 2, …"""
    if value.constant is not None:
        return value.dtype.kind in "iu" and np.array_equal(value.constant.ravel(), np.arange(value.constant.size))
    source = [value, *sources(value, ("Cast", "Reshape", "Unsqueeze"))][-1].origin
    if source is None or source.op_type != "Range":
        return False
    start, _, step = (x.constant if x is not None else None for x in source.operands)
    return start is not None and step is not None and int(start) == 0 and int(step) == 1


def columns(op: Emitter, indices: Value, axes: Sequence[int]) -> dict[int, Value]:
    """Split the last axis of an index tensor: return the index of each of `axes` as it was before it was stacked."""
    if not axes:
        return {}
    joined = _joined(indices)
    if joined is None and len(axes) == 1:
        joined = [indices]
    if joined is not None:
        return {axis: signed(op, _unstacked(op, column)) for axis, column in zip(axes, joined, strict=True)}
    return {
        axis: signed(op, op.Gather(indices, op.const(number, INT64), axis=indices.rank - 1))
        for number, axis in enumerate(axes)
    }


def signed(op: Emitter, index: Value) -> Value:
    """Return an index as int32 or int64, which ONNX requires."""
    if index.dtype == np.uint64:  # what int64 cannot hold is out of range anyway
        index = op.Min(index, op.const(np.iinfo(INT64).max, np.uint64))
    small = index.dtype.itemsize < 4 or index.dtype == np.int32
    return op.cast(index, np.int32 if small else INT64)


def _joined(indices: Value) -> list[Value] | None:
    """Return the columns that a stack of indices was concatenated from, or None if it was not."""
    if indices.constant is not None:
        array = indices.constant
        return [Value(array.dtype, (*array.shape[:-1], 1), constant=c) for c in np.split(array, array.shape[-1], -1)]
    origin = indices.origin
    last = indices.rank - 1
    if origin is None or origin.op_type != "Concat" or origin.attributes["axis"] % indices.rank != last:
        return None
    parts = [x for x in origin.operands if x is not None and x.shape is not None and dims.same(x.shape[-1], 1)]
    return parts if len(parts) == len(origin.operands) else None


def _unstacked(op: Emitter, column: Value) -> Value:
    """Return a column without its last axis of size one, as it was before it was broadcast to the batch."""
    column = _unexpanded(column)
    whole = shape_of(column)[:-1]
    lean = whole
    while lean and dims.same(lean[0], 1):
        lean = lean[1:]
    for value in (column, *sources(column, ("Unsqueeze", "Reshape"))):
        if any(_same_shape(shape_of(value), shape) for shape in (whole, lean)):
            return _unexpanded(value)
    return op.reshape(column, lean)


def _unexpanded(value: Value) -> Value:
    return [value, *sources(value, ("Expand",))][-1]


def _same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return len(a) == len(b) and all(map(dims.same, a, b))


def sources(value: Value, op_types: Sequence[str]) -> list[Value]:
    """Return the operands of the movements that lead to a value, the nearest first."""
    values = []
    while value.origin is not None and value.origin.op_type in op_types:
        source = value.origin.operands[0]
        assert source is not None
        values.append(value := source)
    return values


def _unwrapped(op: Emitter, index: Value, size: Dim) -> Value | None:
    """Return `i` of an index that is `where(i < 0, i + size, i)`, or None if it has another form."""
    if index.origin is None or index.origin.op_type != "Where":
        return None
    condition, wrapped, plain = index.origin.operands
    bound = beside(condition, "Less", plain)
    added = beside(wrapped, "Add", plain)
    if bound is None or added is None or bound.constant is None or bound.constant.any():
        return None
    return plain if _is_dim(op, added, size) else None


def _is_dim(op: Emitter, value: Value, dim: Dim) -> bool:
    """Whether a value is known to be a dim."""
    if dims.is_static(dim):
        return value.constant is not None and bool((value.constant == int(dim)).all())
    scalar = op.dim(dim)
    return value is scalar or scalar in sources(value, ("Cast",))


def vector(op: Emitter, starts: Sequence[Value]) -> Value:
    """Return scalar starts as one int64 vector."""
    dtype = INT64 if len({start.dtype for start in starts}) > 1 else starts[0].dtype
    return op.cast(op.concat([op.reshape(op.cast(start, dtype), (1,)) for start in starts], 0), INT64)


def positions(op: Emitter, size: Dim, dtype: DTypeLike) -> Value:
    """Return 0, 1, … size - 1."""
    if dims.is_static(size) and size <= STORED_RANGE:
        return op.const(np.arange(int(size)), dtype)
    zero, one = op.const(0, INT64), op.const(1, INT64)
    return op.cast(op.emit("Range", zero, op.dim(size), one, results=[(INT64, (size,))]), dtype)
