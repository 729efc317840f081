"""Reading and writing elements by position."""

from __future__ import annotations

from jaxport.importer.namespaces import jnp
from jaxport.importer.registry import Host, op


@op("Gather", since=1)
def gather(data, indices, *, axis=0):
    return jnp.take(data, indices, axis=axis)


def _sliced(data, starts, ends, axes, steps):
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(start, end, step)
    return data[tuple(index)]


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
