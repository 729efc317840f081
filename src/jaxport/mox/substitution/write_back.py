"""New values and modules back into the model that was traced: an NNX or Equinox module, or a tree of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax

from jaxport.blocks.callables.naming import leaf_paths
from jaxport.blocks.callables.places import Types
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Module, PyTree
from jaxport.mox.querying.tree import Node

if TYPE_CHECKING:
    from jaxport.mox.programs.mox import Mox

__all__ = ["write_back"]


def write_back(model: PyTree, params: Mapping[str, Array] | Mox, *, prefix: str = "") -> PyTree:
    """Return a copy of a model with other values for some of its arrays; the model itself is not changed.

    Args:
      model: an NNX module, an Equinox module, or a pytree such as the variables of a Linen module.
      params: the new values by path, as in `Mox.params` and `Mox.state`; or a Mox, whose adapters (`lora`, `dora`, `ia3`) are
        merged, and whose replacement modules take the places of the model's own.
      prefix: what the paths begin with if the model was an argument, such as ``"variables"``; it is removed.

    Raises:
      InvalidArgument: the model has no array at a path, or one of another shape or dtype; or the Mox does what no object
        of that structure does: something else than a module has taken the place of one, or not of all of its calls.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> write_back(linear, {"bias": jnp.full(1, 5.0)})(jnp.zeros(2))
    Array([5.], dtype=float32)
    """
    from jaxport.frameworks import loaded

    if not isinstance(params, Mapping):
        return _written(model, params, prefix)
    values = {path.removeprefix(f"{prefix}.") if prefix else path: value for path, value in params.items()}
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
        rebuild = lambda leaves: jax.tree.unflatten(tree, leaves)
    _check(dict(zip(paths, old, strict=True)), values, type(model).__name__)
    # An array that lies in several places is one parameter of the Mox, at the first of its paths.
    shared = {id(value): values[path] for path, value in zip(paths, old, strict=True) if path in values}
    return rebuild([values.get(path, shared.get(id(value), value)) for path, value in zip(paths, old, strict=True)])


def _written(model: PyTree, mox: Mox, prefix: str) -> PyTree:
    """Return the model with the parameters of a Mox, and with the modules that have taken the place of others."""
    from jaxport.frameworks import loaded
    from jaxport.mox.edits.lora import TARGET
    from jaxport.mox.edits.merging import merge_lora

    nodes = [node for node in mox.tree.nodes if node.block is not None]
    _check_edits(mox, type(model).__name__, nodes)
    adapted = any(node.block is not None and node.block.target == TARGET for node in nodes)
    values = merge_lora(mox) if adapted else mox.params
    modules = mox.modules or {}
    if modules:
        framework = Types(loaded()).root_framework_of(model)
        is_changed = framework is not None and framework.lift(model) is not None
        model = (
            write_back(model, {}) if is_changed else model
        )  # those that cannot change keep the identity of their parts
    for path, module in modules.items():
        at = path.removeprefix(f"{prefix}.") if prefix else path
        model = _with_module(model, at.split("."), write_back(module, {}))
        own = Types(loaded()).root_framework_of(module)
        paths = {f"{path}.{leaf.path}" for leaf in own.leaves(module)} if own is not None else set()
        below = {weight.path: weight.value for weight in mox.weights if weight.path in paths}
        values = {**below, **values}
    return write_back(model, values, prefix=prefix)


def _check_edits(mox: Mox, name: str, nodes: Sequence[Node]) -> None:
    """Refuse edits that an object with the structure of the model cannot express."""
    from jaxport.mox.edits.lora import TARGET
    from jaxport.mox.querying.match import REPLACED, REWRITTEN

    modules = mox.modules or {}
    explained = set()  # the blocks around what can be written
    for node in nodes:
        if node.block is not None and (node.block.target == TARGET or REPLACED in node.block.options):
            explained.update(node.around)
    for node in nodes:
        block, why = node.block, ""
        if block is None:
            continue
        if REPLACED in block.options and modules.get(block.path) is None:
            why = "it was replaced by a Mox, which is not a module"
        elif (
            block.path in modules and REPLACED not in block.options and block.target != TARGET and not _is_inside(node)
        ):
            why = "it was replaced by another module in only some of its calls"
        elif block.edited and block.target != TARGET:
            is_around = block.kind == "module" and node in explained and REWRITTEN not in block.options
            why = "" if is_around and mox.modules is not None else "something in it was replaced"
        if why:
            raise InvalidArgument(
                f"`{name}` does not compute what the edited Mox computes",
                where=f"`write_back`: `{node.path or mox.name}`",
                why=why,
                instead="give a module as the replacement; merge the adapters (`merge_lora`) and give the merged values; or use "
                "the pair `mox.params`, `mox.apply`",
            )


def _is_inside(node: Node) -> bool:
    """Whether a block lies in another of its path: what an adapted layer is the original of."""
    block = node.block
    return block is not None and any(
        around.block is not None and around.block.path == block.path for around in node.around
    )


def _with_module(model: PyTree, keys: Sequence[str], module: Module) -> PyTree:
    """Return the model with a module in the field at a path.

    NNX models, which are copies already, are changed in place.
    """
    from jaxport.frameworks import loaded

    old = model
    try:
        for key in keys:
            old = _item(old, key)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _no_field(model, keys) from error
    framework = next((f for f in loaded() if f.is_module(model)), None)
    made = framework.with_part(model, old, module) if framework is not None else None
    if made is None:
        raise _no_field(model, keys)
    return made


def _item(owner: PyTree, key: str) -> PyTree:
    if isinstance(owner, Mapping):
        return owner[key]
    return owner[int(key)] if key.isdecimal() and not hasattr(owner, key) else getattr(owner, key)


def _no_field(model: PyTree, keys: Sequence[str]) -> InvalidArgument:
    return InvalidArgument(
        f"`{type(model).__name__}` cannot hold another module at `{'.'.join(keys)}`",
        where="`write_back`",
        why="it has no field of that name that can be set",
        instead="use the pair `mox.params`, `mox.apply`",
    )


def _check(held: Mapping[str, Array], values: Mapping[str, Array], name: str) -> None:
    unknown = [path for path in values if path not in held]
    if unknown:
        why, instead = (
            "an edit has added them",
            "merge them first (`merge_lora`), or use the pair `mox.params`, `mox.apply`",
        )
        if isinstance(values[unknown[0]], Mapping):
            why, instead = "it is a dict: parameters are named by full paths here, `layers.0.kernel`, in one dict", ""
        elif len(unknown) == len(values):
            why = f"none of the given parameters belongs to it; its own are  {', '.join(f'`{path}`' for path in list(held)[:3])}"
            instead = "give the model that was traced; if it was an argument, pass its name as `prefix=`"
        raise InvalidArgument(
            f"`{name}` has no place for {len(unknown)} parameters, `{unknown[0]}` first",
            where="`write_back`",
            why=why,
            instead=instead,
        )
    for path, value in values.items():
        old, new = jax.typeof(held[path]), jax.typeof(value)
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise InvalidArgument(
                f"`{path}` is {new.str_short()}",
                where="`write_back`",
                why=f"`{name}` has {old.str_short()}",
                instead="use the pair `mox.params`, `mox.apply`",
            )
