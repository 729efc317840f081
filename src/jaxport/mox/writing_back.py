"""New values and modules back into the model that was traced: an NNX or Equinox module, or a tree of variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax

from jaxport.blocks.callables.places import Types
from jaxport.errors import InvalidArgument
from jaxport.frameworks import loaded
from jaxport.jaxprs import Array, Module
from jaxport.jaxprs.identity import IdentityMap
from jaxport.mox.edits.lora import TARGET
from jaxport.mox.edits.merging import merge_lora
from jaxport.mox.expressions import Mox
from jaxport.mox.programs.parameters import is_parameter
from jaxport.mox.programs.tree import Node
from jaxport.mox.querying.calls import REPLACED, REWRITTEN
from jaxport.mox.substitution.copying import copied, taken_apart

Model = TypeVar("Model")


def write_back(model: Model, params: Mapping[str, Array] | Mox, *, prefix: str = "") -> Model:
    """Return a copy of a model with other values for some of its arrays; the model itself is not changed.

    Args:
      model: an NNX module, an Equinox module, or a pytree such as the variables of a Linen module.
      params: the new values by path, as in `Mox.params` and `Mox.state`; or a Mox, whose parameters and state are
        written, whose adapters (`lora`, `dora`, `ia3`) are merged, and whose replacement modules take the places of the
        model's own.
      prefix: what the paths begin with if the model was an argument, such as ``"variables"``; it is removed.

    Raises:
      InvalidArgument: the model has no array at a path, or one of another shape or dtype; or the Mox does what no
        object of that structure does: something else than a module has taken the place of one, or not of all of its
          calls.

    >>> from jaxport.mox import write_back
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> linear = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> write_back(linear, {"bias": jnp.full(1, 5.0)})(jnp.zeros(2))
    Array([5.], dtype=float32)
    """
    if not isinstance(params, Mapping):
        return _written(model, params, prefix)
    values = {path.removeprefix(f"{prefix}.") if prefix else path: value for path, value in params.items()}
    paths, old, rebuild = taken_apart(model)
    _check(dict(zip(paths, old, strict=True)), values, type(model).__name__)
    # An array that lies in several places is one parameter of the Mox, at the first of its paths.
    shared = IdentityMap((value, values[path]) for path, value in zip(paths, old, strict=True) if path in values)
    return rebuild([values.get(path, shared.get(value, value)) for path, value in zip(paths, old, strict=True)])


def _written(model: Model, mox: Mox, prefix: str) -> Model:
    """Return the model with the parameters of a Mox, and with the modules that have taken the place of others."""
    nodes = [node for node in mox.tree.nodes if node.block is not None]
    _check_edits(mox, type(model).__name__, nodes)
    adapted = any(node.block is not None and node.block.target == TARGET for node in nodes)
    below = lambda path: path.removeprefix(f"{prefix}.") if prefix else path
    held = {*taken_apart(model)[0]}
    # Statistics and counts are written, too. Other arrays that no module holds are part of the code, unless they were
    # given.
    state = {
        weight.path: weight.value
        for weight in mox.weights
        if not is_parameter(weight) and (weight.is_held or weight.is_given or below(weight.path) in held)
    }
    values = {**state, **(merge_lora(mox) if adapted else mox.params)}
    modules = mox.modules or {}
    if not modules:
        return write_back(model, values, prefix=prefix)
    framework = Types(loaded()).root_framework_of(model)
    if framework is not None and framework.lift(model) is not None:
        model = copied(model)  # those that cannot change keep the identity of their parts
    paths, arrays, _ = taken_apart(model)
    old = IdentityMap((array, path) for path, array in reversed(list(zip(paths, arrays, strict=True))))
    names: dict[str, str] = {}
    for path, module in modules.items():
        model = _with_module(model, below(path).split("."), copied(module))
        names |= _names_of_new(mox, path, module)
    # An array of a module that is gone may lie in another, too: it has kept its name, which is that of its first place.
    paths, arrays, _ = taken_apart(model)
    head = f"{prefix}." if prefix else ""
    for path, array in zip(paths, arrays, strict=True):
        if not any(f"{head}{path}".startswith(f"{new}.") for new in modules) and array in old:
            names[f"{head}{path}"] = f"{head}{old[array]}"
    moved = {path: values[name] for path, name in names.items() if name in values}
    rest = {name: value for name, value in values.items() if name not in names.values()}
    return write_back(model, {**rest, **moved}, prefix=prefix)


def _names_of_new(mox: Mox, path: str, module: Module) -> dict[str, str]:
    """Return the name in the Mox of each array of a module that has taken the place of another, by its path.

    It is the path, with a number behind it if an array that is still in use has that name.
    """
    framework = Types(loaded()).root_framework_of(module)
    leaves = [f"{path}.{leaf.path}" for leaf in framework.leaves(module)] if framework is not None else []
    blocks = [node.block for node in mox.tree.nodes if _is_new(node, path)]
    named = sorted({name for block in blocks if block is not None for name in block.named.values()})
    names: dict[str, str] = {}
    for leaf in leaves:
        numbered = (name for name in named if name not in leaves and re.fullmatch(rf"{re.escape(leaf)}_\d+", name))
        name = leaf if leaf in named else next(numbered, None)
        if name is not None:
            names[leaf] = name
    return names


def _is_new(node: Node, path: str) -> bool:
    """Whether a node is the block of a module that has taken the place of another at a path."""
    return node.block is not None and node.block.path == path and REPLACED in node.block.options


def _check_edits(mox: Mox, name: str, nodes: Sequence[Node]) -> None:
    """Refuse edits that an object with the structure of the model cannot express."""
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
                instead="give a module as the replacement; merge the adapters (`merge_lora`) and give the merged "
                "values; or use "
                "the pair `mox.params`, `mox.apply`",
            )


def _is_inside(node: Node) -> bool:
    """Whether a block lies in another of its path: what an adapted layer is the original of."""
    block = node.block
    return block is not None and any(
        around.block is not None and around.block.path == block.path for around in node.around
    )


def _with_module(model: object, keys: Sequence[str], module: Module) -> Any:
    """Return the model with a module in the field at a path.

    NNX models, which are copies already, are changed in place.
    """
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


def _item(owner: Any, key: str) -> object:
    if isinstance(owner, Mapping):
        return owner[key]
    return owner[int(key)] if key.isdecimal() and not hasattr(owner, key) else getattr(owner, key)


def _no_field(model: object, keys: Sequence[str]) -> InvalidArgument:
    return InvalidArgument(
        f"`{type(model).__name__}` cannot hold another module at `{'.'.join(keys)}`",
        where="`write_back`",
        why="it has no field of that name that could be set",
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
            why = (
                "none of the given parameters belongs to it; its own are  "
                f"{', '.join(f'`{path}`' for path in list(held)[:3])}"
            )
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
