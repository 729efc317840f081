"""Shapes: reading and changing them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxport.errors import ModelError
from jaxport.importer.resolving.registry import Host, ShapeOnly, earlier, op, renamed
from jaxport.importer.values.dtypes import dtype_of
from jaxport.importer.values.host import HostValue, SizesDiffer, SizesNeeded, Tensor, host, is_dim
from jaxport.importer.values.namespaces import cast, jnp, lax
from jaxport.jaxprs import Dim, Shape
from jaxport.jaxprs.dim_text import symbols
from jaxport.jaxprs.dims import evaluate, known

renamed(since=1, Identity=lambda x: x)


@op("Shape", since=15)
def shape(data: ShapeOnly, *, start=0, end=None):
    return host(list(data.shape[start:end]))


earlier("Shape", since=1, until=14, without="start end")


@op("Size", since=1)
def size(data: ShapeOnly):
    return host(math.prod(data.shape))


@op("Reshape", since=14)
def reshape(data, shape: Host, *, allowzero=0):
    sizes = shape.tolist()
    return _reshaped(data, [data.shape[i] if size == 0 and not allowzero else size for i, size in enumerate(sizes)])


def _reshaped(data: Tensor, sizes: Sequence[Dim]) -> Tensor:
    """Return `data` with other sizes, one of which may be -1; JAX does not compare products of names."""
    whole, wanted = math.prod(data.shape), math.prod(sizes)
    inferred = any(not is_dim(size) and size == -1 for size in sizes)
    if not inferred and (is_dim(whole) or is_dim(wanted)) and _differ(str(whole), str(wanted)):
        raise SizesDiffer(whole, wanted)
    return jnp.reshape(data, sizes)


def _differ(left: str, right: str) -> bool:
    """Whether two sizes differ, even where all names have many divisors."""
    names = sorted(symbols(left) | symbols(right))
    samples = [{name: factor * (at + 2) for at, name in enumerate(names)} for factor in (24, 48)]
    return left != right and all(evaluate(left, sizes) != evaluate(right, sizes) for sizes in samples)


earlier("Reshape", since=5, until=13, without="allowzero")


@op("Flatten", since=1)
def flatten(input, *, axis=1):
    axis = axis + input.ndim if axis < 0 else axis
    return jnp.reshape(input, (math.prod(input.shape[:axis]), math.prod(input.shape[axis:])))


@op("Transpose", since=1)
def transpose(data, *, perm=None):
    if perm is not None and tuple(perm) == tuple(range(data.ndim)):
        return data
    return data.T if perm is None else jnp.transpose(data, perm)


def _axes_of_one(sizes: Shape) -> tuple[int, ...]:
    """Return the axes of one element. A size that only has a name is taken for a larger one."""
    for size in sizes:
        if is_dim(size) and not known(lambda size=size: size >= 2):
            raise SizesNeeded(f"{size} >= 2")
    return tuple(axis for axis, size in enumerate(sizes) if not is_dim(size) and size == 1)


def _squeezed(data: Tensor, axes: Sequence[int] | None) -> Tensor:
    axes = _axes_of_one(data.shape) if axes is None else axes
    for axis in axes:
        if is_dim(data.shape[axis]):
            if not known(lambda size=data.shape[axis]: size <= 1):
                raise SizesDiffer(data.shape[axis], 1)
            # Its bounds say that it is 1, its name does not.
            data = lax.slice_in_dim(data, 0, 1, axis=axis)
    return jnp.squeeze(data, axes)


@op("Squeeze", since=1, until=12)
def squeeze_attribute(data, *, axes=None):
    return _squeezed(data, axes)


@op("Squeeze", since=13)
def squeeze(data, axes: Host | None = None):
    return _squeezed(data, None if axes is None else tuple(axes.reshape(-1)))


@op("Unsqueeze", since=1, until=12)
def unsqueeze_attribute(data, *, axes):
    return jnp.expand_dims(data, axes)


@op("Unsqueeze", since=13)
def unsqueeze(data, axes: Host):
    return jnp.expand_dims(data, tuple(axes.reshape(-1)))


@op("Expand", since=8)
def expand(input, shape: Host):
    return jnp.broadcast_to(input, jnp.broadcast_shapes(input.shape, tuple(shape)))


@op("Concat", since=4)
def concat(*inputs, axis):
    return jnp.concatenate(inputs, axis=axis)


@op("Tile", since=6)
def tile(input, repeats: Host):
    return jnp.tile(input, repeats.tolist())


LONGEST_RANGE = 2**40


def _spaced(start: HostValue, limit: HostValue, delta: HostValue, dtype: np.dtype) -> Tensor:
    """Return `start`, `start + delta`, … up to `limit`, computed in `dtype`."""
    # ONNX's own function bodies pass vectors of one element.
    start, limit, delta = (value.reshape(()) for value in (start, limit, delta))
    if not delta.symbolic and delta.item() == 0:
        raise ModelError("a range has a step of zero", why="it would not end", instead="make `delta` another number")
    if start.dtype.kind in "iu":
        if not any(value.symbolic for value in (start, limit, delta)):
            length = -((int(start) - int(limit)) // int(delta))
            if length > LONGEST_RANGE:  # beyond it, differences of integers wrap
                raise ModelError(
                    f"a range of {length} numbers is too long", why="no memory holds it", instead="check `limit`"
                )
        return jnp.arange(start, limit, delta, dtype=start.dtype)
    count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
    return cast(start, dtype) + cast(jnp.arange(count), dtype) * cast(delta, dtype)


@op("Range", since=11, until=26)
def range_(start: Host, limit: Host, delta: Host):
    return _spaced(start, limit, delta, start.dtype)


@op("Range", since=27)
def range_accumulated(start: Host, limit: Host, delta: Host, *, stash_type=1):
    small = start.dtype.itemsize == 2
    return _spaced(start, limit, delta, dtype_of(stash_type) if small else start.dtype)


ZERO = HostValue(np.zeros(1, np.float32))


@op("ConstantOfShape", since=9)
def constant_of_shape(input: Host, *, value=ZERO):
    return jnp.broadcast_to(value.reshape(()), tuple(input))
