"""Models of the frameworks with parameters drawn by NumPy: no initializer is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from flax import nnx

from jaxport.export.ports import is_key

KEY = jax.random.key(0)


def of_nnx(make: Callable[[nnx.Rngs], Any], evaluated: bool = False) -> Any:
    """The model that `make` builds; in evaluation mode if asked for."""
    definition, shapes = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))))
    model = nnx.merge(definition, _filled(shapes))
    if evaluated:
        model.eval()
    return model


def of_linen(module: Any, *inputs: Any) -> Callable[..., Any]:
    """The `apply` of a module with its variables."""
    return functools.partial(module.apply, _filled(jax.eval_shape(lambda: module.init(KEY, *inputs))))


def of_equinox(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `make` builds with a key."""
    return _filled(eqx.filter_eval_shape(lambda: make(*args, key=KEY, **kwargs)))


def _filled(tree: Any) -> Any:
    """A tree with values in the place of its shapes: variances are positive, counts and caches start at zero."""
    generator = np.random.default_rng(0)

    def value(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if is_key(leaf.dtype):
            return jax.random.split(KEY, leaf.shape) if leaf.shape else KEY
        name = jax.tree_util.keystr(path).lower()
        if not jax.dtypes.issubdtype(leaf.dtype, np.inexact) or "cache" in name:
            return jax.numpy.asarray(np.zeros(leaf.shape, leaf.dtype))
        drawn = generator.normal(size=leaf.shape) * 0.4
        drawn = np.abs(drawn) + 0.5 if "var" in name or "scale" in name else drawn
        return jax.numpy.asarray(drawn.astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(value, tree)
