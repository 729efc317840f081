"""LoRA: low-rank updates of the weights of selected layers, as new parameters.

A weight W of a layer gets two factors: A (its input axes, and the rank) and B (the rank, and its output axes), for each
index of its batch axes if it has any (experts). Where the layer is a plain product or lookup, the input goes through A
and B itself; anywhere else (convolutions, recurrent cells, layers that do more) the layer runs with W + scale · A·B,
which is the same for every layer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.blocks.block import Block
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, PythonFunction
from jaxport.mox.edits.checks import check_number, check_predicate, check_whole
from jaxport.mox.expressions import Match, factory
from jaxport.mox.querying.kernels import Kernel, kernels
from jaxport.mox.substitution.replacement import Factory, Original, Replacement

TARGET = "jaxport.mox.lora"

GATE = "lora_active"
"""The name of the factor of a named adapter: 1 if it is active, 0 if not."""


@dataclass(frozen=True)
class _Plan:
    """How one weight is updated.

    Attributes:
      weight: its name below the block.
      prefix: of the names of its factors.
      inputs: which of its axes the input meets.
      batch: which of its axes tell kernels apart; each has factors of its own.
      argument: the position of the argument that it meets.
      contracted: if the layer is a plain product, the axes of the argument that meet them.
      looked_up: if the layer is a plain lookup of rows.
      order: of a plain layer, the axes of the result, counted in the other axes of the argument, and the outputs.
    """

    weight: str
    prefix: str
    inputs: tuple[int, ...]
    batch: tuple[int, ...] = ()
    argument: int = 0
    contracted: tuple[int, ...] | None = None
    looked_up: bool = False
    order: tuple[int, ...] = ()

    @classmethod
    def of(cls, kernel: Kernel, prefix: str) -> _Plan:
        """Return the plan for a kernel."""
        plan = cls(kernel.name, prefix, kernel.inputs, kernel.batch, kernel.argument)
        if kernel.order is None:
            return plan
        if kernel.is_lookup:
            return replace(plan, looked_up=True, order=kernel.order)
        return replace(plan, contracted=kernel.met, order=kernel.order)


def lora(
    rank: int = 8,
    *,
    alpha: float | None = None,
    seed: int = 0,
    weights: Callable[[str], bool] | None = None,
    name: str = "",
) -> Factory:
    """Add low-rank adapters to the selected layers: dense, embedding, convolution or recurrent, of any framework.

    The new parameters are `lora_a` (random) and `lora_b` (zeros) below the path of the layer, so the edited model
    computes the same as before until it is trained.

    Args:
      rank: the rank of the update.
      alpha: the update is scaled by ``alpha / rank``; by default by 1.
      seed: the seed of the random factors; each path has its own numbers.
      weights: which of a block's weights are updated, by path; by default those that are used in products or lookups.
        All have two axes or more.
      name: the name of the adapters: their parameters are below it (`up.<name>.lora_a`), one layer can have several
        adapters, and `set_adapter` switches them on and off.

    Raises:
      InvalidArgument: `rank` is not positive; `name` is not a word; a selected block has no such weight.

    >>> import jax.numpy as jnp, jaxport, equinox as eqx, jax
    >>> linear = eqx.nn.Linear(3, 4, key=jax.random.key(0))
    >>> mox = jaxport.make_mox(linear)(jnp.ones(3))
    >>> adapted = mox.sub("//Linear", jaxport.mox.lora(rank=2))
    >>> {path: value.shape for path, value in adapted.params.items()}
    {'weight': (4, 3), 'bias': (4,), 'lora_a': (3, 2), 'lora_b': (2, 4)}
    """
    before = checked_name(name, "`lora`")
    check_predicate(weights, "weights", "`lora`")
    check_whole(seed, "seed", "`lora`", least=0)
    scale = checked_scale(rank, alpha, "`lora`")

    def make(match: Match) -> Replacement:
        chosen = [kernel for kernel in kernels(match, computed=True) if weights is None or weights(kernel.path)]
        prefix = lambda kernel: before if len(chosen) == 1 else f"{before}{kernel.name}."
        plans = tuple(_Plan.of(kernel, prefix(kernel)) for kernel in chosen)
        if not plans:
            raise no_weight(match, "`lora`")
        for kernel, plan in zip(chosen, plans, strict=True):
            if kernel.is_computed and plan.contracted is None and not plan.looked_up:
                raise computed_weight(match, kernel, "`lora`")
        params: dict[str, Array] = {}
        for kernel, plan in zip(chosen, plans, strict=True):
            params |= factors(match, kernel, plan.prefix, rank, seed)
        config = {
            "rank": rank,
            "scale": scale,
            "plans": tuple((k.path, p.prefix, p.inputs, p.batch) for k, p in zip(chosen, plans, strict=True)),
            "adapter": name,
            "mergeable": not any(kernel.is_computed for kernel in chosen),
        }
        trained = frozenset(params)
        gate = f"{before}{GATE}" if name else ""
        if gate:
            params[gate] = np.ones((), np.float32)
        return Replacement(_apply(plans, scale, gate), params, name=TARGET, config=config, trainable=trained)

    return factory(make)


def checked_scale(rank: int, alpha: float | None, where: str) -> float:
    """Return the factor of an update of a rank.

    Raises:
      InvalidArgument: `rank` is not a positive whole number, or `alpha` not a number.
    """
    check_whole(rank, "rank", where)
    if alpha is not None:
        check_number(alpha, "alpha", where)
    return 1.0 if alpha is None else alpha / rank


def checked_name(name: str, where: str) -> str:
    """Return the prefix of the names of the parameters of an adapter.

    Raises:
      InvalidArgument: the adapter's own name is not a word.
    """
    if not isinstance(name, str) or (name and not name.isidentifier()):
        raise InvalidArgument(f"`{name}` is not a valid name for an adapter", where=where, instead="give one word")
    return f"{name}." if name else ""


def no_weight(match: Match, where: str) -> InvalidArgument:
    """Return the error of a layer without a weight to adapt."""
    return InvalidArgument(
        f"`{match.shown}` has no weight to adapt",
        where=where,
        why=f"`{match.type}` has {', '.join(f'`{p}`' for p in match.weight_avals) or 'no parameters'}",
        instead="select layers with a kernel",
    )


def computed_weight(match: Match, kernel: Kernel, where: str) -> InvalidArgument:
    """Return the error of a layer whose weight would have to be another one, which no parameter holds."""
    return InvalidArgument(
        f"the weight of `{match.shown}` is computed from `{kernel.path}` and others",
        where=where,
        why="the layer is not a plain product, or the adapter is not added to its result, so it needs another weight",
        instead="use `lora` on a plain product, or adapt the model before it is quantized",
    )


def is_adapted(match: Match, weight: str) -> bool:
    """Whether a block is given a weight with the change of an adapter in the place of the weight itself."""
    node = match.node
    for around in match.node.around:
        outer, inner = around.block, node.block
        if outer is None or inner is None or outer.path != inner.path:
            break
        given, held = (_positions(block).get(weight) for block in (inner, outer))
        if given is None or held is None:
            break
        passed_on = node.equation.invars[given] is around.equation.params["jaxpr"].jaxpr.invars[held]
        if not passed_on and outer.target == TARGET and weight in (path for path, *_ in outer.config["plans"]):
            return True
        node = around
    return False


def _positions(block: Block) -> dict[str, int]:
    return {path: index for index, path in block.named.items()}


def factors(match: Match, kernel: Kernel, prefix: str, rank: int, seed: int) -> dict[str, Array]:
    """Return the two factors of an update of a weight, by name: a random one, and zeros."""
    sizes = lambda axes: tuple(kernel.shape[axis] for axis in axes)
    before = f"{prefix.removesuffix(f'{kernel.name}.')}{kernel.name}"
    numbers = np.random.default_rng([seed, zlib.crc32(f"{match.path}.{before}".encode()), *match.position])
    bound = math.sqrt(3 / max(1, math.prod(sizes(kernel.inputs))))  # a weight may have no elements
    a = bound * (2 * numbers.random((*sizes(kernel.batch), *sizes(kernel.inputs), rank), np.float32) - 1)
    b = np.zeros((*sizes(kernel.batch), rank, *sizes(kernel.outputs)), kernel.dtype)
    return {f"{prefix}lora_a": a.astype(kernel.dtype), f"{prefix}lora_b": b}


@cache
def _apply(plans: tuple[_Plan, ...], scale: float, gate: str) -> PythonFunction:
    """Return the adapted layer, one function for all layers with these plans, so that it is traced once."""

    def adapted(original: Original, params: Mapping[str, Array], *args: Any) -> object:
        exchanged: dict[str, Array] = {}
        added: list[Array] = []
        factor = scale * params[gate] if gate else scale
        for plan in plans:
            a, b = params[f"{plan.prefix}lora_a"], params[f"{plan.prefix}lora_b"]
            if plan.contracted is not None:
                x = args[plan.argument].astype(a.dtype)
                down = jnp.tensordot(x, a, (plan.contracted, tuple(range(a.ndim - 1))))
                added.append(jnp.transpose(jnp.tensordot(down, b, 1), plan.order))
            elif plan.looked_up:
                added.append(jnp.transpose(jnp.tensordot(_rows(a, args[plan.argument]), b, 1), plan.order))
            else:
                w = original.param(plan.weight)
                exchanged[plan.weight] = (w + factor * update_of(a, b, plan.inputs, plan.batch)).astype(w.dtype)
        result = original(*args, params=exchanged)
        for update in added:
            scaled = update if not gate and scale == 1 else factor * update
            result = result + scaled.reshape(result.shape).astype(result.dtype)
        return result

    return adapted


def _rows(table: Array, index: Array) -> Array:
    """Return rows of a factor; an index outside gives that of the nearest end, whatever the layer gives there."""
    if jnp.issubdtype(index.dtype, jnp.signedinteger):
        index = jnp.where(index < 0, index + table.shape[0], index)
    return jnp.take(table, index, axis=0, mode="clip")


def update_of(a: Array, b: Array, inputs: tuple[int, ...], batch: tuple[int, ...] = ()) -> Array:
    """Return A·B with its axes in the order of the weight's.

    >>> update_of(jnp.ones((5, 3, 2)), jnp.ones((5, 2, 4)), inputs=(2,), batch=(0,)).shape
    (5, 4, 3)
    """
    if not batch:
        return jnp.moveaxis(jnp.tensordot(a, b, 1), range(len(inputs)), inputs)
    shared = tuple(range(len(batch)))
    product = jax.lax.dot_general(a, b, (((a.ndim - 1,), (len(batch),)), (shared, shared)))
    given = (*batch, *inputs)
    outputs = (axis for axis in range(product.ndim) if axis not in given)
    return jnp.transpose(product, np.argsort((*given, *outputs)).tolist())
