"""Adapters that scale: DoRA (the length of each column of a weight) and IA³ (the results or arguments of a layer).

Sources: Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024; Liu et al., "Few-Shot Parameter-Efficient
Fine-Tuning is Better and Cheaper than In-Context Learning", 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Parameters, PythonFunction
from jaxport.jaxprs.dims import static
from jaxport.mox.edits.checks import check_predicate
from jaxport.mox.edits.lora import (
    GATE,
    TARGET,
    checked_name,
    checked_scale,
    computed_weight,
    factors,
    no_weight,
    update_of,
)
from jaxport.mox.expressions import Match, factory
from jaxport.mox.querying.kernels import Kernel, kernels, summands
from jaxport.mox.substitution.replacement import Factory, Original, Replacement


def dora(
    rank: int = 8,
    *,
    alpha: float | None = None,
    seed: int = 0,
    weights: Callable[[str], bool] | None = None,
    name: str = "",
) -> Factory:
    """Add DoRA to the selected layers: a low-rank update of the direction of each column, and a learned magnitude.

    A weight W becomes ``m · (W + scale · A·B) / ‖W + scale · A·B‖``, with the norm over the contracted axes. The norm
    is treated as a constant in derivatives, as in section 4.3 of the paper. `lora_m` is initialized to the norm of W,
    so the edited model computes the same as before, up to rounding.

    Args:
      rank: the rank of the update.
      alpha: the update is scaled by ``alpha / rank``; by default by 1.
      seed: the seed of the random factors.
      weights: which of a block's weights are adapted, by path; by default all that are multiplied.
      name: the name of the adapters, as for `lora`.

    Raises:
      InvalidArgument: `rank` is not positive; `name` is not a word; a selected block has no such weight, or the program
        does not hold its value.

    >>> import jax.numpy as jnp
    >>> import jax
    >>> import jaxport, equinox as eqx
    >>> mox = jaxport.make_mox(eqx.nn.Linear(3, 4, key=jax.random.key(0)))(jnp.ones(3))
    >>> adapted = mox.sub("//Linear", jaxport.mox.dora(rank=2))
    >>> {path: value.shape for path, value in adapted.params.items() if "lora" in path}
    {'lora_a': (3, 2), 'lora_b': (2, 4), 'lora_m': (4,)}
    """
    before = checked_name(name, "`dora`")
    check_predicate(weights, "weights", "`dora`")
    scale = checked_scale(rank, alpha, "`dora`")

    def make(match: Match) -> Replacement:
        chosen = _found(match, weights, "`dora`")
        plans, params = [], {}
        for kernel in chosen:
            if kernel.is_computed:
                raise computed_weight(match, kernel, "`dora`")
            prefix = before if len(chosen) == 1 else f"{before}{kernel.name}."
            params |= factors(match, kernel, prefix, rank, seed)
            value = jnp.asarray(match.param(kernel.name))
            params[f"{prefix}lora_m"] = _norm(value, kernel.inputs).astype(kernel.dtype)
            plans.append((kernel.name, prefix, kernel.inputs, kernel.batch))
        config = {
            "kind": "dora",
            "rank": rank,
            "scale": scale,
            "plans": tuple((k.path, *plan) for k, (_, *plan) in zip(chosen, plans, strict=True)),
            "adapter": name,
        }
        return _replacement(_turned(tuple(plans), scale, _gate(before, name)), params, config, before)

    return factory(make)


def ia3(*, inputs: bool = False, weights: Callable[[str], bool] | None = None, name: str = "") -> Factory:
    """Add IA³ to the selected layers: their output is multiplied by a vector, which is initialized to ones.

    The paper scales keys, values, and the input of the second layer of each feed-forward part; use ``inputs=True`` for
    the latter.

    Args:
      inputs: whether to scale the input rather than the output.
      weights: which weight of a block determines the vector's shape, by path; needed if the block multiplies by
        several.
      name: the name of the adapters, as for `lora`.

    Raises:
      InvalidArgument: `name` is not a word; a selected block has no such weight or several; its argument or result does
        not end in the axes of the weight.

    >>> import jax.numpy as jnp
    >>> import jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    >>> mox.sub("//Linear", jaxport.mox.ia3()).params["ia3_scale"]
    Array([1., 1., 1., 1.], dtype=float32)
    """
    before = checked_name(name, "`ia3`")
    check_predicate(weights, "weights", "`ia3`")

    def make(match: Match) -> Replacement:
        chosen = _found(match, weights, "`ia3`")
        if len(chosen) > 1:
            raise InvalidArgument(
                f"`{match.shown}` has several weights",
                where="`ia3`",
                why=f"it multiplies {', '.join(f'`{kernel.path}`' for kernel in chosen)}",
                instead="choose one: `ia3(weights=lambda path: ...)`",
            )
        (kernel,) = chosen
        axes = kernel.inputs if inputs else kernel.channels
        places = kernel.met if inputs else kernel.made
        if places is None:
            what = "argument" if inputs else "result"
            raise InvalidArgument(
                f"the {what} of `{match.shown}` cannot be multiplied",
                where="`ia3`",
                why=f"it does not have the axes {axes} of `{kernel.path}`",
                instead="scale it with a `Replacement` of your own",
            )
        sizes = tuple(kernel.shape[axis] for axis in axes)
        scaled = _scaled_with(match, kernel, inputs)
        config = {
            "kind": "ia3",
            "rank": 0,
            "scale": 1.0,
            "plans": tuple((path, before, its_axes) for path, its_axes in (scaled or [(kernel.path, axes)])),
            "adapter": name,
            "inputs": inputs,
            "mergeable": scaled is not None,
        }
        params: dict[str, Array] = {f"{before}ia3_scale": np.ones(static(sizes), kernel.dtype)}
        argument = kernel.argument if inputs else None
        return _replacement(_multiplied(before, argument, places, _gate(before, name)), params, config, before)

    return factory(make)


def _found(match: Match, weights: Callable[[str], bool] | None, where: str) -> list[Kernel]:
    chosen = [k for k in kernels(match, computed=True) if weights is None or weights(k.path)]
    if not chosen:
        raise no_weight(match, where)
    return chosen


def _gate(before: str, name: str) -> str:
    return f"{before}{GATE}" if name else ""


def _replacement(apply: PythonFunction, params: dict[str, Array], config: Parameters, before: str) -> Replacement:
    trained = frozenset(params)
    if config["adapter"]:
        params[f"{before}{GATE}"] = np.ones((), np.float32)
    return Replacement(apply, params, name=TARGET, config=config, trainable=trained)


@cache
def _turned(
    plans: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...]], ...], scale: float, gate: str
) -> PythonFunction:
    """Return the layer with other directions and lengths of its columns."""

    def adapted(original: Original, params: Mapping[str, Array], *args: object) -> object:
        exchanged = {}
        for weight, prefix, inputs, batch in plans:
            a, b, m = (params[f"{prefix}lora_{part}"] for part in "abm")
            active = params[gate] if gate else None
            exchanged[weight] = directed(original.param(weight), a, b, m, (inputs, batch), scale, active)
        return original(*args, params=exchanged)

    return adapted


def directed(
    w: Array,
    a: Array,
    b: Array,
    m: Array,
    axes: tuple[tuple[int, ...], tuple[int, ...]],
    scale: float,
    gate: Array | None = None,
) -> Array:
    """Return the weight with the direction of its low-rank update, and the lengths `m`.

    `axes` are those that the input meets, and those of the batch. It is the weight itself if the `gate` is 0.
    """
    inputs, batch = axes
    direction = w + scale * update_of(a, b, inputs, batch)
    norm = jax.lax.stop_gradient(jnp.expand_dims(_norm(direction, inputs), inputs))
    made = jnp.expand_dims(m, inputs) * direction / jnp.where(norm == 0, 1, norm)
    return (made if gate is None else w + gate * (made - w)).astype(w.dtype)


def _norm(w: Array, inputs: Sequence[int]) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(w), axis=tuple(inputs)))


@cache
def _multiplied(before: str, argument: int | None, places: tuple[int, ...], gate: str) -> PythonFunction:
    """Return the layer with an argument or its result multiplied, along some of its axes."""

    def scaled(value: Array, params: Mapping[str, Array]) -> Array:
        factor = params[f"{before}ia3_scale"]
        factor = 1 + params[gate] * (factor - 1) if gate else factor
        return (value * along(factor, places, value.ndim)).astype(value.dtype)

    def adapted(original: Original, params: Mapping[str, Array], *args: Any) -> object:
        if argument is not None:
            return original(*args[:argument], scaled(args[argument], params), *args[argument + 1 :])
        return scaled(original(*args), params)

    return adapted


def _scaled_with(match: Match, kernel: Kernel, inputs: bool) -> list[tuple[str, tuple[int, ...]]] | None:
    """Return the parameters that may be multiplied in place of what the layer takes or returns, and along which axes.

    None unless the result of the layer is the product with its weight, and its other parameters.
    """
    block = match.block
    if block is None or not kernel.is_alone or kernel.is_computed:
        return None
    if inputs:
        return None if kernel.order is None else [(kernel.path, kernel.inputs)]
    added = {summand.path: summand for summand in summands(match, kernel) if summand.is_only_added}
    scaled = [(kernel.path, kernel.channels)]
    for path in block.named.values():
        if path != kernel.path:
            if path not in added or not set(kernel.channels) <= set(added[path].axes):
                return None
            scaled.append((path, tuple(map(added[path].axes.index, kernel.channels))))
    return scaled


def along(factor: Array, axes: Sequence[int], ndim: int) -> Array:
    """Return a factor that has the given axes of a weight of so many, for a product with it.

    >>> along(jnp.ones((2, 3)), (2, 0), 3).shape
    (3, 1, 2)
    """
    order = sorted(range(len(axes)), key=lambda index: axes[index])
    others = tuple(axis for axis in range(ndim) if axis not in axes)
    return jnp.expand_dims(jnp.transpose(factor, order), others)
