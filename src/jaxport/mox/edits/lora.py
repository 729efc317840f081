"""LoRA: low-rank updates of the weights of selected layers, as new parameters; and their merge into the weights.

A weight W of a layer gets two factors: A (its input axes, and the rank) and B (the rank, and its output axes). Where
the layer is a plain product, the input goes through A and B itself; anywhere else (convolutions, recurrent cells,
layers that do more) the layer runs with W + scale · A·B, which is the same for every layer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.labels import bodies
from jaxport.errors import InvalidArgument
from jaxport.mox.calls import runs_bodies, source_of
from jaxport.mox.match import Match
from jaxport.mox.mox import Mox
from jaxport.mox.replacement import Factory, Original, Replacement, factory
from jaxport.mox.uses import Kernel, Use, cast_of, is_passed_on, kernels, uses

if TYPE_CHECKING:
    from jaxport.blocks.block import Block

__all__ = ["GATE", "TARGET", "lora", "merge_lora"]

TARGET = "jaxport.mox.lora"

GATE = "lora_active"
"""The name of what a named adapter is multiplied with: 1 if it is active, 0 if not."""


@dataclass(frozen=True)
class _Plan:
    """How one weight is updated.

    Attributes:
      weight: its name below the block.
      prefix: of the names of its factors.
      inputs: which of its axes the input meets.
      contracted: where the layer is a plain product, the axes of the input that meet them.
      looked_up: the layer looks up rows of the weight.
    """

    weight: str
    prefix: str
    inputs: tuple[int, ...]
    contracted: tuple[int, ...] | None = None
    looked_up: bool = False


def lora(
    rank: int = 8,
    *,
    alpha: float | None = None,
    seed: int = 0,
    weights: Callable[[str], bool] | None = None,
    name: str = "",
) -> Factory:
    """Low-rank adapters for the selected layers: dense, embedding, convolution, recurrent, of any framework.

    The new parameters are `lora_a` (random) and `lora_b` (zeros) below the path of the layer, so that the edited model
    computes what it did until it is trained.

    Args:
      rank: of the update.
      alpha: the update is scaled by ``alpha / rank``; by default by 1.
      seed: of the random factors; each path has its own numbers.
      weights: which of a block's weights are updated, by path; by default those that are multiplied with
        something, or looked up in. All have two axes or more.
      name: of the adapters: their parameters are below it (`up.<name>.lora_a`), several can be on one layer, and
        `set_adapter` switches them on and off.

    Raises:
      InvalidArgument: `rank` is not positive; `name` is no word; a selected block has no such weight.

    >>> import jax.numpy as jnp, jaxport, equinox as eqx, jax
    >>> linear = eqx.nn.Linear(3, 4, key=jax.random.key(0))
    >>> mox = jaxport.make_mox(linear)(jnp.ones(3))
    >>> adapted = mox.sub("//Linear", jaxport.mox.lora(rank=2))
    >>> {path: value.shape for path, value in adapted.params.items()}
    {'weight': (4, 3), 'bias': (4,), 'lora_a': (3, 2), 'lora_b': (2, 4)}
    """
    if rank < 1:
        raise InvalidArgument(f"rank={rank} is no rank", where="`lora`", instead="give a positive number")
    if name and not name.isidentifier():
        raise InvalidArgument(f"`{name}` is no name of an adapter", where="`lora`", instead="give one word")
    scale = 1.0 if alpha is None else alpha / rank
    before = f"{name}." if name else ""

    def make(match: Match) -> Replacement:
        found = [kernel for kernel in kernels(match) if weights is None or weights(kernel.path)]
        prefix = lambda kernel: before if len(found) == 1 else f"{before}{kernel.name}."
        plans = tuple(_plan(match, kernel, prefix(kernel)) for kernel in found)
        if not plans:
            raise InvalidArgument(
                f"`{match.shown}` has no weight to adapt",
                where="`lora`",
                why=f"`{match.type}` has {', '.join(f'`{p}`' for p in match.weight_avals) or 'no parameters'}",
                instead="select layers with a kernel",
            )
        params: dict[str, Any] = {}
        for kernel, plan in zip(found, plans, strict=True):
            aval = match.weight_avals[kernel.path]
            given, made = _split(aval.shape, plan.inputs)
            step = match.position
            place = f"{match.path}.{before}{kernel.name}".encode()
            numbers = np.random.default_rng([seed, zlib.crc32(place), *step])
            bound = math.sqrt(3 / math.prod(given))
            a = bound * (2 * numbers.random((*given, rank), np.float32) - 1)
            params[f"{plan.prefix}lora_a"] = a.astype(aval.dtype)
            params[f"{plan.prefix}lora_b"] = np.zeros((rank, *made), aval.dtype)
        config = {
            "rank": rank,
            "scale": scale,
            "plans": tuple((k.path, p.prefix, p.inputs) for k, p in zip(found, plans, strict=True)),
            "adapter": name,
        }
        trained = frozenset(params)
        gate = f"{before}{GATE}" if name else ""
        if gate:
            params[gate] = np.ones((), np.float32)
        return Replacement(_apply(plans, scale, gate), params, name=TARGET, config=config, trainable=trained)

    return factory(make)


def _split(shape: tuple, inputs: tuple[int, ...]) -> tuple[list[int], list[int]]:
    return [shape[axis] for axis in inputs], [size for axis, size in enumerate(shape) if axis not in inputs]


# What a plain layer does with the product: it adds a bias, and arranges the result.
_TAIL = frozenset({"add", "reshape", "transpose"})


def _plan(match: Match, kernel: Kernel, prefix: str) -> _Plan:
    """How a weight is updated."""
    jaxpr = match.node.equation.params["jaxpr"].jaxpr
    variable = jaxpr.invars[kernel.index]
    found = list(uses(jaxpr, variable))
    plan = _Plan(kernel.name, prefix, kernel.inputs)
    if len(found) != 1:
        return plan
    (use,) = found
    if use.equation.primitive.name == "dot_general" and use.depth == 0:
        contracted, batch = use.equation.params["dimension_numbers"]
        theirs = tuple(contracted[1 - use.position])
        return plan if batch[0] else replace(plan, contracted=_contracted(match, use, theirs))
    looked_up = use.equation.primitive.name == "gather" and use.position == 0 and _is_lookup(match, variable)
    return replace(plan, looked_up=looked_up)


def _contracted(match: Match, use: Use, theirs: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes of the block's first argument that meet the weight, None unless the block is a plain product."""
    jaxpr, block = match.node.equation.params["jaxpr"].jaxpr, match.block
    other = cast_of(jaxpr, use.equation.invars[1 - use.position])
    if block is None or block.axes is None or len(block.arguments) < 1 or other is not jaxpr.invars[0]:
        return None
    if len(block.returns) != 1 or not is_passed_on(jaxpr, use.equation.outvars[0], _TAIL):
        return None
    axes, rank = list(theirs), other.aval.ndim
    for given, _ in reversed(block.axes):
        if given[0] is None or given[0] in axes:
            return None
        axes = [axis - (axis > given[0]) for axis in axes]
        rank -= 1
    moved = any(equation.primitive.name == "transpose" for equation in jaxpr.eqns)
    # With axes of the input left over, the order of the result's axes must be that of a product with the weight last.
    if rank > len(axes) and (moved or use.position == 0):
        return None
    return tuple(axes)


