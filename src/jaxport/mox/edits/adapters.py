"""Named adapters: switched on and off, and saved in files of their own with their configuration."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import jax.numpy as jnp

from jaxport.blocks.block import Block
from jaxport.errors import InvalidArgument, ModelError
from jaxport.jaxprs import Array
from jaxport.mox.edits.lora import GATE, TARGET, lora
from jaxport.mox.edits.scaling import dora, ia3
from jaxport.mox.expressions import Mox, Selection
from jaxport.mox.programs.names import near
from jaxport.mox.programs.tree import Node
from jaxport.mox.querying.origins import places_of
from jaxport.mox.serialize.files import load_params, metadata_of, save_params

_KEY = "jaxport.adapter"


def set_adapter(mox: Mox, *names: str) -> Mox:
    """Return the Mox with only these of its named adapters active.

    The program stays the same: the contribution of each adapter is multiplied by 1 or 0, an array in `Mox.state`
    (`<path>.<name>.lora_active`), which you can also pass to `Mox.apply` among the parameters.

    Raises:
      InvalidArgument: there is no adapter of that name.

    >>> from jaxport.mox import lora, set_adapter
    >>> import jax.numpy as jnp, jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    >>> both = mox.sub("//Linear", lora(2, name="one")).sub("//Linear", lora(2, name="two"))
    >>> {path: float(value) for path, value in set_adapter(both, "two").state.items()}
    {'one.lora_active': 0.0, 'two.lora_active': 1.0}
    """
    nodes = _adapted(mox)
    known = {block.config["adapter"] for block in nodes.values()} - {""}
    for name in names:
        if name not in known:
            raise _unknown(mox, name, known, "`set_adapter`")
    gates: dict[str, Array] = {}
    held, places = _held(mox), places_of(mox, list(nodes))
    for block in nodes.values():
        for own, path in block.config["new_params"].items():
            if own.endswith(GATE):
                place = places[path]
                active = jnp.full_like(place.value(held), block.config["adapter"] in names)
                gates[place.root] = place.with_value({**held, **gates}, active)
    return mox.with_params(gates)


def save_adapter(mox: Mox, name: str, path: str | os.PathLike[str], params: Mapping[str, Array] | None = None) -> None:
    """Write the parameters of an adapter and its configuration to one file, as safetensors.

    Args:
      mox: the Mox with the adapter.
      name: the name of the adapter; "" for those without a name.
      path: the path of the file.
      params: the parameters after training; by default those that the Mox holds.

    Raises:
      InvalidArgument: there is no adapter of that name.
      SaveError: the file cannot be written.

    >>> import pathlib, tempfile
    >>> import jax, jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jax.jit(lambda x, w: x @ w))(jnp.ones((2, 3)), jnp.ones((3, 4)))
    >>> jaxport.mox.save_adapter(mox, "style", pathlib.Path(tempfile.mkdtemp()) / "style.safetensors")
    Traceback (most recent call last):
    jaxport.InvalidArgument: ...
    """
    nodes = _adapted(mox)
    layers = {block.path: _layer(block) for block in nodes.values() if block.config["adapter"] == name}
    if not layers:
        raise _unknown(mox, name, {block.config["adapter"] for block in nodes.values()}, "`save_adapter`")
    held, places = {**_held(mox), **(params or {})}, places_of(mox, list(nodes))
    values = {path: places[path].value(held) for layer in layers.values() for path in layer.params.values()}
    described = {at: asdict(layer) for at, layer in layers.items()}
    save_params(values, path, {_KEY: json.dumps({"name": name, "layers": described})})


def load_adapter(mox: Mox, path: str | os.PathLike[str]) -> Mox:
    """Return the Mox with an adapter from a file that `save_adapter` wrote, on the same layers.

    Raises:
      InvalidArgument: there is no such file; the Mox lacks these layers, or already has an adapter of that name.
      ModelError: the file is malformed, or does not contain an adapter.

    >>> from jaxport.mox import load_adapter, lora, save_adapter
    >>> import pathlib, tempfile, jax.numpy as jnp, jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "math.safetensors"
    >>> save_adapter(mox.sub("//Linear", lora(2, name="math")), "math", file)
    >>> sorted(load_adapter(mox, file).params)
    ['bias', 'kernel', 'math.lora_a', 'math.lora_b']
    """
    values = load_params(path)
    name, layers = _read(path, values)
    if name in {block.config["adapter"] for block in _adapted(mox).values()}:
        raise InvalidArgument(
            f"`{mox.name}` already has an adapter `{name}`",
            where="`load_adapter`",
            instead="save it again under another name",
        )
    for at, layer in layers.items():
        taken = frozenset(layer.weights)
        if layer.kind == "ia3":
            edit = ia3(inputs=layer.inputs, name=name, weights=taken.__contains__)
        else:
            make = dora if layer.kind == "dora" else lora
            edit = make(layer.rank, alpha=layer.scale * layer.rank, name=name, weights=taken.__contains__)
        mox = _at(mox, at, layer.weights).sub(edit)
        known = _adapted(mox).values()
        (block,) = [block for block in known if block.path == at and block.config["adapter"] == name]
        new = _layer(block).params
        if new.keys() != layer.params.keys():
            raise _malformed(path, f"the layer `{at}` has {', '.join(sorted(layer.params))}")
        mox = mox.with_params({path: values[layer.params[own]] for own, path in new.items()})
    return mox


@dataclass(frozen=True)
class _AdaptedLayer:
    """What a file says of one adapted layer."""

    rank: int
    scale: float
    weights: list[str]
    params: dict[str, str]
    kind: str = "lora"
    inputs: bool = False


def _read(path: str | os.PathLike[str], values: Mapping[str, Array]) -> tuple[str, dict[str, _AdaptedLayer]]:
    """Return the name of the adapter of a file, and its layers by path."""
    written = metadata_of(path).get(_KEY)
    if written is None:
        raise ModelError(
            f"`{path}` does not contain an adapter", where="`load_adapter`", why="it was not written by `save_adapter`"
        )
    try:
        data = json.loads(written)
        layers = {str(at): _AdaptedLayer(**layer) for at, layer in data["layers"].items()}
        name = data["name"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _malformed(path, str(error)) from error
    if not isinstance(name, str) or (name and not name.isidentifier()):
        raise _malformed(path, f"{name!r} is not a valid name for an adapter")
    for at, layer in layers.items():
        why = _fault(layer, values)
        if why:
            raise _malformed(path, f"the layer `{at}` {why}")
    return name, layers


def _fault(layer: _AdaptedLayer, values: Mapping[str, Array]) -> str:
    """Return why a layer of a file is invalid; an empty text if it is valid."""
    if type(layer.rank) is not int or type(layer.scale) not in (int, float) or not math.isfinite(layer.scale):
        return f"has the rank {layer.rank!r} and the scale {layer.scale!r}"
    if layer.kind not in ("lora", "dora", "ia3") or type(layer.inputs) is not bool:
        return f"is of the kind {layer.kind!r}"
    if not isinstance(layer.weights, list) or not all(isinstance(weight, str) for weight in layer.weights):
        return "names no weights"
    if not isinstance(layer.params, dict) or not all(isinstance(part, str) for part in layer.params.values()):
        return "names no parameters"
    missing = [part for part in layer.params.values() if part not in values]
    if missing:
        return f"has no tensor `{missing[0]}`"
    # A rank is the extent of an axis of each factor: a number alone may not ask for memory.
    if layer.kind == "ia3":
        return "" if len(layer.params) == 1 else "has another number of scales than one"
    factors = [part for own, part in layer.params.items() if own.endswith(("lora_a", "lora_b"))]
    if not factors or any(layer.rank not in values[part].shape for part in factors):
        return f"has no factors of the rank {layer.rank}"
    return ""


def _malformed(path: str | os.PathLike[str], why: str) -> ModelError:
    return ModelError(f"the adapter of `{path}` is malformed", where="`load_adapter`", why=why)


def _adapted(mox: Mox) -> dict[Node, Block]:
    """Return the adapted layers, each once."""
    first_calls: dict[tuple[str, str], tuple[Node, Block]] = {}
    for node in mox.tree.nodes:
        block = node.block
        if block is not None and block.target == TARGET:
            first_calls.setdefault((block.path, block.config["adapter"]), (node, block))
    return dict(first_calls.values())


def _layer(block: Block) -> _AdaptedLayer:
    """Return what a file says of an adapted layer."""
    own = {key: path for key, path in block.config["new_params"].items() if not key.endswith(GATE)}
    weights = [weight for weight, *_ in block.config["plans"]]
    config = block.config
    kind, inputs = config.get("kind", "lora"), config.get("inputs", False)
    return _AdaptedLayer(config["rank"], config["scale"], weights, own, kind, inputs)


def _at(mox: Mox, path: str, weights: list[str]) -> Selection:
    """Return the calls of the layer that has the weights."""
    nodes = [
        node
        for node in mox.tree.nodes
        if (block := node.block) is not None
        and block.path == path
        and block.target != TARGET
        and set(weights) <= set(block.named.values())
    ]
    inner = [node for node in nodes if not any(around in nodes for around in node.around)]
    if not inner:
        raise InvalidArgument(
            f"`{mox.name}` has no layer `{path}` with {', '.join(f'`{weight}`' for weight in weights)}",
            where="`load_adapter`",
            why=near(path, mox.tree.paths),
            instead="load it into the model that it was trained on",
        )
    return Selection(mox, tuple(inner), f"the layer `{path}`")


def _held(mox: Mox) -> dict[str, Array]:
    return {weight.path: weight.value for weight in mox.weights}


def _unknown(mox: Mox, name: str, known: set[str], where: str) -> InvalidArgument:
    return InvalidArgument(
        f"`{mox.name}` has no adapter `{name}`",
        where=where,
        instead=f"it has {', '.join(f'`{one}`' for one in sorted(known)) or 'none'}",
    )
