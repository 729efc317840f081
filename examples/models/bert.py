"""BERT-base (Devlin et al., 2018; 110 million parameters) with a padding mask.

Three ways to say which tokens are padding, as users of the three libraries do: a mask over the keys (NNX), a mask over
pairs, in which the rows of padding see nothing at all (Linen), and a mask per example under `vmap` (Equinox).
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

from .attention import attention_with_biases
from .building import equinox_example, linen_example, nnx_example
from .example import TEXT_SIZES, Size, padding_mask, spec, token_ids


@dataclass(frozen=True)
class Config:
    vocabulary: int
    positions: int
    hidden: int
    layers: int
    heads: int
    mlp: int
    segments: int = 2
    dropout: float = 0.1
    epsilon: float = 1e-12


CONFIGS: dict[Size, Config] = {
    "small": Config(vocabulary=40, positions=16, hidden=32, layers=2, heads=4, mlp=64),
    "real": Config(vocabulary=30522, positions=512, hidden=768, layers=12, heads=12, mlp=3072),
}

gelu = partial(jax.nn.gelu, approximate=False)


class NnxLayer(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(
            config.heads, config.hidden, dropout_rate=config.dropout, decode=False, rngs=rngs
        )
        self.attention_norm = nnx.LayerNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.intermediate = nnx.Linear(config.hidden, config.mlp, rngs=rngs)
        self.output = nnx.Linear(config.mlp, config.hidden, rngs=rngs)
        self.output_norm = nnx.LayerNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask=mask)))
        y = self.output(gelu(self.intermediate(x)))
        return self.output_norm(x + self.dropout(y))


class NnxBert(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.words = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.positions = nnx.Embed(config.positions, config.hidden, rngs=rngs)
        self.segments = nnx.Embed(config.segments, config.hidden, rngs=rngs)
        self.norm = nnx.LayerNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.layers = nnx.List([NnxLayer(config, rngs=rngs) for _ in range(config.layers)])
        self.pooler = nnx.Linear(config.hidden, config.hidden, rngs=rngs)

    def __call__(
        self, input_ids: jax.Array, attention_mask: jax.Array, token_type_ids: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        positions = jnp.arange(input_ids.shape[1])
        x = self.words(input_ids) + self.positions(positions) + self.segments(token_type_ids)
        x = self.dropout(self.norm(x))
        mask = attention_mask[:, None, None, :].astype(bool)
        for layer in self.layers:
            x = layer(x, mask)
        return x, jnp.tanh(self.pooler(x[:, 0]))


class LinenLayer(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, deterministic: bool) -> jax.Array:
        config = self.config
        attention = nn.MultiHeadDotProductAttention(config.heads, dropout_rate=config.dropout)
        y = attention(x, mask=mask, deterministic=deterministic)
        x = nn.LayerNorm(config.epsilon)(x + nn.Dropout(config.dropout)(y, deterministic=deterministic))
        y = nn.Dense(config.hidden)(gelu(nn.Dense(config.mlp)(x)))
        return nn.LayerNorm(config.epsilon)(x + nn.Dropout(config.dropout)(y, deterministic=deterministic))


class LinenBert(nn.Module):
    config: Config

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array,
        token_type_ids: jax.Array,
        deterministic: bool = True,
    ) -> dict[str, jax.Array]:
        config = self.config
        x = nn.Embed(config.vocabulary, config.hidden, name="words")(input_ids)
        x = x + nn.Embed(config.positions, config.hidden, name="positions")(jnp.arange(input_ids.shape[1])[None])
        x = x + nn.Embed(config.segments, config.hidden, name="segments")(token_type_ids)
        x = nn.LayerNorm(config.epsilon)(x)
        mask = nn.make_attention_mask(attention_mask > 0, attention_mask > 0)
        for i in range(config.layers):
            x = LinenLayer(config, name=f"layer_{i}")(x, mask, deterministic)
        pooled = nn.tanh(nn.Dense(config.hidden, name="pooler")(x[:, 0]))
        return {"last_hidden_state": x, "pooler_output": pooled}


class EquinoxLayer(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    attention_norm: eqx.nn.LayerNorm
    intermediate: eqx.nn.Linear
    output: eqx.nn.Linear
    output_norm: eqx.nn.LayerNorm

    def __init__(self, config: Config, *, key: jax.Array):
        attention_key, intermediate_key, output_key = jax.random.split(key, 3)
        self.attention = attention_with_biases(config, key=attention_key)
        self.attention_norm = eqx.nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.intermediate = eqx.nn.Linear(config.hidden, config.mlp, key=intermediate_key)
        self.output = eqx.nn.Linear(config.mlp, config.hidden, key=output_key)
        self.output_norm = eqx.nn.LayerNorm(config.hidden, eps=config.epsilon)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = jax.vmap(self.attention_norm)(x + self.attention(x, x, x, mask=mask))
        y = jax.vmap(self.output)(gelu(jax.vmap(self.intermediate)(x)))
        return jax.vmap(self.output_norm)(x + y)


class EquinoxBert(eqx.Module):
    words: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    segments: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    layers: list[EquinoxLayer]
    pooler: eqx.nn.Linear

    def __init__(self, config: Config, *, key: jax.Array):
        word_key, position_key, segment_key, pooler_key, *layer_keys = jax.random.split(key, 4 + config.layers)
        self.words = eqx.nn.Embedding(config.vocabulary, config.hidden, key=word_key)
        self.positions = eqx.nn.Embedding(config.positions, config.hidden, key=position_key)
        self.segments = eqx.nn.Embedding(config.segments, config.hidden, key=segment_key)
        self.norm = eqx.nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.layers = [EquinoxLayer(config, key=layer_key) for layer_key in layer_keys]
        self.pooler = eqx.nn.Linear(config.hidden, config.hidden, key=pooler_key)

    def __call__(
        self, input_ids: jax.Array, attention_mask: jax.Array, token_type_ids: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        (length,) = input_ids.shape
        x = jax.vmap(self.words)(input_ids)
        x = x + jax.vmap(self.positions)(jnp.arange(length)) + jax.vmap(self.segments)(token_type_ids)
        x = jax.vmap(self.norm)(x)
        mask = jnp.broadcast_to(attention_mask.astype(bool), (length, length))
        for layer in self.layers:
            x = layer(x, mask)
        return x, jnp.tanh(self.pooler(x[0]))


def _text(config: Config) -> dict[str, Any]:
    """Inputs, samples and sizes: ids, a mask of 0 and 1 with padding at the end, and the segment of each token."""

    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        shape = (dims["B"], dims["T"])
        mask = padding_mask(rng, *shape).astype(np.int32)
        return token_ids(rng, shape, config.vocabulary), mask, token_ids(rng, shape, config.segments)

    tokens = spec(("B", "T"), "int32")
    return {"inputs": (tokens, tokens, tokens), "sample": sample, "sizes": TEXT_SIZES}


nnx_bert = nnx_example("bert_base", NnxBert, CONFIGS, _text)
linen_bert = linen_example("bert_base", LinenBert, CONFIGS, _text)
equinox_bert = equinox_example("bert_base", EquinoxBert, CONFIGS, _text)
