"""Functions of JAX that need a size as a number, in a form that symbolic sizes have, too.

While a window is open, a call with a symbolic size runs the function here instead: `jax.lax.associative_scan` is a
scan, since the tree that JAX writes has a depth for each size. All other calls run the function as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from jaxport.jaxprs import Array, Dim, InconclusiveDimensionOperation, PythonFunction, source_info_util

source_info_util.register_exclusion(__file__)


def _associative_scan(original: PythonFunction) -> PythonFunction:
    @functools.wraps(original)
    def associative_scan(fn: PythonFunction, elems: object, reverse: bool = False, axis: int = 0) -> object:
        leaves, tree = jax.tree.flatten(elems)
        if not any(is_symbolic_dim(x.shape[axis]) for x in leaves):
            return original(fn, elems, reverse, axis)

        def step(state: list[jax.Array], rows: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            results = fn(tree.unflatten(state), tree.unflatten([jnp.expand_dims(x, axis) for x in rows]))
            joined = jax.tree.leaves(results)
            return joined, [jnp.squeeze(x, axis) for x in joined]

        size = leaves[0].shape[axis]
        begins, edge = (0, size - 1) if reverse else (1, 0)
        first = [lax.slice_in_dim(x, edge, edge + 1, axis=axis) for x in leaves]
        others = [jnp.moveaxis(lax.slice_in_dim(x, begins, begins + size - 1, axis=axis), axis, 0) for x in leaves]
        rows = [jnp.moveaxis(x, 0, axis) for x in lax.scan(step, first, others, reverse=reverse)[1]]
        pairs = zip(rows, first, strict=True) if reverse else zip(first, rows, strict=True)
        return tree.unflatten([jnp.concatenate(pair, axis) for pair in pairs])

    return associative_scan


def _is_before(x: jax.Array, y: jax.Array) -> jax.Array:
    return (x < y) | (jnp.isnan(y) & ~jnp.isnan(x)) if jnp.issubdtype(x.dtype, jnp.floating) else x < y


def _searchsorted(original: PythonFunction) -> PythonFunction:
    @functools.wraps(original)
    def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> jax.Array:
        dtype = jnp.result_type(a, v)
        is_open = jnp.ndim(a) == 1 and is_symbolic_dim(jnp.shape(a)[0])
        if not is_open or side not in ("left", "right") or jnp.issubdtype(dtype, jnp.complexfloating):
            return original(a, v, side, sorter, method=method)
        table = jnp.asarray(a, dtype) if sorter is None else jnp.asarray(a, dtype)[sorter]
        values = jnp.asarray(v, dtype)[..., None]
        # A search by halves has a number of steps that depends on the size. NaN comes last.
        is_before = _is_before(table, values) if side == "left" else ~_is_before(values, table)
        return is_before.sum(-1, dtype=np.int32)

    return searchsorted


def _is_less(one: Dim, other: Dim) -> bool:
    """Whether one size is the smaller one; either answer if they can only be equal otherwise.

    Raises:
      InconclusiveDimensionOperation: what is known of the symbols does not tell.
    """
    try:
        return not one >= other
    except InconclusiveDimensionOperation:
        return bool(other >= one)


def _sliding(original: PythonFunction) -> PythonFunction:
    """Wrap `convolve` or `correlate`, which ask which of the two is longer even where either will do."""
    is_convolution = original.__name__ == "convolve"

    @functools.wraps(original)
    def sliding(a: Any, v: Any, *args: Any, **options: Any) -> object:
        shapes = [jnp.shape(a), jnp.shape(v)]
        if [len(shape) for shape in shapes] != [1, 1] or not any(is_symbolic_dim(shape[0]) for shape in shapes):
            return original(a, v, *args, **options)
        mode, *_ = *args, options.get("mode", "full" if is_convolution else "valid")
        if mode not in ("full", "same", "valid"):
            raise ValueError("mode must be one of ['full', 'same', 'valid']")
        accumulated = options.get("preferred_element_type")
        dtype = jnp.result_type(a, v, *([] if accumulated else [float]))  # `float` is weak: float32 stays
        signal, kernel = jnp.asarray(a, dtype), jnp.asarray(v, dtype)
        if not is_convolution:
            kernel = jnp.conj(kernel)
        signals, size = signal.shape[0], kernel.shape[0]
        if mode == "full":
            is_swapped = is_symbolic_dim(size) and not is_symbolic_dim(signals)
        elif mode == "same" and not is_convolution:
            is_swapped = bool(signals < size)  # of equal sizes, the two orders align differently
        else:
            is_swapped = _is_less(signals, size)
        if is_swapped:
            signal, kernel = kernel, signal
        size = kernel.shape[0]
        padding = {"full": (size - 1, size - 1), "same": (size // 2, size - size // 2 - 1), "valid": (0, 0)}[mode]
        result = lax.conv_general_dilated(
            signal[None, None],
            (jnp.flip(kernel) if is_convolution else kernel)[None, None],
            (1,),
            [padding],
            precision=options.get("precision"),
            preferred_element_type=accumulated,
        )[0, 0]
        return jnp.flip(result) if is_swapped and not is_convolution else result

    return sliding


def _windowed(original: PythonFunction) -> PythonFunction:
    """Wrap attention, which makes the mask of a window from a list of the positions."""

    @functools.wraps(original)
    def dot_product_attention(
        query: Array, key: Array, value: Array, bias: Array | None = None, mask: Array | None = None, **options: Any
    ) -> jax.Array:
        window = options.get("local_window_size")
        queries, keys = (jnp.shape(x)[-3] for x in (query, key))
        if window is None or not any(map(is_symbolic_dim, (queries, keys))):
            return original(query, key, value, bias, mask, **options)
        left, right = (window, window) if isinstance(window, int) else window
        places, others = jnp.arange(queries)[:, None], jnp.arange(keys)
        inside = (places <= others + left) & (places >= others - right)
        inside = jnp.expand_dims(inside, range(jnp.ndim(query) - 2))
        mask = inside if mask is None else inside & mask
        return original(query, key, value, bias, mask, **{**options, "local_window_size": None})

    return dot_product_attention


#: By name: the function, and what wraps it.
OPEN_SIZES: dict[str, tuple[PythonFunction, Callable[[PythonFunction], PythonFunction]]] = {
    "associative_scan": (lax.associative_scan, _associative_scan),
    "convolve": (jnp.convolve, _sliding),
    "correlate": (jnp.correlate, _sliding),
    "dot_product_attention": (jax.nn.dot_product_attention, _windowed),
    "searchsorted": (jnp.searchsorted, _searchsorted),
}
