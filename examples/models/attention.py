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

from .building import equinox_example, linen_example, nnx_example
from .example import Size, normal, padding_mask, sized, spec


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


def attention_with_biases(config: Any, *, key: jax.Array) -> eqx.nn.MultiheadAttention:
    """Attention of Equinox with the biases that published transformers have."""
    return eqx.nn.MultiheadAttention(
        config.heads,
        config.hidden,
        use_query_bias=True,
        use_key_bias=True,
        use_value_bias=True,
        use_output_bias=True,
        dropout_p=config.dropout,
        key=key,
    )


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


nnx_cross_attention = nnx_example("cross_attention", NnxCrossAttention, CONFIGS, _query_and_memory)
linen_cross_attention = linen_example("cross_attention", LinenCrossAttention, CONFIGS, _query_and_memory)
# Of fixed lengths, for which Equinox tabulates the angles of its rotary embedding.
equinox_cross_attention = equinox_example(
    "cross_attention",
    EquinoxCrossAttention,
    CONFIGS,
    partial(_query_and_memory, queries=5, keys=7, sizes=({"B": 1}, {"B": 3})),
)
