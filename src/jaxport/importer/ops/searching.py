"""Order and position: extremes, the largest k, cumulative sums, and operators whose output shape depends on data."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxport.importer.resolving.registry import Host, Known, SizeBound, earlier, op
from jaxport.importer.values.host import HostValue, SizesNeeded, Tensor, host, is_dim
from jaxport.importer.values.namespaces import helper, jnp, lax
from jaxport.jaxprs import Dim, PythonFunction
from jaxport.jaxprs.dims import known


def _position(search: PythonFunction, data: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    """Return the position of the extreme element; the last one if requested."""
    if not last:
        return search(data, axis=axis, keepdims=bool(keepdims))
    return data.shape[axis] - 1 - search(jnp.flip(data, axis), axis=axis, keepdims=bool(keepdims))


def _register_search(name: str, search: PythonFunction) -> None:
    @op(name, since=12)
    def first_or_last(data, *, axis=0, keepdims=1, select_last_index=0):
        return _position(search, data, axis, keepdims, select_last_index)

    earlier(name, since=1, until=11, without="select_last_index")


_register_search("ArgMax", jnp.argmax)
_register_search("ArgMin", jnp.argmin)


@op("TopK", since=11)
def top_k(X, K: Host, *, axis=-1, largest=1, sorted=1):
    if X.dtype.kind not in "iu":
        X = jnp.where(X == 0, 0, X)  # XLA sorts -0 before 0, which are equal in ONNX
    count, size = K.item(), X.shape[axis]
    if is_dim(count) and not known(lambda: count <= size):
        raise SizesNeeded(f"{size} >= {count}")
    if largest:
        return tuple(lax.top_k(X, count, axis=axis % X.ndim))
    # `~` reverses the order of integers of any kind; `-` overflows for the smallest one.
    reverse = jnp.bitwise_not if X.dtype.kind in "iu" else jnp.negative
    values, indices = lax.top_k(reverse(X), count, axis=axis % X.ndim)
    return reverse(values), indices


earlier("TopK", since=10, until=10, without="largest sorted")


@op("TopK", since=1, until=9)
def top_k_attribute(X, *, axis=-1, k):
    return top_k(X, host(k), axis=axis)


def _running(
    x: Tensor, axis: int, neutral: int, exclusive: int, reverse: int, plain: PythonFunction, directed: PythonFunction
) -> Tensor:
    axis %= x.ndim
    if exclusive:  # prepend a neutral element, and drop the last one
        shift = (-1, 1, 0) if reverse else (1, -1, 0)
        x = lax.pad(x, jnp.full((), neutral, x.dtype), [shift if i == axis else (0, 0, 0) for i in range(x.ndim)])
    return directed(x, axis=axis, reverse=True) if reverse else plain(x, axis=axis)


@op("CumSum", since=11)
def cumulative_sum(x, axis: Host, *, exclusive=0, reverse=0):
    return _running(x, axis.item(), 0, exclusive, reverse, jnp.cumsum, lax.cumsum)


@op("CumProd", since=26)
def cumulative_product(x, axis: Host, *, exclusive=0, reverse=0):
    return _running(x, axis.item(), 1, exclusive, reverse, jnp.cumprod, lax.cumprod)


@op("NonZero", since=9)
def nonzero(X: Known, *, bound: SizeBound = None):
    if is_dim(bound):
        rows = jnp.argwhere(jnp.reshape(X, (1,)) if X.ndim == 0 else X, size=bound)
        return rows.T if X.ndim else rows.T[:0]
    if bound is not None:
        # Padding positions are outside the array, so that gathers and scatters ignore them.
        return jnp.stack(jnp.nonzero(X, size=bound, fill_value=X.shape))
    if X.ndim == 0:  # unlike NumPy: no axis, hence no row
        return host(np.zeros((0, int(bool(X))), np.int64))
    return host(np.array(X.data.nonzero(), np.int64))


@helper
def selected(x, indices, axis):
    """Return the slices along an axis at indices that are all inside."""
    return jnp.take(x, indices, axis=axis, mode="clip")


def at_least(size: Dim, least: int) -> bool:
    """Whether a size with a name is known to be as large."""
    return known(lambda: size >= least)


@op("Compress", since=9)
def compress(input, condition: Known, *, axis=None, bound: SizeBound = None):
    data = jnp.reshape(input, (-1,)) if axis is None else input
    size = data.shape[axis or 0]
    if not is_dim(size) and not is_dim(condition.shape[0]) and condition.shape[0] > size:
        condition = condition[:size]  # what is beyond the axis selects nothing
    if is_dim(bound):
        chosen = jnp.squeeze(jnp.argwhere(condition, size=bound), 1)
        return selected(data, chosen, (axis or 0) % data.ndim)
    if bound is not None:
        chosen = jnp.flatnonzero(condition, size=bound, fill_value=data.shape[axis or 0])
        return jnp.take(data, chosen, axis=axis or 0, mode="fill", fill_value=0)
    chosen = np.flatnonzero(condition.data)
    if is_dim(size) and chosen.size and not at_least(size, int(chosen[-1]) + 1):
        raise SizesNeeded(f"{size} >= {chosen[-1] + 1}")
    return jnp.take(data, host(chosen), axis=axis or 0)


@helper
def distinct(x, axis, size):
    """Return where each of the `size` different slices along an axis is first, which of them each is, and how often
    each is.
    """
    rows = jnp.reshape(jnp.moveaxis(x, axis, 0), (x.shape[axis], -1))
    places = jnp.arange(x.shape[axis])
    one, other = rows[:, None], rows[None]
    differs = (one != other) & ~((one != one) & (other != other))  # NaN is NaN
    at = jnp.expand_dims(jnp.argmax(differs, axis=2), 2)  # where two slices differ first
    is_greater = jnp.take_along_axis(differs & ~(one < other) & (other == other), at, axis=2)[..., 0]
    is_first = jnp.argmin(differs.any(axis=2), axis=1) == places
    before = (is_greater & is_first).sum(axis=1)
    is_of = jnp.arange(size)[:, None] == before
    return jnp.argmax(is_of & is_first, axis=1), before, is_of.sum(axis=1)


@op("Unique", since=11)
def unique(X: Known, *, axis=None, sorted=1, bound: SizeBound = None):
    if bound is None:
        elements, *positions = np.unique(X.data, True, True, True, axis=axis)
        results: tuple[Any, ...] = (
            HostValue(elements, X.dtype),
            *(host(part, np.int64) for part in positions),
        )
    elif is_dim(bound):
        data, along = (jnp.reshape(X, (-1,)), 0) if axis is None else (X, axis % X.ndim)
        first, inverse, counts = distinct(data, along, bound)
        if not sorted:  # in the order of first occurrence
            order = jnp.argsort(first)
            first, counts = selected(first, order, 0), selected(counts, order, 0)
            inverse = selected(jnp.argsort(order), inverse, 0)
        return selected(data, first, along), first, inverse, counts
    else:
        results = jnp.unique(X, True, True, True, axis=axis, size=bound)
    values, first, inverse, counts = results
    inverse = jnp.reshape(inverse, (-1,))
    if not sorted:  # in the order of first occurrence, padding last
        order = jnp.argsort(jnp.where(counts > 0, first, X.size))
        values, first, counts = jnp.take(values, order, axis or 0), jnp.take(first, order), jnp.take(counts, order)
        inverse = jnp.take(jnp.argsort(order), inverse)
    return values, first, inverse, counts
