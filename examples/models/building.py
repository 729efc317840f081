"""The builders of examples: for each framework, a function that makes one from a module, its sizes, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
from flax import nnx

from .example import Example, Size, as_specs, sized, spec
from .weights import equinox_model, equinox_model_and_state, linen_variables, nnx_model

Builder = Callable[[Size], Example]

Data = Callable[[Any], dict[str, Any]]
"""The `inputs`, `sample` and `sizes` of an example, from the configuration of its model."""


def _stacked(config: Any, field: str | None) -> int | None:
    return None if field is None else getattr(config, field)


def nnx_example(
    name: str, module: Callable[..., nnx.Module], configs: Mapping[Size, Any], data: Data, *, stacked: str | None = None
) -> Builder:
    """An example whose callable is `module(config)` in eval mode.

    `stacked` is the field of the configuration that says how many matrices there are in an array of several.
    """

    def build(size: Size) -> Example:
        config = configs[size]
        model = nnx_model(module, config, stacked=_stacked(config, stacked))
        return Example(name=name, framework="nnx", fn=model, weights=nnx.state(model, nnx.Param), **data(config))

    return build


def linen_example(
    name: str,
    module: Callable[..., nn.Module],
    configs: Mapping[Size, Any],
    data: Data,
    *,
    stacked: str | None = None,
    **options: Any,
) -> Builder:
    """An example whose callable is `module(config).apply` with its variables and these options; `stacked` as above."""

    def build(size: Size) -> Example:
        config = configs[size]
        model, batch = module(config), data(config)
        inputs = jax.tree.map(
            lambda leaf: spec(sized(leaf.shape, batch["sizes"][0]), leaf.dtype), as_specs(batch["inputs"])
        )
        variables = linen_variables(model, *inputs, stacked=_stacked(config, stacked))
        fn = partial(model.apply, variables, **options)
        return Example(name=name, framework="linen", fn=fn, weights=variables["params"], **batch)

    return build


def equinox_example(name: str, module: Callable[..., Any], configs: Mapping[Size, Any], data: Data) -> Builder:
    """An example whose callable is `module(config)` in inference mode, mapped over a batch."""

    def build(size: Size) -> Example:
        config = configs[size]
        model = equinox_model(module, config)
        weights = eqx.filter(model, eqx.is_inexact_array)
        return Example(name=name, framework="equinox", fn=jax.vmap(model), weights=weights, **data(config))

    return build


def equinox_example_with_state(
    name: str, module: Callable[..., Any], configs: Mapping[Size, Any], data: Data
) -> Builder:
    """The same for a module with running statistics, which it does not change."""

    def build(size: Size) -> Example:
        config = configs[size]
        model, state = equinox_model_and_state(module, config)

        def predict(x: jax.Array) -> jax.Array:
            return batched(model)(x, state)[0]

        weights = eqx.filter(model, eqx.is_inexact_array)
        return Example(name=name, framework="equinox", fn=predict, weights=weights, **data(config))

    return build


def batched(model: Any) -> Any:
    """An Equinox module with BatchNorm over a batch: `(x, state) -> (y, new state)`."""
    return jax.vmap(model, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
