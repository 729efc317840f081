"""Reading and writing elements by position."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxport.importer.host import HostValue, Tensor, is_dim
from jaxport.importer.namespaces import jnp
from jaxport.importer.registry import Host, op
from jaxport.jaxprs import Dim


@op("Gather", since=1)
def gather(data, indices, *, axis=0):
    if data.shape[axis] == 0 and indices.size:
        # No position is valid: return what any position outside an axis gives. This is not reached at run time, but a
        # loop of no steps is traced all the same.
        shape = [1 if at == axis % data.ndim else size for at, size in enumerate(data.shape)]
        data, indices = jnp.full(shape, np.nan if data.dtype.kind == "f" else 0, data.dtype), jnp.zeros_like(indices)
    return jnp.take(data, indices, axis=axis)


def _sliced(
    data: Tensor, starts: Iterable[Dim], ends: Iterable[Dim], axes: Iterable[int], steps: Iterable[int]
) -> Tensor:
    """Return `data[start:end:step]` along some axes; ONNX clamps positions outside as Python does."""
    starts, ends = list(starts), list(ends)
    if isinstance(data, HostValue) and any(map(is_dim, [*starts, *ends])):
        data = jnp.asarray(data)  # the extent taken from a known table is symbolic
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(start, None if _is_open(end, step) else end, None if step == 1 else step)
    while len(index) > 1 and index[-1] == slice(None):
        index.pop()
    return data[tuple(index) if len(index) > 1 else index[0]]


def _is_open(end: Dim, step: int) -> bool:
    """Whether an end is one of the numbers that exporters write for "to the end"."""
    return not is_dim(end) and (end if step > 0 else -end) >= 2**31 - 1


@op("Slice", since=1, until=9)
def slice_attributes(data, *, starts, ends, axes=None):
    return _sliced(data, starts, ends, range(len(starts)) if axes is None else axes, [1] * len(starts))


@op("Slice", since=10)
def slice_(data, starts: Host, ends: Host, axes: Host | None = None, steps: Host | None = None):
    return _sliced(
        data,
        starts,
        ends,
        range(len(starts)) if axes is None else axes,
        [1] * len(starts) if steps is None else steps,
    )
