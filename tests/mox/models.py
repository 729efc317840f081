"""Small transformers in each framework, the same in all: two layers of attention and a feed-forward part with ReLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

WIDTH, TOKENS, LAYERS = 8, 3, 2
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, TOKENS, WIDTH)), jnp.float32)


@dataclass(frozen=True)
class Case:
    """A callable, its arguments, the query for its dense layers, and how many there are."""

    fn: Any
    args: tuple
    dense: str
    count: int


class NnxLayer(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(jax.nn.relu(self.up(x)))


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([NnxLayer(rngs) for _ in range(LAYERS)])
        self.head = nnx.Linear(WIDTH, 4, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class LinenLayer(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = x + linen.MultiHeadDotProductAttention(2, name="attention")(linen.LayerNorm(name="norm")(x))
        y = linen.relu(linen.Dense(2 * WIDTH, name="up")(x))
        return x + linen.Dense(WIDTH, name="down")(y)


class LinenModel(linen.Module):
    @linen.compact
    def __call__(self, x):
        for index in range(LAYERS):
            x = LinenLayer(name=f"layers_{index}")(x)
        return linen.Dense(4, name="head")(x)


class EqxLayer(eqx.Module):
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=key)
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=key)
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=key)

    def __call__(self, x):
        y = jax.vmap(self.norm)(x)
        x = x + self.attention(y, y, y)
        return x + jax.vmap(self.down)(jax.nn.relu(jax.vmap(self.up)(x)))


class EqxModel(eqx.Module):
    layers: list
    head: eqx.nn.Linear

    def __init__(self, key):
        self.layers = [EqxLayer(k) for k in jax.random.split(key, LAYERS)]
        self.head = eqx.nn.Linear(WIDTH, 4, key=key)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return jax.vmap(self.head)(x)


def nnx_case() -> Case:
    return Case(NnxModel(nnx.Rngs(0)), (X,), "//Linear | //LinearGeneral", 6 * LAYERS + 1)


def linen_case() -> Case:
    model = LinenModel()
    return Case(model.apply, (model.init(jax.random.key(0), X), X), "//Dense | //DenseGeneral", 6 * LAYERS + 1)


def eqx_case() -> Case:
    return Case(jax.vmap(EqxModel(jax.random.key(0))), (X,), "//Linear", 6 * LAYERS + 1)


CASES = {"nnx": nnx_case, "linen": linen_case, "equinox": eqx_case}