def _is_lookup(match: Match, variable: Any) -> bool:
    """Whether the block gives the rows of a table that its first argument, whole numbers, asks for."""
    block = match.block
    if block is None or block.batched or len(match.in_avals) != 1 or len(match.out_avals) != 1:
        return False
    (given,), (made,) = match.in_avals, match.out_avals
    whole = jnp.issubdtype(given.dtype, jnp.integer)
    return whole and variable.aval.ndim == 2 and made.shape == (*given.shape, variable.aval.shape[1])


@cache
def _apply(plans: tuple[_Plan, ...], scale: float, gate: str) -> Callable[..., Any]:
    """The adapted layer, one function for all layers with these plans, so that it is traced once."""

    def adapted(original: Original, params: Mapping[str, Any], *args: Any) -> Any:
        exchanged, added = {}, None
        factor = scale * params[gate] if gate else scale
        for plan in plans:
            a, b = params[f"{plan.prefix}lora_a"], params[f"{plan.prefix}lora_b"]
            if plan.contracted is not None:
                x = args[0].astype(a.dtype)
                down = jnp.tensordot(x, a, (plan.contracted, tuple(range(a.ndim - 1))))
                added = jnp.tensordot(down, b, 1)
            elif plan.looked_up:
                added = jnp.tensordot(jnp.take(a, args[0], axis=0), b, 1)
            else:
                w = original.param(plan.weight)
                exchanged[plan.weight] = (w + factor * _update(a, b, plan.inputs)).astype(w.dtype)
        result = original(*args, params=exchanged)
        if added is None:
            return result
        added = added if not gate and scale == 1 else factor * added
        return result + added.reshape(result.shape).astype(result.dtype)

    return adapted


