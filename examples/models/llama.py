"""A Llama-style decoder in the sizes of SmolLM-135M (Allal et al., 2024; 135 million parameters).

Rotary position embedding, grouped-query attention, RMSNorm, a gated MLP, tied embeddings; with the layers unrolled, and
as one scan over stacked layers; one decode step with its key-value cache, and greedy decoding with that step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from .building import linen_example, nnx_example
from .example import Example, Size, normal, spec, text, token_ids
from .weights import random_weights


@dataclass(frozen=True)
class Config:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    groups: int
    """The number of key and value heads."""
    mlp: int
    new_tokens: int
    end_of_text: int = 0
    theta: float = 10_000.0
    epsilon: float = 1e-5

    @property
    def head(self) -> int:
        return self.hidden // self.heads


CONFIGS: dict[Size, Config] = {
    "small": Config(vocabulary=40, hidden=32, layers=2, heads=4, groups=2, mlp=48, new_tokens=4),
    "real": Config(vocabulary=49152, hidden=576, layers=30, heads=9, groups=3, mlp=1536, new_tokens=32),
}


def rotary_embedding(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotates the pairs (i, i + head/2) of `x`, (batch, length, heads, head), by angles that grow with the position.

    `positions` is of shape (length,) or (batch, length).
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (positions[..., None] * frequencies)[..., None, :]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class NnxAttention(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.config = config
        key_value = config.groups * config.head
        self.query = nnx.Linear(config.hidden, config.hidden, use_bias=False, rngs=rngs)
        self.key = nnx.Linear(config.hidden, key_value, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(config.hidden, key_value, use_bias=False, rngs=rngs)
        self.output = nnx.Linear(config.hidden, config.hidden, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        batch, length, _ = x.shape
        positions = jnp.arange(length)
        query = self.query(x).reshape(batch, length, config.heads, config.head)
        key = self.key(x).reshape(batch, length, config.groups, config.head)
        value = self.value(x).reshape(batch, length, config.groups, config.head)
        query = rotary_embedding(query, positions, config.theta)
        key = rotary_embedding(key, positions, config.theta)
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.reshape(batch, length, config.hidden))


class NnxLayer(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.attention = NnxAttention(config, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.gate = nnx.Linear(config.hidden, config.mlp, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(config.hidden, config.mlp, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(config.mlp, config.hidden, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x))
        y = self.mlp_norm(x)
        return x + self.down(nnx.silu(self.gate(y)) * self.up(y))


class NnxLlama(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.words = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.layers = nnx.List([NnxLayer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.words.attend(self.norm(x))


class NnxScannedLlama(nnx.Module):
    """The same model with the weights of all layers stacked in one layer object."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=config.layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked_layers(rngs: nnx.Rngs) -> NnxLayer:
            return NnxLayer(config, rngs=rngs)

        self.words = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.layers = stacked_layers(rngs)
        self.norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def apply_layers(x: jax.Array, layer: NnxLayer) -> jax.Array:
            return layer(x)

        return self.words.attend(self.norm(apply_layers(self.words(ids), self.layers)))


