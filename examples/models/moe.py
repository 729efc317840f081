"""Layers of a mixture of experts in the sizes of Granite 3.0 1B-A400M: 8 of 32 experts for each token.

Three ways to bring tokens to experts: every expert sees every token and most answers get no weight (NNX); each expert
takes tokens up to its capacity, which depends on the number of tokens (Linen); tokens sorted by expert and multiplied
by a ragged matrix product (plain JAX).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from .building import linen_example, nnx_example
from .example import TEXT_SIZES, Example, Size, numbers, spec
from .weights import random_weights


@dataclass(frozen=True)
class Config:
    hidden: int
    mlp: int
    experts: int
    chosen: int
    layers: int
    capacity_factor: int = 2


CONFIGS: dict[Size, Config] = {
    "small": Config(hidden=16, mlp=24, experts=6, chosen=2, layers=2),
    "real": Config(hidden=1024, mlp=512, experts=32, chosen=8, layers=2),
}


class NnxExperts(nnx.Module):
    """All experts on all tokens; the answers of those not chosen are weighted by zero."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.config = config
        kernel = nnx.initializers.lecun_normal(batch_axis=0)
        self.norm = nnx.RMSNorm(config.hidden, rngs=rngs)
        self.router = nnx.Linear(config.hidden, config.experts, use_bias=False, rngs=rngs)
        self.gate = nnx.Param(kernel(rngs.params(), (config.experts, config.hidden, config.mlp)))
        self.up = nnx.Param(kernel(rngs.params(), (config.experts, config.hidden, config.mlp)))
        self.down = nnx.Param(kernel(rngs.params(), (config.experts, config.mlp, config.hidden)))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm(x)
        scores, chosen = lax.top_k(self.router(y), self.config.chosen)
        one_hot = jax.nn.one_hot(chosen, self.config.experts)
        weights = jnp.einsum("btk,btke->bte", jax.nn.softmax(scores), one_hot)
        inner = nnx.silu(jnp.einsum("btd,edm->btem", y, self.gate[...]))
        inner = inner * jnp.einsum("btd,edm->btem", y, self.up[...])
        return x + jnp.einsum("btem,emd,bte->btd", inner, self.down[...], weights)


class NnxMixture(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.layers = nnx.List([NnxExperts(config, rngs=rngs) for _ in range(config.layers)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


class LinenExperts(nn.Module):
    """Each expert takes tokens, first choices first, until its capacity is full; the rest pass it by."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        batch, length, hidden = x.shape
        tokens = batch * length
        capacity = (config.capacity_factor * config.chosen * tokens + config.experts - 1) // config.experts

        y = nn.RMSNorm()(x).reshape(tokens, hidden)
        scores, chosen = lax.top_k(nn.softmax(nn.Dense(config.experts, name="router")(y)), config.chosen)
        wanted = jax.nn.one_hot(chosen.T, config.experts, dtype=jnp.int32)
        wanted = wanted.reshape(config.chosen * tokens, config.experts)
        place = jnp.cumsum(wanted, axis=0) * wanted - 1
        place = place.reshape(config.chosen, tokens, config.experts)
        # A place of -1 (not wanted) or beyond the capacity (no room) has no position in the one-hot code.
        taken = jax.nn.one_hot(place, capacity)
        dispatch = jnp.sum(taken, axis=0)
        combine = jnp.einsum("tk,ktec->tec", scores, taken)

        kernel = nn.initializers.lecun_normal(batch_axis=0)
        up = self.param("up", kernel, (config.experts, hidden, config.mlp))
        down = self.param("down", kernel, (config.experts, config.mlp, hidden))
        inner = nn.gelu(jnp.einsum("tec,td,edm->ecm", dispatch, y, up))
        answer = jnp.einsum("ecm,emd->ecd", inner, down)
        return x + jnp.einsum("tec,ecd->td", combine, answer).reshape(x.shape)


class LinenMixture(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.config.layers):
            x = LinenExperts(self.config)(x)
        return x


def jax_experts_shapes(config: Config) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        "router": spec((config.hidden, config.experts)),
        "up": spec((config.experts, config.hidden, config.mlp)),
        "down": spec((config.experts, config.mlp, config.hidden)),
    }


def jax_experts(config: Config, parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Each token visits its experts exactly: tokens are sorted by expert for the matrix products and put back."""
    batch, length, hidden = x.shape
    y = x.reshape(batch * length, hidden)
    scores, chosen = lax.top_k(y @ parameters["router"], config.chosen)
    weights = jax.nn.softmax(scores).reshape(-1)
    chosen = chosen.reshape(-1)
    order = jnp.argsort(chosen)
    token = order // config.chosen
    group_sizes = jnp.bincount(chosen, length=config.experts)
    inner = jax.nn.relu(lax.ragged_dot(y[token], parameters["up"], group_sizes))
    answer = lax.ragged_dot(inner, parameters["down"], group_sizes)
    return (y.at[token].add(answer * weights[order, None])).reshape(x.shape)


def _embedded_text(config: Config) -> dict[str, Any]:
    return numbers(("B", "T", config.hidden), sizes=TEXT_SIZES)


nnx_moe = nnx_example("moe", NnxMixture, CONFIGS, _embedded_text, stacked="experts")
linen_moe = linen_example("moe", LinenMixture, CONFIGS, _embedded_text, stacked="experts")


def plain_moe(size: Size) -> Example:
    config = CONFIGS[size]
    layers = random_weights([jax_experts_shapes(config)] * config.layers, stacked=config.experts)

    def mixture(x: jax.Array) -> jax.Array:
        for layer in layers:
            x = jax_experts(config, layer, x)
        return x

    return Example(name="moe", framework="jax", fn=mixture, weights=layers, **_embedded_text(config))
