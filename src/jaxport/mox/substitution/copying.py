"""Models taken apart into arrays, and put together again: copies, and models with other values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax

from jaxport.blocks.callables.naming import leaf_paths
from jaxport.blocks.callables.places import Types
from jaxport.frameworks import loaded
from jaxport.jaxprs import Array

Model = TypeVar("Model")


def taken_apart(model: Model) -> tuple[list[str], list[Array], Callable[[list[Array]], Model]]:
    """Return the paths and the values of the arrays of a model, and what makes a model of other values."""
    types = Types(loaded())
    framework = types.root_framework_of(model)
    lifted = framework.lift(model) if framework is not None else None
    if lifted is not None:
        return [leaf.path for leaf in lifted.leaves], [leaf.value for leaf in lifted.leaves], lifted.rebuild
    leaves, tree = jax.tree.flatten(model)
    return leaf_paths([("", model)], types.is_variable), leaves, lambda new: jax.tree.unflatten(tree, new)


def copied(model: Model) -> Model:
    """Return a copy of a model."""
    _, values, rebuild = taken_apart(model)
    return rebuild(values)
