"""GPT-2 small (Radford et al., 2019; 124 million parameters): logits of a text, one decode step, greedy decoding."""

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

from .attention import attention_with_biases
from .building import equinox_example, linen_example, nnx_example
from .example import Example, Size, normal, sized, spec, text, token_ids
from .weights import linen_variables, nnx_model


@dataclass(frozen=True)
class Config:
    vocabulary: int
    context: int
    hidden: int
    layers: int
    heads: int
    end_of_text: int
    new_tokens: int
    dropout: float = 0.1
    epsilon: float = 1e-5


CONFIGS: dict[Size, Config] = {
    "small": Config(vocabulary=40, context=16, hidden=32, layers=2, heads=4, end_of_text=38, new_tokens=5),
    "real": Config(vocabulary=50257, context=1024, hidden=768, layers=12, heads=12, end_of_text=50256, new_tokens=32),
}


class NnxBlock(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.LayerNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            config.heads, config.hidden, dropout_rate=config.dropout, decode=False, rngs=rngs
        )
        self.mlp_norm = nnx.LayerNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.widen = nnx.Linear(config.hidden, 4 * config.hidden, rngs=rngs)
        self.narrow = nnx.Linear(4 * config.hidden, config.hidden, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask))
        return x + self.dropout(self.narrow(nnx.gelu(self.widen(self.mlp_norm(x)))))