def _update(a: Any, b: Any, inputs: tuple[int, ...]) -> Any:
    """A·B with its axes in the order of the weight's."""
    product = jnp.tensordot(a, b, 1)
    return jnp.moveaxis(product, range(len(inputs)), inputs)


def merge_lora(
    mox: Mox, params: Mapping[str, Any] | None = None, arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The weights of the original model with the adapters of an edited one merged in.

    Args:
      mox: a Mox with adapters that `lora` made.
      params: its parameters, after training; by default those that it holds.
      arguments: where the weights are arguments of the model (Linen), the arguments by name.

    Returns:
      The parameters of the model before the edit, by path: for `Mox.with_params` or `write_back`. Of arguments, the
      leaves that the adapters change, by the path of the argument.

    Raises:
      InvalidArgument: there are no adapters; an argument that has a weight is not given; a weight is also used without
        the adapters, or with others (tied weights), so that no merged weight would do the same.

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
    nodes = [node for node in mox.tree.nodes if node.block is not None and node.block.target == TARGET]
    if not nodes:
        raise InvalidArgument(
            f"`{mox.name}` has no adapters", where="`merge_lora`", instead="edit it with `lora` first"
        )
    merged = {path: held[path] for path in mox.params}
    adapters = list(dict.fromkeys(adapter for node in nodes for adapter in _adapters(node.equation)))
    for adapter in adapters:
        for new in (adapter.a, adapter.b, adapter.gate):
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
        w = held[weight]
        for adapter in sorted(mine, key=lambda adapter: adapter.a):
            update = lambda a, b, inputs=adapter.inputs: _update(a, b, inputs)
            a, b = held[adapter.a], held[adapter.b]
            for _ in range(a.ndim - 1 - len(adapter.inputs)):  # a stack, one slice per step of a scan
                update = jax.vmap(update)
            w = (w + _factor(adapter, held, a) * update(a, b)).astype(w.dtype)
        merged[weight] = w
    return merged


@dataclass(frozen=True)
class _Adapter:
    """An update of a weight: the paths of the weight and of its factors, and how they are put together."""

    weight: str
    a: str
    b: str
    inputs: tuple[int, ...]
    scale: float
    gate: str = ""


def _adapters(equation: jaxprs.JaxprEqn) -> list[_Adapter]:
    """The updates that a block makes; none where it is no adapted layer."""
    block: Block | None = equation.params.get("block")
    if block is None or block.target != TARGET:
        return []
    factors = block.config["new_params"]
    scale, gate = block.config["scale"], next((path for own, path in factors.items() if own.endswith(GATE)), "")
    return [
        _Adapter(weight, factors[f"{prefix}lora_a"], factors[f"{prefix}lora_b"], tuple(inputs), scale, gate)
        for weight, prefix, inputs in block.config["plans"]
    ]


def _factor(adapter: _Adapter, held: Mapping[str, Any], a: Any) -> Any:
    """What the update of an adapter is multiplied with; of a stack of layers, for each."""
    if not adapter.gate:
        return adapter.scale
    gate = jnp.asarray(held[adapter.gate])
    return adapter.scale * gate.reshape(*gate.shape, *[1] * (a.ndim - gate.ndim))


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
