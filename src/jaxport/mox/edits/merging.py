"""Adapters merged into the weights that they are of, so that the original model computes what the edited one does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxport import jaxprs
from jaxport.blocks.labels import bodies
from jaxport.errors import InvalidArgument
from jaxport.mox.calls import runs_bodies, source_of
from jaxport.mox.edits.lora import GATE, TARGET, update_of
from jaxport.mox.edits.scaling import along, directed
from jaxport.mox.mox import Mox
from jaxport.mox.names import near

if TYPE_CHECKING:
    from jaxport.blocks.block import Block

__all__ = ["merge_lora"]


def merge_lora(
    mox: Mox, params: Mapping[str, Any] | None = None, arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The weights of the original model with the adapters of an edited one merged in.

    Args:
      mox: a Mox with adapters that `lora`, `dora` or `ia3` made.
      params: its parameters, after training; by default those that it holds.
      arguments: where the weights are arguments of the model (Linen), the arguments by name.

    Returns:
      The parameters of the model before the edit, by path: for `Mox.with_params` or `write_back`. Of arguments, the
      leaves that the adapters change, by the path of the argument.

    Raises:
      InvalidArgument: there are no adapters; an argument that has a weight is not given; a weight is also used without
        the adapters, or with others (tied weights), so that no merged weight would do the same; it has several adapters,
        not all of LoRA; a layer that is scaled is no plain product.

    >>> import jax, jax.numpy as jnp, jaxport, equinox as eqx
    >>> mox = jaxport.make_mox(eqx.nn.Linear(3, 4, key=jax.random.key(0)))(jnp.ones(3))
    >>> adapted = mox.sub("//Linear", jaxport.mox.lora(rank=2))
    >>> trained = {path: value + 0.1 for path, value in adapted.params.items()}
    >>> merged = mox.with_params(jaxport.mox.merge_lora(adapted, trained))
    >>> bool(jnp.allclose(merged(jnp.ones(3)), adapted.apply(trained, jnp.ones(3)), atol=1e-6))
    True
    """
    held = {**{weight.path: weight.value for weight in mox.weights}, **(params or {})}
    held |= _leaves_of(arguments or {})
    unknown = sorted(set(params or {}) - {weight.path for weight in mox.weights})
    if unknown:
        raise InvalidArgument(
            f"`{unknown[0]}` is no parameter of the Mox",
            where="`merge_lora`",
            why=near(unknown[0], mox.params),
            instead="give the parameters of the adapted Mox, by whole paths",
        )
    nodes = [node for node in mox.tree.nodes if node.block is not None and node.block.target == TARGET]
    if not nodes:
        raise InvalidArgument(
            f"`{mox.name}` has no adapters", where="`merge_lora`", instead="edit it with `lora`, `dora` or `ia3` first"
        )
    for node in nodes:
        if node.block is not None and not node.block.config.get("mergeable", True):
            raise InvalidArgument(
                f"the scale of `{node.path}` cannot be merged",
                where="`merge_lora`",
                why="the layer is no plain product to which its other parameters are added",
                instead="use `mox.params`, `mox.apply` as they are",
            )
    merged = {path: held[path] for path in mox.params}
    adapters = list(dict.fromkeys(adapter for node in nodes for adapter in _adapters(node.equation)))
    for adapter in adapters:
        for _, new in adapter.parts:
            merged.pop(new, None)
    names = [*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs]
    inputs = dict(zip(names, mox.jaxpr.jaxpr.invars, strict=True))
    for weight in dict.fromkeys(adapter.weight for adapter in adapters):
        if weight not in held:
            known = weight in mox.traced.input_paths
            raise InvalidArgument(
                f"the weight `{weight}` is {'an argument' if known else 'no parameter'} of the {'model' if known else 'Mox'}",
                where="`merge_lora`",
                why="" if known else "another edit has taken its place",
                instead=f"pass `arguments={{'{weight.partition('.')[0]}': ...}}`"
                if known
                else "merge before other edits",
            )
        mine = frozenset(adapter for adapter in adapters if adapter.weight == weight)
        if any(around != mine for around in _uses(mox.jaxpr.jaxpr, inputs[weight], weight, frozenset())):
            raise InvalidArgument(
                f"the adapters of `{weight}` cannot be merged into it",
                where="`merge_lora`",
                why="not all that is computed from it has the same adapters around it, and nothing else in between",
                instead="adapt all layers that share the weight by one `sub`, or none of the others; or use "
                "`mox.params`, `mox.apply` as they are",
            )
        if len(mine) > 1 and any(adapter.kind != "lora" for adapter in mine):
            raise InvalidArgument(
                f"the adapters of `{weight}` cannot be merged into it",
                where="`merge_lora`",
                why="of several adapters that scale the order matters",
                instead="merge each before the next is added",
            )
        w = held[weight]
        for adapter in sorted(mine, key=lambda adapter: adapter.parts):
            w = adapter.merged(w, {part: jnp.asarray(held[path]) for part, path in adapter.parts})
        merged[weight] = w
    return merged


