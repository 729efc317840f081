"""One layer of cross-attention in the sizes of T5-base: queries attend to a memory, part of which is padding."""

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

from .example import Example, Size, normal, padding_mask, sized, spec
from .weights import equinox_model, linen_variables, nnx_model


@dataclass(frozen=True)
class Config:
    hidden: int
    heads: int


CONFIGS: dict[Size, Config] = {"small": Config(hidden=32, heads=4), "real": Config(hidden=768, heads=12)}
SIZES = ({"B": 1, "T": 5, "S": 4}, {"B": 3, "T": 2, "S": 7})


class NnxCrossAttention(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(config.hidden, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(config.heads, config.hidden, normalize_qk=True, decode=False, rngs=rngs)

    def __call__(self, x: jax.Array, memory: jax.Array, memory_mask: jax.Array) -> jax.Array:
        return x + self.attention(self.norm(x), memory, mask=memory_mask[:, None, None, :])


class LinenCrossAttention(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, memory_mask: jax.Array) -> jax.Array:
        query_mask = jnp.ones(x.shape[:2], bool)
        mask = nn.make_attention_mask(query_mask, memory_mask)
        return x + nn.MultiHeadDotProductAttention(self.config.heads)(nn.LayerNorm()(x), memory, mask=mask)


class EquinoxCrossAttention(eqx.Module):
    norm: eqx.nn.RMSNorm
    rotary: eqx.nn.RotaryPositionalEmbedding
    attention: eqx.nn.MultiheadAttention

    def __init__(self, config: Config, *, key: jax.Array):
        self.norm = eqx.nn.RMSNorm(config.hidden)
        self.rotary = eqx.nn.RotaryPositionalEmbedding(config.hidden // config.heads)
        self.attention = eqx.nn.MultiheadAttention(config.heads, config.hidden, key=key)

    def __call__(self, x: jax.Array, memory: jax.Array, memory_mask: jax.Array) -> jax.Array:
        def rotate(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            rotary = jax.vmap(self.rotary, in_axes=1, out_axes=1)
            return rotary(query), rotary(key), value

        mask = jnp.broadcast_to(memory_mask, (x.shape[0], memory.shape[0]))
        return x + self.attention(jax.vmap(self.norm)(x), memory, memory, mask, process_heads=rotate)


def _query_and_memory(
    config: Config, queries: int | str = "T", keys: int | str = "S", sizes: tuple[dict[str, int], ...] = SIZES
) -> dict[str, Any]:
    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        batch, query_length, key_length = sized(("B", queries, keys), dims)
        memory = normal(rng, (batch, key_length, config.hidden))
        return normal(rng, (batch, query_length, config.hidden)), memory, padding_mask(rng, batch, key_length)

    return {
        "inputs": (("B", queries, config.hidden), ("B", keys, config.hidden), spec(("B", keys), "bool")),
        "sample": sample,
        "sizes": sizes,
    }


def nnx_cross_attention(size: Size) -> Example:
    config = CONFIGS[size]
    model = nnx_model(NnxCrossAttention, config)
    weights, inputs = nnx.state(model, nnx.Param), _query_and_memory(config)
    return Example(name="cross_attention", framework="nnx", fn=model, weights=weights, **inputs)


def linen_cross_attention(size: Size) -> Example:
    config = CONFIGS[size]
    model = LinenCrossAttention(config)
    shapes = ((1, 2, config.hidden), (1, 3, config.hidden), spec((1, 3), "bool"))
    variables = linen_variables(model, *shapes)
    fn, inputs = partial(model.apply, variables), _query_and_memory(config)
    return Example(name="cross_attention", framework="linen", fn=fn, weights=variables["params"], **inputs)


def equinox_cross_attention(size: Size) -> Example:
    """Of fixed lengths, for which Equinox tabulates the angles of its rotary embedding."""
    config = CONFIGS[size]
    model = equinox_model(EquinoxCrossAttention, config)
    weights = eqx.filter(model, eqx.is_inexact_array)
    inputs = _query_and_memory(config, queries=5, keys=7, sizes=({"B": 1}, {"B": 3}))
    return Example(name="cross_attention", framework="equinox", fn=jax.vmap(model), weights=weights, **inputs)
