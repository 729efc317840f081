"""Recurrent networks: an LSTM language model, and a bidirectional GRU over sequences of different lengths.

The language model has the sizes of the medium one of Zaremba et al. (2014; 19.8 million parameters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from .building import equinox_example, linen_example, nnx_example
from .example import TEXT_SIZES, Size, lengths_up_to, normal, spec, text


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


def _speech(config: SpeechConfig) -> dict[str, Any]:
    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        frames = normal(rng, (dims["B"], dims["T"], config.features))
        return frames, lengths_up_to(rng, dims["B"], dims["T"])

    return {"inputs": (("B", "T", config.features), spec(("B",), "int32")), "sample": sample, "sizes": TEXT_SIZES}


nnx_lstm = nnx_example("lstm", NnxLstm, LANGUAGE_CONFIGS, text)
linen_lstm = linen_example("lstm", LinenLstm, LANGUAGE_CONFIGS, text)
equinox_lstm = equinox_example("lstm", EquinoxLstm, LANGUAGE_CONFIGS, text)
nnx_bidirectional_gru = nnx_example("bidirectional_gru", NnxBidirectionalGru, SPEECH_CONFIGS, _speech)
linen_bidirectional_gru = linen_example("bidirectional_gru", LinenBidirectionalGru, SPEECH_CONFIGS, _speech)
