"""Random weights for a model, filled in as a checkpoint would be.

A model is built abstractly, by its shapes alone, and each array is drawn by NumPy from a fixed seed: no initializer is
compiled. The values are those of a trained network in kind. No bias is 0, no scale 1, no running statistic as it was at
the start, since a default value would hide that it got lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

STEPS_TAKEN = 100  # what a counter of training steps stands at


def random_weights(tree: Any, *, stacked: int | None = None, seed: int = 0) -> Any:
    """A pytree of arrays for a pytree of specs; leaves that have no shape stay as they are.

    What a leaf is for is told by the last name of its path: `bias`, `scale`, `mean`, `var`, or else a matrix.

    Args:
      tree: the pytree, of arrays or `jax.ShapeDtypeStruct`s.
      stacked: the leading size of an array that holds the matrices of this number of layers or experts.
      seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)

    def draw(path: tuple[Any, ...], leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(seed)
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.full(leaf.shape, STEPS_TAKEN, leaf.dtype)
        return jnp.asarray(_draw(rng, _role(path, leaf), leaf.shape, stacked), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, tree)


def _role(path: tuple[Any, ...], leaf: Any) -> str:
    """The last name of the path, in the words of Flax."""
    entry = path[-1]
    if entry == jax.tree_util.GetAttrKey("value"):  # of an `nnx.Variable`
        entry = path[-2]
    if isinstance(path[0], jax.tree_util.FlattenedIndexKey):  # the two statistics of an `eqx.nn.BatchNorm`
        return ("mean", "var")[entry.idx]
    name = str(getattr(entry, "key", getattr(entry, "name", "")))
    is_scale = name == "weight" and len(leaf.shape) == 1  # of a normalization of Equinox
    return {"bias_n": "bias"}.get(name, "scale" if is_scale else name)


def _draw(rng: np.random.Generator, role: str, shape: tuple[int, ...], stacked: int | None) -> np.ndarray:
    if role == "var":
        return rng.uniform(0.5, 1.5, shape)
    values = rng.standard_normal(shape, np.float32)
    if role in ("bias", "mean"):
        return 0.1 * values
    if role == "scale":
        return 1 + 0.1 * values
    # One size of a matrix is as good as the number of inputs: the largest is left out, whatever the layout is.
    matrix = shape[1:] if stacked is not None and shape[0] == stacked else shape
    return values * np.sqrt(max(matrix) / np.prod(matrix), dtype=np.float32)


ModuleT = TypeVar("ModuleT", bound=nnx.Module)


def nnx_model(module: Callable[..., ModuleT], *args: Any, stacked: int | None = None) -> ModuleT:
    """The module `module(*args, rngs=...)` with random weights, in eval mode."""
    abstract = nnx.eval_shape(lambda: module(*args, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(abstract)
    model = nnx.merge(graphdef, random_weights(state, stacked=stacked))
    model.eval()
    return model


def linen_variables(model: nn.Module, *inputs: Any, stacked: int | None = None) -> Any:
    """Random variables of the model; each of the inputs is a spec, or the shape of a float32 array."""
    specs = [jax.ShapeDtypeStruct(i, np.float32) if isinstance(i, tuple) else i for i in inputs]
    return random_weights(jax.eval_shape(model.init, jax.random.key(0), *specs), stacked=stacked)


def equinox_model(module: Callable[..., Any], *args: Any) -> Any:
    """The module `module(*args, key=...)` with random weights, in inference mode."""
    abstract = eqx.filter_eval_shape(lambda key: module(*args, key=key), jax.random.key(0))
    return eqx.nn.inference_mode(random_weights(abstract))


def equinox_model_and_state(module: Callable[..., Any], *args: Any) -> tuple[Any, eqx.nn.State]:
    """The same for a module that keeps state, with its running statistics."""
    make: Callable[..., Any] = eqx.nn.make_with_state(module)
    abstract, state = eqx.filter_eval_shape(lambda key: make(*args, key=key), jax.random.key(0))
    return eqx.nn.inference_mode(random_weights(abstract)), random_weights(state)
