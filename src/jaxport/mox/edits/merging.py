"""Adapters merged into the weights that they are of, so that the original model computes what the edited one does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxport import jaxprs
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array
from jaxport.jaxprs.body_inputs import entered_by, runs_bodies
from jaxport.jaxprs.walk import equations_within, reached, readers
from jaxport.mox.edits.exchanged import exchanged_weight, exchanged_weights
from jaxport.mox.edits.lora import GATE, TARGET, update_of
from jaxport.mox.edits.scaling import along, directed
from jaxport.mox.expressions import Mox
from jaxport.mox.programs.names import near
from jaxport.mox.programs.tree import Node
from jaxport.mox.querying.origins import ParameterPlace, index_of, is_first_axis_squeezed, places_of

if TYPE_CHECKING:
    from jaxport.blocks.block import Block


def merge_lora(
    mox: Mox, params: Mapping[str, Array] | None = None, arguments: Mapping[str, object] | None = None
) -> dict[str, Array]:
    """Return the weights of the original model with the adapters of an edited one merged in.

    If another edit computes the weights of adapted layers (`quantize`), the original is the model before both edits,
    and its weights are the dequantized ones. The layers of an unrolled stack are merged into the stack.

    Args:
      mox: a Mox with adapters that `lora`, `dora` or `ia3` made.
      params: its parameters after training; by default those that it holds.
      arguments: if the weights are arguments of the model (Linen), the arguments by name.

    Returns:
      The parameters of the model before the edit, by path, for `Mox.with_params` or `write_back`. If weights are
      arguments, the leaves that the adapters change, by the path of the argument.

    Raises:
      InvalidArgument: there are no adapters; an argument that contains a weight is not given; a weight is also used
        without the adapters, or with others (tied weights), so no merged weight would give the same results; it has
        several adapters, not all of them LoRA; a layer that is scaled is not linear in its weight.

    >>> import jax, jax.numpy as jnp, jaxport, equinox as eqx
    >>> mox = jaxport.make_mox(eqx.nn.Linear(3, 4, key=jax.random.key(0)))(jnp.ones(3))
    >>> adapted = mox.sub("//Linear", jaxport.mox.lora(rank=2))
    >>> trained = {path: value + 0.1 for path, value in adapted.params.items()}
    >>> merged = mox.with_params(jaxport.mox.merge_lora(adapted, trained))
    >>> bool(jnp.allclose(merged(jnp.ones(3)), adapted.apply(trained, jnp.ones(3)), atol=1e-6))
    True
    """
    unknown = sorted(set(params or {}) - {weight.path for weight in mox.weights})
    if unknown:
        raise InvalidArgument(
            f"`{unknown[0]}` is not a parameter of the Mox",
            where="`merge_lora`",
            why=near(unknown[0], mox.params),
            instead="give the parameters of the adapted Mox, by their full paths",
        )
    if params:
        mox = mox.with_params(params)
    nodes = [node for node in mox.tree.nodes if node.block is not None and node.block.target == TARGET]
    if not nodes:
        raise InvalidArgument(
            f"`{mox.name}` has no adapters", where="`merge_lora`", instead="edit it with `lora`, `dora` or `ia3` first"
        )
    for node in nodes:
        if node.block is not None and not node.block.config.get("mergeable", True):
            raise InvalidArgument(
                f"the adapter of `{node.path}` cannot be merged",
                where="`merge_lora`",
                why="the layer is not linear in its weight, its other parameters are not just added, or it computes "
                "the weight "
                "from others, such as quantized ones",
                instead="use `mox.params` and `mox.apply` instead",
            )
    held = {weight.path: weight.value for weight in mox.weights}
    return _Merging(mox, nodes, held | _leaves_of(arguments or {})).merged()


class _Merging:
    """One merge: the adapters of all layers, and the values of what the program holds, by path."""

    def __init__(self, mox: Mox, nodes: Sequence[Node], held: Mapping[str, Array]):
        self.mox, self.held = mox, held
        self.adapters = list(dict.fromkeys(adapter for node in nodes for adapter in _adapters(node.equation)))
        self.places = places_of(mox, nodes)
        names = [*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs]
        self.inputs = dict(zip(names, mox.jaxpr.jaxpr.invars, strict=True))

    def merged(self) -> dict[str, Array]:
        """Return the parameters of the model before the edit, by path."""
        values = {path: self.held[path] for path in self.mox.params}
        for adapter in self.adapters:
            for _, new in adapter.parts:
                values.pop(self.places[new].root, None)
        factors = {path for adapter in self.adapters for _, path in adapter.parts}
        for weight in dict.fromkeys(adapter.weight for adapter in self.adapters):
            if weight in factors:
                raise _refused(weight, "it is a factor of another adapter", "adapt layers, not adapters")
            mine = frozenset(adapter for adapter in self.adapters if adapter.weight == weight)
            place = self.places.get(weight)
            if place is None:
                values[weight] = self.with_adapters(exchanged_weight(self.mox, weight), weight, mine)
                continue
            if place.root not in self.held:
                raise InvalidArgument(
                    f"the weight `{weight}` is an argument of the model",
                    where="`merge_lora`",
                    instead=f"pass `arguments={{'{weight.partition('.')[0]}': ...}}`",
                )
            if any(around != mine for around in self.around_uses(place)):
                raise _refused(
                    weight,
                    "not all that is computed from it has the same adapters around it, and nothing else in between",
                    "adapt all layers that share the weight by one `sub`, or none of the others; or use "
                    "`mox.params`, `mox.apply` as they are",
                )
            value = self.with_adapters(place.value(self.held), weight, mine)
            values[place.root] = place.with_value({**self.held, **values}, value)
        # The model before an edit that exchanges weights has those of all layers.
        is_exchanged = any(adapter.weight not in self.places for adapter in self.adapters)
        return {**exchanged_weights(self.mox), **values} if is_exchanged else values

    def around_uses(self, place: ParameterPlace) -> Iterator[frozenset[_Adapter] | None]:
        """Yield the adapters around each equation that a weight reaches; None if another edit comes in between."""
        for steps, around in _uses(self.mox.jaxpr.jaxpr, self.inputs[place.root], (), frozenset()):
            # Another layer of the same stack is another weight.
            if all(one == other for one, other in zip(steps, place.steps, strict=False)):
                yield around

    def with_adapters(self, w: Array, weight: str, adapters: frozenset[_Adapter]) -> Array:
        """Return a weight with the change of each of its adapters."""
        if len(adapters) > 1 and any(adapter.kind != "lora" for adapter in adapters):
            raise _refused(
                weight, "of several adapters that scale the order matters", "merge each before the next is added"
            )
        for adapter in sorted(adapters, key=lambda adapter: adapter.parts):
            parts = {part: jnp.asarray(self.places[path].value(self.held)) for part, path in adapter.parts}
            w = adapter.merged(w, parts)
        return w


def _refused(weight: str, why: str, instead: str) -> InvalidArgument:
    return InvalidArgument(
        f"the adapters of `{weight}` cannot be merged into it", where="`merge_lora`", why=why, instead=instead
    )


@dataclass(frozen=True)
class _Adapter:
    """A change of a weight: its kind, and the paths of its parameters by their roles.

    `axes` are those that the input meets; of IA³, those that are scaled. Each index of `batch` has its own factors.
    """

    weight: str
    kind: str
    parts: tuple[tuple[str, str], ...]
    axes: tuple[int, ...]
    batch: tuple[int, ...]
    scale: float

    def merged(self, weight: Array, parts: Mapping[str, Array]) -> Array:
        """Return the weight with the change; of a stack of layers, with a change for each."""
        first, own = (
            ("ia3_scale", len(self.axes)) if self.kind == "ia3" else ("lora_a", len(self.batch) + len(self.axes) + 1)
        )
        merge = self._of_layer
        for _ in range(parts[first].ndim - own):
            merge = jax.vmap(merge)
        return merge(weight, parts)

    def _of_layer(self, w: Array, parts: Mapping[str, Array]) -> Array:
        gate = parts.get(GATE)
        if self.kind == "ia3":
            factor = parts["ia3_scale"] if gate is None else 1 + gate * (parts["ia3_scale"] - 1)
            return (w * along(factor, self.axes, w.ndim)).astype(w.dtype)
        a, b = parts["lora_a"], parts["lora_b"]
        if self.kind == "dora":
            return directed(w, a, b, parts["lora_m"], (self.axes, self.batch), self.scale, gate)
        factor = self.scale if gate is None else self.scale * gate
        return (w + factor * update_of(a, b, self.axes, self.batch)).astype(w.dtype)


def _adapters(equation: jaxprs.JaxprEqn) -> list[_Adapter]:
    """Return the changes that a block makes; none if it is no adapted layer."""
    block: Block | None = equation.params.get("block")
    if block is None or block.target != TARGET:
        return []
    kind, new = block.config.get("kind", "lora"), block.config["new_params"]
    adapters = []
    for weight, prefix, axes, *batch in block.config["plans"]:
        parts = [(own.removeprefix(prefix), path) for own, path in new.items()]
        known = {part: path for part, path in parts if part in _PARTS}
        gate = next((path for own, path in new.items() if own.endswith(GATE)), None)
        known |= {} if gate is None else {GATE: gate}
        adapters.append(
            _Adapter(weight, kind, tuple(sorted(known.items())), tuple(axes), tuple(*batch), block.config["scale"])
        )
    return adapters


_PARTS = frozenset({"ia3_scale", "lora_a", "lora_b", "lora_m"})


def _uses(
    jaxpr: jaxprs.Jaxpr, variable: jaxprs.Var, steps: tuple[int, ...], around: frozenset[_Adapter], sliced: bool = False
) -> Iterator[tuple[tuple[int, ...], frozenset[_Adapter] | None]]:
    """Yield for each equation that a weight reaches which layer of the stack it is there, and the adapters around.

    These are None if another edit comes in between. `sliced` says that a scan hands out slices of the weight.
    """
    for equation, position in reached(jaxpr, [variable], lambda _: False)[1]:
        index = None if sliced else index_of(equation)
        layers = [] if index is None else _readers(jaxpr, equation.outvars[0])
        if index is not None and layers and all(map(is_first_axis_squeezed, layers)):
            for layer in layers:
                yield from _uses(jaxpr, layer.outvars[0], (*steps, index), around)
            continue
        if not runs_bodies(equation):
            yield steps, around
            continue
        block: Block | None = equation.params.get("block")
        own = None if block is None else block.named.get(position)
        mine = [adapter for adapter in _adapters(equation) if adapter.weight == own]
        mine += _nested(equation, own) if mine else []
        if around and block is not None and block.edited and block.kind == "function" and not mine:
            yield steps, None
            continue
        for body, inner, source in entered_by(equation, position):
            yield from _uses(body, body.invars[inner], steps, around.union(mine), sliced or source.sliced)
    if any(atom is variable for atom in jaxpr.outvars):
        yield steps, around


def _nested(equation: jaxprs.JaxprEqn, weight: str | None) -> list[_Adapter]:
    """Return the adapters inside an adapted layer that take the weight with its own change in place of it."""

    def takes(inner: jaxprs.JaxprEqn) -> bool:
        block: Block | None = inner.params.get("block")
        return block is not None and weight in block.exchanged.values()

    inside = filter(takes, equations_within(equation.params["jaxpr"].jaxpr, takes))
    return [adapter for inner in inside for adapter in _adapters(inner) if adapter.weight == weight]


def _readers(jaxpr: jaxprs.Jaxpr, variable: jaxprs.Var) -> list[jaxprs.JaxprEqn]:
    """Return the equations of a body that read a value; none if the body returns it."""
    if any(atom is variable for atom in jaxpr.outvars):
        return []
    return readers(jaxpr, variable)


def _leaves_of(arguments: Mapping[str, object]) -> dict[str, Array]:
    from jaxport.blocks.callables.naming import leaf_paths

    named = list(arguments.items())
    paths = leaf_paths(named, lambda _: False)
    return dict(zip(paths, jax.tree.leaves([tree for _, tree in named]), strict=True))
