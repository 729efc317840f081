"""Pruning: masks on the smallest weights of selected layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import jax.numpy as jnp
import numpy as np

from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, PythonFunction
from jaxport.jaxprs.meshes import on_host
from jaxport.mox.edits.checks import check_number
from jaxport.mox.expressions import Match, factory
from jaxport.mox.querying.kernels import kernels_to
from jaxport.mox.sharding import beside
from jaxport.mox.substitution.replacement import Factory, Original, Replacement


def prune(fraction: float) -> Factory:
    """Set the smallest weights of each selected layer to zero, and keep them at zero in training.

    The masks are in `Mox.state`, below the path of the layer.

    Args:
      fraction: the fraction of elements to set to zero, in each weight that is used in a product.

    Raises:
      InvalidArgument: `fraction` is not between 0 and 1; a block has no such weight, or the program does not hold it.

    >>> import jax.numpy as jnp
    >>> import jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 4)))
    >>> pruned = mox.sub("//Linear", jaxport.mox.prune(0.75))
    >>> int(pruned.state["kernel.mask"].sum())
    4
    """
    check_number(fraction, "fraction", "`prune`")
    if not 0 <= fraction < 1:
        raise InvalidArgument(f"fraction={fraction} is out of range", where="`prune`", instead="0 ≤ fraction < 1")

    def make(match: Match) -> Replacement:
        pruned = kernels_to(match, "prune")
        weights = {kernel.name: match.param(kernel.name) for kernel in pruned}
        masks = {f"{name}.mask": beside(_mask(on_host(weight), fraction), weight) for name, weight in weights.items()}
        names = tuple(kernel.name for kernel in pruned)
        return Replacement(_apply(names), masks, name="jaxport.mox.prune", trainable=False)

    return factory(make)


@cache
def _apply(names: tuple[str, ...]) -> PythonFunction:
    """Return the pruned layer, one function for all layers with these weights, so that it is traced once."""

    def pruned(original: Original, masks: Mapping[str, Array], *args: object) -> object:
        params = {name: jnp.where(masks[f"{name}.mask"], original.param(name), 0) for name in names}
        return original(*args, params=params)

    return pruned


def _mask(value: np.ndarray, fraction: float) -> Array:
    order = np.argsort(np.abs(value), axis=None, kind="stable")
    mask = np.ones(value.size, bool)
    mask[order[: round(fraction * value.size)]] = False
    return jnp.asarray(mask.reshape(value.shape))
