"""New values back into the model that was traced: an NNX module, an Equinox module, or a tree of variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from jaxport.blocks.naming import leaf_paths
from jaxport.blocks.places import Types
from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    from jaxport.mox.mox import Mox

__all__ = ["write_back"]


def write_back(model: Any, params: Mapping[str, Any] | Mox, *, prefix: str = "") -> Any:
    """A copy of a model with other values for some of its arrays; the model stays as it is.

    Args:
      model: an NNX module, an Equinox module, or a pytree such as the variables of a Linen module.
      params: the new values by path, as `Mox.params` and `Mox.state` have them; or a Mox, whose parameters they are. Paths
        do not tell a module from one that took its place: where modules were replaced, give the Mox.
      prefix: what the paths begin with where the model was an argument: ``"variables"``; it is left out.

    Raises:
      InvalidArgument: the model has no array at a path, or one of another shape or dtype: an edit has changed what the
        model is made of; or the Mox computes something else than its model.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> write_back(linear, {"bias": jnp.full(1, 5.0)})(jnp.zeros(2))
    Array([5.], dtype=float32)
    """
    from jaxport.frameworks import loaded

    if not isinstance(params, Mapping):
        _check_unedited(params, type(model).__name__)
        params = params.params
    given = {path.removeprefix(f"{prefix}.") if prefix else path: value for path, value in params.items()}
    types = Types(loaded())
    framework = types.root_framework_of(model)
    lifted = framework.lift(model) if framework is not None else None
    if lifted is not None:
        paths = [leaf.path for leaf in lifted.leaves]
        old = [leaf.value for leaf in lifted.leaves]
        rebuild = lifted.rebuild
    else:
        old, tree = jax.tree.flatten(model)
        paths = leaf_paths([("", model)], types.is_variable)
        rebuild = lambda values: jax.tree.unflatten(tree, values)
    _check(dict(zip(paths, old, strict=True)), given, type(model).__name__)
    return rebuild([given.get(path, value) for path, value in zip(paths, old, strict=True)])


def _check_unedited(mox: Mox, name: str) -> None:
    edited = mox.select("//*[@edited]", strict=False)
    if len(edited):
        raise InvalidArgument(
            f"`{name}` does not compute what the edited Mox computes",
            where=f"`write_back`: `{edited.paths()[0] or mox.name}`",
            why="something in it was replaced",
            instead="merge what was added (`merge_lora`) and give its values, or use the pair `mox.params`, `mox.apply`",
        )


def _check(held: Mapping[str, Any], given: Mapping[str, Any], name: str) -> None:
    unknown = [path for path in given if path not in held]
    if unknown:
        raise InvalidArgument(
            f"`{name}` has no place for {len(unknown)} parameters, `{unknown[0]}` first",
            where="`write_back`",
            why="an edit has added them",
            instead="merge them first (`merge_lora`), or use the pair `mox.params`, `mox.apply`",
        )
    for path, value in given.items():
        old, new = jax.typeof(held[path]), jax.typeof(value)
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise InvalidArgument(
                f"`{path}` is {new.str_short()}",
                where="`write_back`",
                why=f"`{name}` has {old.str_short()}",
                instead="use the pair `mox.params`, `mox.apply`",
            )