class NnxGpt2(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.words = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.positions = nnx.Embed(config.context, config.hidden, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Logits of shape (batch, length, vocabulary) of int ids of shape (batch, length)."""
        return self.apply_at(ids, jnp.arange(ids.shape[1]), nnx.make_causal_mask(ids))

    def apply_at(self, ids: jax.Array, positions: jax.Array, mask: jax.Array | None) -> jax.Array:
        x = self.dropout(self.words(ids) + self.positions(positions))
        for block in self.blocks:
            x = block(x, mask)
        return self.words.attend(self.norm(x))


class LinenBlock(nn.Module):
    config: Config
    decode: bool

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None, deterministic: bool) -> jax.Array:
        config = self.config
        y = nn.LayerNorm(config.epsilon, name="attention_norm")(x)
        attention = nn.MultiHeadDotProductAttention(
            config.heads, dropout_rate=config.dropout, decode=self.decode, name="attention"
        )
        y = attention(y, mask=mask, deterministic=deterministic)
        x = x + nn.Dropout(config.dropout)(y, deterministic=deterministic)
        y = nn.LayerNorm(config.epsilon, name="mlp_norm")(x)
        y = nn.Dense(config.hidden, name="narrow")(nn.gelu(nn.Dense(4 * config.hidden, name="widen")(y)))
        return x + nn.Dropout(config.dropout)(y, deterministic=deterministic)


class LinenGpt2(nn.Module):
    config: Config
    decode: bool = False

    @nn.compact
    def __call__(self, ids: jax.Array, positions: jax.Array | None = None, deterministic: bool = True) -> jax.Array:
        config = self.config
        words = nn.Embed(config.vocabulary, config.hidden, name="words")
        if positions is None:
            positions = jnp.arange(ids.shape[1])
        x = words(ids) + nn.Embed(config.context, config.hidden, name="positions")(positions)
        x = nn.Dropout(config.dropout)(x, deterministic=deterministic)
        mask = None if self.decode else nn.make_causal_mask(ids)
        for i in range(config.layers):
            x = LinenBlock(config, self.decode, name=f"block_{i}")(x, mask, deterministic)
        return words.attend(nn.LayerNorm(config.epsilon, name="norm")(x))


class EquinoxBlock(eqx.Module):
    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp_norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, config: Config, *, key: jax.Array):
        attention_key, mlp_key = jax.random.split(key)
        self.attention_norm = eqx.nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.attention = attention_with_biases(config, key=attention_key)
        self.mlp_norm = eqx.nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.mlp = eqx.nn.MLP(config.hidden, config.hidden, 4 * config.hidden, 1, jax.nn.gelu, key=mlp_key)
        self.dropout = eqx.nn.Dropout(config.dropout)

    def __call__(self, x: jax.Array, mask: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        attention_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        y = jax.vmap(self.attention_norm)(x)
        x = x + self.attention(y, y, y, mask=mask, key=attention_key)
        return x + self.dropout(jax.vmap(self.mlp)(jax.vmap(self.mlp_norm)(x)), key=mlp_key)


class EquinoxGpt2(eqx.Module):
    words: eqx.nn.Embedding
    positions: eqx.nn.Embedding
    blocks: list[EquinoxBlock]
    norm: eqx.nn.LayerNorm

    def __init__(self, config: Config, *, key: jax.Array):
        word_key, position_key, *block_keys = jax.random.split(key, 2 + config.layers)
        self.words = eqx.nn.Embedding(config.vocabulary, config.hidden, key=word_key)
        self.positions = eqx.nn.Embedding(config.context, config.hidden, key=position_key)
        self.blocks = [EquinoxBlock(config, key=block_key) for block_key in block_keys]
        self.norm = eqx.nn.LayerNorm(config.hidden, eps=config.epsilon)

    def __call__(self, ids: jax.Array) -> jax.Array:
        (length,) = ids.shape
        x = jax.vmap(self.words)(ids) + jax.vmap(self.positions)(jnp.arange(length))
        mask = jnp.tril(jnp.ones((length, length), bool))
        for block in self.blocks:
            x = block(x, mask)
        return jax.vmap(self.norm)(x) @ self.words.weight.T


nnx_gpt2 = nnx_example("gpt2", NnxGpt2, CONFIGS, text)
linen_gpt2 = linen_example("gpt2", LinenGpt2, CONFIGS, text)
equinox_gpt2 = equinox_example("gpt2", EquinoxGpt2, CONFIGS, text)


def _decoding(config: Config, cache: Any) -> dict[str, Any]:
    """Inputs, samples and sizes of a decode step with a cache that is laid out as this one of a batch of one."""
    cache_specs = jax.tree.map(lambda leaf: spec(("B", *leaf.shape[1:]) if leaf.ndim else (), leaf.dtype), cache)
    filled = config.context // 2

    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        # Beyond the filled positions the cache holds numbers too: they must not matter.
        sampled = jax.tree.map(
            lambda leaf: normal(rng, sized(leaf.shape, dims)) if leaf.shape else np.int32(filled), cache_specs
        )
        return sampled, token_ids(rng, (dims["B"], 1), config.vocabulary), np.full(1, filled, np.int32)

    inputs = (cache_specs, spec(("B", 1), "int32"), spec((1,), "int32"))
    return {"inputs": inputs, "sample": sample, "sizes": ({"B": 1}, {"B": 3})}


def nnx_gpt2_decode(size: Size) -> Example:
    """One step: (cache, token, position) -> (logits, cache); the cache is the `nnx.Cache` state of the module."""
    config = CONFIGS[size]
    model = nnx_model(NnxGpt2, config)
    model.set_attributes(decode=True)
    for block in model.blocks:
        block.attention.init_cache((1, config.context, config.hidden))
    graphdef, cache, rest = nnx.split(model, nnx.Cache, ...)

    def step(cache: Any, token: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
        model = nnx.merge(graphdef, cache, rest, copy=True)
        logits = model.apply_at(token, position, mask=None)
        return logits[:, -1], nnx.state(model, nnx.Cache)

    weights = nnx.state(model, nnx.Param)
    return Example(name="gpt2_decode", framework="nnx", fn=step, weights=weights, **_decoding(config, cache))


def linen_gpt2_decode(size: Size) -> Example:
    """One step: (cache, token, position) -> (logits, cache); the cache is the `cache` collection of the module."""
    config = CONFIGS[size]
    model = LinenGpt2(config, decode=True)
    whole = spec((1, config.context), "int32")
    weights = linen_variables(LinenGpt2(config), whole)["params"]
    cache = jax.eval_shape(model.init, jax.random.key(0), whole)["cache"]

    def step(cache: Any, token: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
        collections = {"params": weights, "cache": cache}
        logits, updated = model.apply(collections, token, position, mutable=["cache"])
        return logits[:, -1], updated["cache"]

    return Example(name="gpt2_decode", framework="linen", fn=step, weights=weights, **_decoding(config, cache))


def nnx_gpt2_greedy(size: Size) -> Example:
    """A prompt is continued token by token in a `while_loop` until all sequences ended or have all new tokens."""
    config = CONFIGS[size]
    model = nnx_model(NnxGpt2, config)

    def generate(prompt: jax.Array) -> jax.Array:
        batch, length = prompt.shape
        ids = jnp.pad(prompt, ((0, 0), (0, config.new_tokens)), constant_values=config.end_of_text)

        def unfinished(carry: tuple[jax.Array, ...]) -> jax.Array:
            position, _, ended = carry
            return (position < length + config.new_tokens) & ~jnp.all(ended)

        def extend(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            position, ids, ended = carry
            logits = lax.dynamic_index_in_dim(model(ids), position - 1, axis=1, keepdims=False)
            token = jnp.where(ended, config.end_of_text, jnp.argmax(logits, axis=-1).astype(ids.dtype))
            ids = lax.dynamic_update_slice_in_dim(ids, token[:, None], position, axis=1)
            return position + 1, ids, ended | (token == config.end_of_text)

        start = (jnp.asarray(length, jnp.int32), ids, jnp.zeros(batch, bool))
        return lax.while_loop(unfinished, extend, start)[1]

    weights = nnx.state(model, nnx.Param)
    return Example(name="gpt2_greedy", framework="nnx", fn=generate, weights=weights, **text(config))
