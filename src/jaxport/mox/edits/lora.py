"""LoRA: low-rank updates of the weights of selected layers, as new parameters.

A weight W of a layer gets two factors: A (its input axes, and the rank) and B (the rank, and its output axes). Where
the layer is a plain product, the input goes through A and B itself; anywhere else (convolutions, recurrent cells,
layers that do more) the layer runs with W + scale · A·B, which is the same for every layer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.block import Block
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Aval, PythonFunction, PyTree, Var
from jaxport.jaxprs.dataflow import producers
from jaxport.mox.edits.checks import check_number, check_predicate, check_whole
from jaxport.mox.querying.match import Match
from jaxport.mox.querying.uses import Kernel, Use, cast_of, is_passed_on, kernels, plain_body, uses
from jaxport.mox.substitution.replacement import Factory, Original, Replacement, factory

__all__ = [
    "GATE",
    "TARGET",
    "checked_name",
    "checked_scale",
    "contracted",
    "factors",
    "is_adapted",
    "lora",
    "no_weight",
    "update_of",
]

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
      contracted: if the layer is a plain product, the axes of the input that meet them.
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
    """Add low-rank adapters to the selected layers: dense, embedding, convolution or recurrent, of any framework.

    The new parameters are `lora_a` (random) and `lora_b` (zeros) below the path of the layer, so the edited model computes
    the same as before until it is trained.

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
        chosen = [kernel for kernel in kernels(match) if weights is None or weights(kernel.path)]
        prefix = lambda kernel: before if len(chosen) == 1 else f"{before}{kernel.name}."
        plans = tuple(_plan(match, kernel, prefix(kernel)) for kernel in chosen)
        if not plans:
            raise no_weight(match, "`lora`")
        params: dict[str, Array] = {}
        for kernel, plan in zip(chosen, plans, strict=True):
            params |= factors(match, kernel, plan.prefix, rank, seed)
        config = {
            "rank": rank,
            "scale": scale,
            "plans": tuple((k.path, p.prefix, p.inputs) for k, p in zip(chosen, plans, strict=True)),
            "adapter": name,
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
    aval = match.weight_avals[kernel.path]
    in_sizes, made = _split(aval.shape, kernel.inputs)
    before = f"{prefix.removesuffix(f'{kernel.name}.')}{kernel.name}"
    numbers = np.random.default_rng([seed, zlib.crc32(f"{match.path}.{before}".encode()), *match.position])
    bound = math.sqrt(3 / math.prod(in_sizes))
    a = bound * (2 * numbers.random((*in_sizes, rank), np.float32) - 1)
    return {f"{prefix}lora_a": a.astype(aval.dtype), f"{prefix}lora_b": np.zeros((rank, *made), aval.dtype)}


def _split(shape: tuple, inputs: tuple[int, ...]) -> tuple[list[int], list[int]]:
    return [shape[axis] for axis in inputs], [size for axis, size in enumerate(shape) if axis not in inputs]


# What a plain layer does with the product: it adds a bias, and arranges the result.
_TAIL = frozenset({"add", "reshape", "transpose"})


def _plan(match: Match, kernel: Kernel, prefix: str) -> _Plan:
    """Return how a weight is updated."""
    jaxpr = plain_body(match)
    variable = jaxpr.invars[kernel.index]
    readers = list(uses(jaxpr, variable))
    plan = _Plan(kernel.name, prefix, kernel.inputs)
    if len(readers) != 1:
        return plan
    (use,) = readers
    if use.equation.primitive.name == "dot_general" and use.depth == 0:
        contracted, batch = use.equation.params["dimension_numbers"]
        theirs = tuple(contracted[1 - use.position])
        return plan if batch[0] else replace(plan, contracted=_contracted(match, jaxpr, use, theirs))
    looked_up = use.equation.primitive.name == "gather" and use.position == 0 and _is_lookup(match, variable)
    return replace(plan, looked_up=looked_up)


def _contracted(match: Match, jaxpr: jaxprs.Jaxpr, use: Use, theirs: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axes of the block's first argument that meet the weight, None unless the block is a plain product."""
    block = match.block
    other = cast_of(jaxpr, use.equation.invars[1 - use.position])
    if block is None or block.axes is None or len(block.arguments) < 1 or other is not jaxpr.invars[0]:
        return None
    if len(block.returns) != 1 or not is_passed_on(jaxpr, use.equation.outvars[0], _TAIL):
        return None
    operand: Aval = other.aval
    axes, rank = list(theirs), operand.ndim
    for in_axes, _ in reversed(block.axes):
        if in_axes[0] is None or in_axes[0] in axes:
            return None
        axes = [axis - (axis > in_axes[0]) for axis in axes]
        rank -= 1
    moved = any(equation.primitive.name == "transpose" for equation in producers(jaxpr).values())
    # With axes of the input left over, the order of the result's axes must be that of a product with the weight last.
    if rank > len(axes) and (moved or use.position == 0):
        return None
    return tuple(axes)


def _is_lookup(match: Match, variable: Var) -> bool:
    """Whether the block gives the rows of a table that its first argument, whole numbers, asks for."""
    block = match.block
    if block is None or block.batched or len(match.in_avals) != 1 or len(match.out_avals) != 1:
        return False
    table: Aval = variable.aval
    (indices,), (made,) = match.in_avals, match.out_avals
    whole = jnp.issubdtype(indices.dtype, jnp.integer)
    return whole and table.ndim == 2 and made.shape == (*indices.shape, table.shape[1])


def contracted(match: Match, kernel: Kernel) -> tuple[int, ...] | None:
    """Return the axes of a layer's first argument that meet its weight, None unless the layer is a plain product."""
    return _plan(match, kernel, "").contracted


@cache
def _apply(plans: tuple[_Plan, ...], scale: float, gate: str) -> PythonFunction:
    """Return the adapted layer, one function for all layers with these plans, so that it is traced once."""

    def adapted(original: Original, params: Mapping[str, Array], *args: PyTree) -> PyTree:
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
                exchanged[plan.weight] = (w + factor * update_of(a, b, plan.inputs)).astype(w.dtype)
        result = original(*args, params=exchanged)
        if added is None:
            return result
        added = added if not gate and scale == 1 else factor * added
        return result + added.reshape(result.shape).astype(result.dtype)

    return adapted


def update_of(a: Array, b: Array, inputs: tuple[int, ...]) -> Array:
    """Return A·B with its axes in the order of the weight's."""
    product = jnp.tensordot(a, b, 1)
    return jnp.moveaxis(product, range(len(inputs)), inputs)
