"""Recurrent networks: an LSTM language model, and a bidirectional GRU over sequences of different lengths.

The language model has the sizes of the medium one of Zaremba et al. (2014; 19.8 million parameters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from .example import Example, Size, lengths_up_to, normal, spec, token_sample
from .weights import equinox_model, linen_variables, nnx_model


@dataclass(frozen=True)
class LanguageConfig:
    vocabulary: int
    hidden: int
    layers: int


@dataclass(frozen=True)
class SpeechConfig:
    features: int
    hidden: int
    layers: int
    classes: int


LANGUAGE_CONFIGS: dict[Size, LanguageConfig] = {
    "small": LanguageConfig(vocabulary=40, hidden=16, layers=2),
    "real": LanguageConfig(vocabulary=10_000, hidden=650, layers=2),
}
SPEECH_CONFIGS: dict[Size, SpeechConfig] = {
    "small": SpeechConfig(features=6, hidden=16, layers=2, classes=5),
    "real": SpeechConfig(features=80, hidden=512, layers=3, classes=32),
}
SIZES = ({"B": 1, "T": 5}, {"B": 3, "T": 8})


class NnxLstm(nnx.Module):
    def __init__(self, config: LanguageConfig, *, rngs: nnx.Rngs):
        self.words = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.layers = nnx.List(
            [nnx.RNN(nnx.LSTMCell(config.hidden, config.hidden, rngs=rngs), rngs=rngs) for _ in range(config.layers)]
        )
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(config.hidden, config.vocabulary, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.words(ids)
        for layer in self.layers:
            x = self.dropout(layer(x))
        return self.head(x)


class LinenLstm(nn.Module):
    config: LanguageConfig

    @nn.compact
    def __call__(self, ids: jax.Array) -> tuple[jax.Array, Any]:
        """Logits, and the last carry of each layer."""
        config = self.config
        x = nn.Embed(config.vocabulary, config.hidden)(ids)
        carries = []
        for _ in range(config.layers):
            carry, x = nn.RNN(nn.OptimizedLSTMCell(config.hidden), return_carry=True)(x)
            carries.append(carry)
        return nn.Dense(config.vocabulary)(x), carries


class EquinoxLstm(eqx.Module):
    words: eqx.nn.Embedding
    cells: list[eqx.nn.LSTMCell]
    head: eqx.nn.Linear

    def __init__(self, config: LanguageConfig, *, key: jax.Array):
        word_key, head_key, *cell_keys = jax.random.split(key, 2 + config.layers)
        self.words = eqx.nn.Embedding(config.vocabulary, config.hidden, key=word_key)
        self.cells = [eqx.nn.LSTMCell(config.hidden, config.hidden, key=cell_key) for cell_key in cell_keys]
        self.head = eqx.nn.Linear(config.hidden, config.vocabulary, key=head_key)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = jax.vmap(self.words)(ids)
        for cell in self.cells:

            def step(carry: Any, token: jax.Array, cell: eqx.nn.LSTMCell = cell) -> tuple[Any, jax.Array]:
                carry = cell(token, carry)
                return carry, carry[0]

            zeros = jnp.zeros(cell.hidden_size)
            _, x = lax.scan(step, (zeros, zeros), x)
        return jax.vmap(self.head)(x)


class NnxBidirectionalGru(nnx.Module):
    def __init__(self, config: SpeechConfig, *, rngs: nnx.Rngs):
        widths = [config.features] + [2 * config.hidden] * (config.layers - 1)
        self.layers = nnx.List(
            [
                nnx.Bidirectional(
                    nnx.RNN(nnx.GRUCell(width, config.hidden, rngs=rngs), rngs=rngs),
                    nnx.RNN(nnx.GRUCell(width, config.hidden, rngs=rngs), rngs=rngs),
                    rngs=rngs,
                )
                for width in widths
            ]
        )
        self.head = nnx.Linear(2 * config.hidden, config.classes, rngs=rngs)

    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        y: Any = x
        for layer in self.layers:
            y = layer(y, seq_lengths=lengths)
        return self.head(y)


class LinenBidirectionalGru(nn.Module):
    config: SpeechConfig

    @nn.compact
    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        """One row of logits per sequence, from the mean over the steps that belong to it."""
        y: Any = x
        for _ in range(self.config.layers):
            forward, backward = nn.RNN(nn.GRUCell(self.config.hidden)), nn.RNN(nn.GRUCell(self.config.hidden))
            y = nn.Bidirectional(forward, backward)(y, seq_lengths=lengths)
        belongs = (jnp.arange(y.shape[1]) < lengths[:, None])[..., None]
        return nn.Dense(self.config.classes)(jnp.mean(y, axis=1, where=belongs))


def _text(config: LanguageConfig) -> dict[str, Any]:
    inputs = (spec(("B", "T"), "int32"),)
    return {"inputs": inputs, "sample": token_sample(config.vocabulary), "sizes": SIZES}


def _speech(config: SpeechConfig) -> dict[str, Any]:
    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        frames = normal(rng, (dims["B"], dims["T"], config.features))
        return frames, lengths_up_to(rng, dims["B"], dims["T"])

    return {"inputs": (("B", "T", config.features), spec(("B",), "int32")), "sample": sample, "sizes": SIZES}


def nnx_lstm(size: Size) -> Example:
    config = LANGUAGE_CONFIGS[size]
    model = nnx_model(NnxLstm, config)
    weights = nnx.state(model, nnx.Param)
    return Example(name="lstm", framework="nnx", fn=model, weights=weights, **_text(config))


def linen_lstm(size: Size) -> Example:
    config = LANGUAGE_CONFIGS[size]
    model = LinenLstm(config)
    variables = linen_variables(model, spec((1, 4), "int32"))
    fn = partial(model.apply, variables)
    return Example(name="lstm", framework="linen", fn=fn, weights=variables["params"], **_text(config))


def equinox_lstm(size: Size) -> Example:
    config = LANGUAGE_CONFIGS[size]
    model = equinox_model(EquinoxLstm, config)
    weights = eqx.filter(model, eqx.is_inexact_array)
    return Example(name="lstm", framework="equinox", fn=jax.vmap(model), weights=weights, **_text(config))


def nnx_bidirectional_gru(size: Size) -> Example:
    config = SPEECH_CONFIGS[size]
    model = nnx_model(NnxBidirectionalGru, config)
    weights = nnx.state(model, nnx.Param)
    return Example(name="bidirectional_gru", framework="nnx", fn=model, weights=weights, **_speech(config))


def linen_bidirectional_gru(size: Size) -> Example:
    config = SPEECH_CONFIGS[size]
    model = LinenBidirectionalGru(config)
    variables = linen_variables(model, (1, 4, config.features), spec((1,), "int32"))
    fn, weights = partial(model.apply, variables), variables["params"]
    return Example(name="bidirectional_gru", framework="linen", fn=fn, weights=weights, **_speech(config))