@dataclass(frozen=True)
class _Adapter:
    """What changes a weight: its kind, and the paths of its parameters by what they are.

    `axes` are those that the input meets; of IA³, those that are scaled.
    """

    weight: str
    kind: str
    parts: tuple[tuple[str, str], ...]
    axes: tuple[int, ...]
    scale: float

    def merged(self, weight: Any, parts: Mapping[str, Any]) -> Any:
        """The weight with the change; of a stack of layers, with a change for each."""
        first, own = ("ia3_scale", len(self.axes)) if self.kind == "ia3" else ("lora_a", len(self.axes) + 1)
        merge = self._of_layer
        for _ in range(parts[first].ndim - own):
            merge = jax.vmap(merge)
        return merge(weight, parts)

    def _of_layer(self, w: Any, parts: Mapping[str, Any]) -> Any:
        gate = parts.get(GATE)
        if self.kind == "ia3":
            factor = parts["ia3_scale"] if gate is None else 1 + gate * (parts["ia3_scale"] - 1)
            return (w * along(factor, self.axes, w.ndim)).astype(w.dtype)
        a, b = parts["lora_a"], parts["lora_b"]
        if self.kind == "dora":
            return directed(w, a, b, parts["lora_m"], self.axes, self.scale, gate)
        factor = self.scale if gate is None else self.scale * gate
        return (w + factor * update_of(a, b, self.axes)).astype(w.dtype)


def _adapters(equation: jaxprs.JaxprEqn) -> list[_Adapter]:
    """The changes that a block makes; none where it is no adapted layer."""
    block: Block | None = equation.params.get("block")
    if block is None or block.target != TARGET:
        return []
    kind, new = block.config.get("kind", "lora"), block.config["new_params"]
    found = []
    for weight, prefix, axes in block.config["plans"]:
        parts = [(own.removeprefix(prefix), path) for own, path in new.items()]
        known = {part: path for part, path in parts if part in _PARTS}
        gate = next((path for own, path in new.items() if own.endswith(GATE)), None)
        known |= {} if gate is None else {GATE: gate}
        found.append(_Adapter(weight, kind, tuple(sorted(known.items())), tuple(axes), block.config["scale"]))
    return found


_PARTS = frozenset({"ia3_scale", "lora_a", "lora_b", "lora_m"})


def _uses(jaxpr: jaxprs.Jaxpr, variable: Any, weight: str, around: frozenset) -> Iterator[frozenset | None]:
    """For each equation that a weight reaches, the adapters around it; None where another edit comes in between."""
    for equation in jaxpr.eqns:
        for position, atom in enumerate(equation.invars):
            if atom is not variable:
                continue
            if not runs_bodies(equation):
                yield around
                continue
            mine = [adapter for adapter in _adapters(equation) if adapter.weight == weight]
            block: Block | None = equation.params.get("block")
            if around and block is not None and block.edited and block.kind == "function" and not mine:
                yield None
                continue
            for number, body in enumerate(bodies(equation.params)):
                for index, inner in enumerate(body.invars):
                    source = source_of(equation, number, index)
                    if source is not None and source.operand == position:
                        yield from _uses(body, inner, weight, around.union(mine))
    if any(atom is variable for atom in jaxpr.outvars):
        yield around


def _leaves_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from jaxport.blocks.naming import leaf_paths

    named = list(arguments.items())
    paths = leaf_paths(named, lambda _: False)
    return dict(zip(paths, jax.tree.leaves([tree for _, tree in named]), strict=True))
