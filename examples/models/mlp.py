"""A multilayer perceptron for MNIST, and the gradient of its loss."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from .building import equinox_example, linen_example, nnx_example
from .example import Example, Size, normal, numbers, spec, token_ids
from .weights import equinox_model, linen_variables, nnx_model, random_weights


@dataclass(frozen=True)
class Config:
    features: int
    hidden: int
    classes: int


CONFIGS: dict[Size, Config] = {"small": Config(12, 32, 5), "real": Config(784, 512, 10)}


class NnxMlp(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.layers = nnx.Sequential(
            nnx.Linear(config.features, config.hidden, rngs=rngs),
            nnx.relu,
            nnx.Dropout(0.1, rngs=rngs),
            nnx.Linear(config.hidden, config.hidden, rngs=rngs),
            nnx.gelu,
            nnx.LayerNorm(config.hidden, rngs=rngs),
            nnx.Linear(config.hidden, config.classes, rngs=rngs),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers(x)


class LinenMlp(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(self.config.hidden)(x))
        x = nn.silu(nn.Dense(self.config.hidden)(x))
        x = nn.LayerNorm()(x)
        return nn.Dense(self.config.classes)(x)


def jax_mlp_shapes(config: Config) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """The weights and biases of three layers."""
    widths = (config.features, config.hidden, config.hidden, config.classes)
    return {
        f"layer_{i}": {"weight": spec((fan_in, fan_out)), "bias": spec((fan_out,))}
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths))
    }


def jax_mlp(parameters: dict[str, dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    x = jnp.tanh(x @ parameters["layer_0"]["weight"] + parameters["layer_0"]["bias"])
    x = jax.nn.sigmoid(x @ parameters["layer_1"]["weight"] + parameters["layer_1"]["bias"])
    return jax.nn.log_softmax(x @ parameters["layer_2"]["weight"] + parameters["layer_2"]["bias"])


def equinox_mlp_module(config: Config, *, key: jax.Array) -> eqx.nn.MLP:
    return eqx.nn.MLP(config.features, config.classes, config.hidden, depth=2, activation=jax.nn.softplus, key=key)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _features(config: Config) -> dict[str, Any]:
    return numbers(("B", config.features), sizes=({"B": 1}, {"B": 4}))


def _labelled_features(config: Config) -> dict[str, Any]:
    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        return normal(rng, (dims["B"], config.features)), token_ids(rng, (dims["B"],), config.classes)

    return _features(config) | {"inputs": (("B", config.features), spec(("B",), "int32")), "sample": sample}


nnx_mlp = nnx_example("mlp", NnxMlp, CONFIGS, _features)
linen_mlp = linen_example("mlp", LinenMlp, CONFIGS, _features)
equinox_mlp = equinox_example("mlp", equinox_mlp_module, CONFIGS, _features)


def plain_mlp(size: Size) -> Example:
    config = CONFIGS[size]
    parameters = random_weights(jax_mlp_shapes(config))

    def mlp(x: jax.Array) -> jax.Array:
        return jax_mlp(parameters, x)

    return Example(name="mlp", framework="jax", fn=mlp, weights=parameters, **_features(config))


def nnx_mlp_grad(size: Size) -> Example:
    """Loss and gradients by `nnx.value_and_grad`."""
    config = CONFIGS[size]
    graphdef, state = nnx.split(nnx_model(NnxMlp, config))

    def loss(model: NnxMlp, x: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(model(x), labels)

    def loss_and_gradients(x: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
        model = nnx.merge(graphdef, state, copy=True)
        return nnx.value_and_grad(loss)(model, x, labels)

    weights = nnx.filter_state(state, nnx.Param)
    return Example(
        name="mlp_grad", framework="nnx", fn=loss_and_gradients, weights=weights, **_labelled_features(config)
    )


def linen_mlp_grad(size: Size) -> Example:
    """Loss and gradients by `jax.value_and_grad` with respect to the Linen variables."""
    config = CONFIGS[size]
    model = LinenMlp(config)
    variables = linen_variables(model, (1, config.features))

    def loss(variables: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits: Any = model.apply(variables, x)
        return cross_entropy(logits, labels)

    fn = partial(jax.value_and_grad(loss), variables)
    return Example(name="mlp_grad", framework="linen", fn=fn, weights=variables["params"], **_labelled_features(config))


def equinox_mlp_grad(size: Size) -> Example:
    """Loss and gradients by `eqx.filter_value_and_grad`."""
    config = CONFIGS[size]
    model = equinox_model(equinox_mlp_module, config)

    @eqx.filter_value_and_grad
    def loss(model: eqx.nn.MLP, x: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(jax.vmap(model)(x), labels)

    fn = partial(loss, model)
    weights = eqx.filter(model, eqx.is_inexact_array)
    return Example(name="mlp_grad", framework="equinox", fn=fn, weights=weights, **_labelled_features(config))


def plain_mlp_grad(size: Size) -> Example:
    """Loss and gradients of a plain function; the parameters are inputs of the exported graph."""
    config = CONFIGS[size]
    shapes = jax_mlp_shapes(config)
    parameters = random_weights(shapes)
    batch = _labelled_features(config)

    def loss(parameters: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.take_along_axis(jax_mlp(parameters, x), labels[:, None], axis=1).mean()

    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        return jax.tree.map(np.asarray, parameters), *batch["sample"](rng, dims)

    return Example(
        name="mlp_grad",
        framework="jax",
        fn=jax.value_and_grad(loss),
        weights=parameters,
        inputs=(shapes, *batch["inputs"]),
        sample=sample,
        sizes=batch["sizes"],
    )