class LinenLayer(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        config = self.config
        positions = jnp.arange(x.shape[1])
        y = nn.RMSNorm(config.epsilon, name="attention_norm")(x)
        query = nn.DenseGeneral((config.heads, config.head), use_bias=False, name="query")(y)
        key = nn.DenseGeneral((config.groups, config.head), use_bias=False, name="key")(y)
        value = nn.DenseGeneral((config.groups, config.head), use_bias=False, name="value")(y)
        query = rotary_embedding(query, positions, config.theta)
        key = rotary_embedding(key, positions, config.theta)
        repeats = config.heads // config.groups
        key, value = jnp.repeat(key, repeats, axis=2), jnp.repeat(value, repeats, axis=2)
        y = nn.dot_product_attention(query, key, value, mask=mask)
        x = x + nn.DenseGeneral(config.hidden, axis=(-2, -1), use_bias=False, name="output")(y)
        y = nn.RMSNorm(config.epsilon, name="mlp_norm")(x)
        gate = nn.silu(nn.Dense(config.mlp, use_bias=False, name="gate")(y))
        up = nn.Dense(config.mlp, use_bias=False, name="up")(y)
        return x + nn.Dense(config.hidden, use_bias=False, name="down")(gate * up), None


class LinenScannedLlama(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        config = self.config
        shared: Any = nn.broadcast  # Flax documents it and annotates `int`
        layers = nn.scan(
            LinenLayer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=shared,
            length=config.layers,
        )
        words = nn.Embed(config.vocabulary, config.hidden, name="words")
        x, _ = layers(config, name="layers")(words(ids), nn.make_causal_mask(ids))
        return words.attend(nn.RMSNorm(config.epsilon, name="norm")(x))


Parameters = dict[str, Any]


def jax_llama_shapes(config: Config) -> Parameters:
    """The weights of the model; those of the layers are stacked along the first axis."""
    hidden, layers, keys = config.hidden, config.layers, (config.groups, config.head)
    return {
        "words": spec((config.vocabulary, hidden)),
        "layers": {
            "attention_norm": {"scale": spec((layers, hidden))},
            "query": spec((layers, hidden, config.heads, config.head)),
            "key": spec((layers, hidden, *keys)),
            "value": spec((layers, hidden, *keys)),
            "output": spec((layers, config.heads, config.head, hidden)),
            "mlp_norm": {"scale": spec((layers, hidden))},
            "gate": spec((layers, hidden, config.mlp)),
            "up": spec((layers, hidden, config.mlp)),
            "down": spec((layers, config.mlp, hidden)),
        },
        "norm": {"scale": spec((hidden,))},
    }


def rms_norm(x: jax.Array, norm: Parameters, epsilon: float) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon) * norm["scale"]


def grouped_query_attention(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention in which several query heads share a key and value head.

    `query` is (batch, queries, heads, head), `key` and `value` are (batch, keys, groups, head), and `mask` says which
    queries see which keys, of a shape that broadcasts to (batch, queries, keys).
    """
    batch, length, heads, head = query.shape
    groups = key.shape[2]
    query = query.reshape(batch, length, groups, heads // groups, head)
    scores = jnp.einsum("bqgrh,bkgh->bgrqk", query, key) / np.sqrt(head).astype(np.float32)
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    mixed = jnp.einsum("bgrqk,bkgh->bqgrh", jax.nn.softmax(scores, axis=-1), value)
    return mixed.reshape(batch, length, heads, head)


def query_key_value(config: Config, layer: Parameters, x: jax.Array, positions: jax.Array) -> tuple[jax.Array, ...]:
    x = rms_norm(x, layer["attention_norm"], config.epsilon)
    query = jnp.einsum("btd,dnh->btnh", x, layer["query"])
    key = jnp.einsum("btd,dnh->btnh", x, layer["key"])
    value = jnp.einsum("btd,dnh->btnh", x, layer["value"])
    query = rotary_embedding(query, positions, config.theta)
    return query, rotary_embedding(key, positions, config.theta), value


def finish_layer(config: Config, layer: Parameters, x: jax.Array, mixed: jax.Array) -> jax.Array:
    """The layer after the attention: its projection, and the gated MLP."""
    x = x + jnp.einsum("btnh,nhd->btd", mixed, layer["output"])
    y = rms_norm(x, layer["mlp_norm"], config.epsilon)
    return x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]


def jax_layer(config: Config, layer: Parameters, x: jax.Array) -> jax.Array:
    positions = jnp.arange(x.shape[1])
    query, key, value = query_key_value(config, layer, x, positions)
    mask = positions[:, None] >= positions
    return finish_layer(config, layer, x, grouped_query_attention(query, key, value, mask[None]))


def jax_logits(config: Config, parameters: Parameters, x: jax.Array) -> jax.Array:
    return rms_norm(x, parameters["norm"], config.epsilon) @ parameters["words"].T


def jax_llama(config: Config, parameters: Parameters, ids: jax.Array) -> jax.Array:
    """The layers unrolled, each with its slice of the stacked weights."""
    x = parameters["words"][ids]
    for i in range(config.layers):
        x = jax_layer(config, jax.tree.map(lambda stacked, i=i: stacked[i], parameters["layers"]), x)
    return jax_logits(config, parameters, x)


def jax_scanned_llama(config: Config, parameters: Parameters, ids: jax.Array) -> jax.Array:
    """The layers as one scan over the stacked weights."""

    def step(x: jax.Array, layer: Parameters) -> tuple[jax.Array, None]:
        return jax_layer(config, layer, x), None

    x, _ = lax.scan(step, parameters["words"][ids], parameters["layers"])
    return jax_logits(config, parameters, x)


def jax_decode_step(
    config: Config, parameters: Parameters, token: jax.Array, position: jax.Array, cache: Parameters
) -> tuple[jax.Array, Parameters]:
    """Logits of the next token, and the cache with this token's keys and values.

    `token` and `position` are of shape (batch,): the sequences may have come to different positions. The cache is
    `{"key", "value"}`, each (layers, batch, context, groups, head).
    """
    context = cache["key"].shape[2]
    mask = (jnp.arange(context) <= position[:, None])[:, None]
    write = jax.vmap(lambda rows, row, at: lax.dynamic_update_slice(rows, row, (at, 0, 0)))

    def step(x: jax.Array, scanned: tuple[Parameters, Parameters]) -> tuple[jax.Array, Parameters]:
        layer, layer_cache = scanned
        query, key, value = query_key_value(config, layer, x, position[:, None])
        key = write(layer_cache["key"], key, position)
        value = write(layer_cache["value"], value, position)
        x = finish_layer(config, layer, x, grouped_query_attention(query, key, value, mask))
        return x, {"key": key, "value": value}

    x, cache = lax.scan(step, parameters["words"][token][:, None], (parameters["layers"], cache))
    return jax_logits(config, parameters, x)[:, 0], cache


def jax_greedy(config: Config, parameters: Parameters, prompt: jax.Array) -> jax.Array:
    """The prompt continued by the most likely tokens, of shape (batch, length + new tokens).

    One loop reads the prompt into the cache and then writes; it stops early when all sequences have ended.
    """
    batch, length = prompt.shape
    total = length + config.new_tokens
    empty = jnp.zeros((config.layers, batch, total, config.groups, config.head))
    ids = jnp.pad(prompt, ((0, 0), (0, config.new_tokens)), constant_values=config.end_of_text)

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        position, _, _, ended = carry
        return (position < total - 1) & ~jnp.all(ended)

    def extend(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        position, ids, cache, ended = carry
        positions = jnp.broadcast_to(position, (batch,))
        logits, cache = jax_decode_step(config, parameters, ids[:, position], positions, cache)
        best = jnp.where(ended, config.end_of_text, jnp.argmax(logits, axis=-1))
        in_prompt = position + 1 < length
        token = jnp.where(in_prompt, ids[:, position + 1], best)
        ended = ended | (~in_prompt & (token == config.end_of_text))
        return position + 1, ids.at[:, position + 1].set(token), cache, ended

    start = (jnp.int32(0), ids, {"key": empty, "value": empty}, jnp.zeros(batch, bool))
    return lax.while_loop(unfinished, extend, start)[1]


nnx_llama = nnx_example("llama", NnxLlama, CONFIGS, text)
nnx_scanned_llama = nnx_example("llama_scan", NnxScannedLlama, CONFIGS, text, stacked="layers")
linen_scanned_llama = linen_example("llama_scan", LinenScannedLlama, CONFIGS, text, stacked="layers")


def _of_text(name: str, apply: Callable[[Config, Parameters, jax.Array], jax.Array], size: Size) -> Example:
    """An example of a function from ids, one that closes over its parameters."""
    config = CONFIGS[size]
    parameters = random_weights(jax_llama_shapes(config), stacked=config.layers)

    def fn(ids: jax.Array) -> jax.Array:
        return apply(config, parameters, ids)

    return Example(name=name, framework="jax", fn=fn, weights=parameters, **text(config))


def plain_llama(size: Size) -> Example:
    return _of_text("llama", jax_llama, size)


def plain_scanned_llama(size: Size) -> Example:
    return _of_text("llama_scan", jax_scanned_llama, size)


def plain_llama_greedy(size: Size) -> Example:
    return _of_text("llama_greedy", jax_greedy, size)


def plain_llama_decode(size: Size) -> Example:
    config = CONFIGS[size]
    parameters = random_weights(jax_llama_shapes(config), stacked=config.layers)

    def decode(token: jax.Array, position: jax.Array, cache: Parameters) -> tuple[jax.Array, Parameters]:
        return jax_decode_step(config, parameters, token, position, cache)

    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        shape = (config.layers, dims["B"], dims["S"], config.groups, config.head)
        cache = {"key": normal(rng, shape), "value": normal(rng, shape)}
        position = rng.integers(0, dims["S"], dims["B"], np.int32)
        return token_ids(rng, (dims["B"],), config.vocabulary), position, cache

    rows = spec((config.layers, "B", "S", config.groups, config.head))
    return Example(
        name="llama_decode",
        framework="jax",
        fn=decode,
        weights=parameters,
        inputs=(spec(("B",), "int32"), spec(("B",), "int32"), {"key": rows, "value": rows}),
        sample=sample,
        sizes=({"B": 1, "S": 6}, {"B": 3, "S": 12}),
    )
