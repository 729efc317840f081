"""ViT-B/16 (Dosovitskiy et al., 2020; 86 million parameters)."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from .attention import attention_with_biases
from .building import equinox_example, linen_example, nnx_example
from .example import Size, images, images_channels_first


@dataclass(frozen=True)
class Config:
    image: int
    patch: int
    hidden: int
    layers: int
    heads: int
    mlp: int
    classes: int
    dropout: float = 0.1

    @property
    def tokens(self) -> int:
        """The number of patches and the class token."""
        return (self.image // self.patch) ** 2 + 1


CONFIGS: dict[Size, Config] = {
    "small": Config(image=16, patch=8, hidden=32, layers=2, heads=4, mlp=64, classes=5),
    "real": Config(image=224, patch=16, hidden=768, layers=12, heads=12, mlp=3072, classes=1000),
}


class NnxBlock(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.LayerNorm(config.hidden, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            config.heads, config.hidden, dropout_rate=config.dropout, decode=False, rngs=rngs
        )
        self.mlp_norm = nnx.LayerNorm(config.hidden, rngs=rngs)
        self.mlp = nnx.Sequential(
            nnx.Linear(config.hidden, config.mlp, rngs=rngs),
            nnx.gelu,
            nnx.Dropout(config.dropout, rngs=rngs),
            nnx.Linear(config.mlp, config.hidden, rngs=rngs),
            nnx.Dropout(config.dropout, rngs=rngs),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class NnxViT(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(0.02)
        patch = (config.patch, config.patch)
        self.patches = nnx.Conv(3, config.hidden, patch, strides=patch, padding="VALID", rngs=rngs)
        self.class_token = nnx.Param(normal(rngs.params(), (1, 1, config.hidden)))
        self.positions = nnx.Param(normal(rngs.params(), (1, config.tokens, config.hidden)))
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.hidden, rngs=rngs)
        self.head = nnx.Linear(config.hidden, config.classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        batch, height, width, hidden = x.shape
        x = x.reshape(batch, height * width, hidden)
        class_token = jnp.broadcast_to(self.class_token[...], (batch, 1, hidden))
        x = self.dropout(jnp.concatenate([class_token, x], axis=1) + self.positions[...])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class LinenBlock(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        config = self.config
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(config.heads, dropout_rate=config.dropout)(y, deterministic=deterministic)
        x = x + nn.Dropout(config.dropout, deterministic=deterministic)(y)
        y = nn.LayerNorm()(x)
        y = nn.gelu(nn.Dense(config.mlp)(y), approximate=False)
        y = nn.Dense(config.hidden)(y)
        return x + nn.Dropout(config.dropout, deterministic=deterministic)(y)


class LinenViT(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, images: jax.Array, deterministic: bool = True) -> jax.Array:
        config = self.config
        patch = (config.patch, config.patch)
        normal = nn.initializers.normal(0.02)
        x = nn.Conv(config.hidden, patch, strides=patch, padding="VALID", name="patches")(images)
        x = x.reshape(x.shape[0], -1, config.hidden)
        class_token = self.param("class_token", normal, (1, 1, config.hidden))
        x = jnp.concatenate([jnp.tile(class_token, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("positions", normal, (1, config.tokens, config.hidden))
        for i in range(config.layers):
            x = LinenBlock(config, name=f"block_{i}")(x, deterministic)
        return nn.Dense(config.classes, name="head")(nn.LayerNorm()(x)[:, 0])


class EquinoxBlock(eqx.Module):
    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp_norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, config: Config, *, key: jax.Array):
        attention_key, mlp_key = jax.random.split(key)
        self.attention_norm = eqx.nn.LayerNorm(config.hidden)
        self.attention = attention_with_biases(config, key=attention_key)
        self.mlp_norm = eqx.nn.LayerNorm(config.hidden)
        self.mlp = eqx.nn.MLP(config.hidden, config.hidden, config.mlp, 1, jax.nn.gelu, key=mlp_key)

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        y = jax.vmap(self.attention_norm)(x)
        x = x + self.attention(y, y, y, key=key)
        return x + jax.vmap(self.mlp)(jax.vmap(self.mlp_norm)(x))


class EquinoxViT(eqx.Module):
    patches: eqx.nn.Conv2d
    class_token: jax.Array
    positions: jax.Array
    blocks: list[EquinoxBlock]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, config: Config, *, key: jax.Array):
        patch_key, class_key, position_key, head_key, *block_keys = jax.random.split(key, 4 + config.layers)
        self.patches = eqx.nn.Conv2d(3, config.hidden, config.patch, stride=config.patch, key=patch_key)
        self.class_token = 0.02 * jax.random.normal(class_key, (1, config.hidden))
        self.positions = 0.02 * jax.random.normal(position_key, (config.tokens, config.hidden))
        self.blocks = [EquinoxBlock(config, key=block_key) for block_key in block_keys]
        self.norm = eqx.nn.LayerNorm(config.hidden)
        self.head = eqx.nn.Linear(config.hidden, config.classes, key=head_key)

    def __call__(self, image: jax.Array) -> jax.Array:
        x = self.patches(image)
        x = x.reshape(x.shape[0], -1).T
        x = jnp.concatenate([self.class_token, x]) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[0]))


nnx_vit = nnx_example("vit_b16", NnxViT, CONFIGS, images)
linen_vit = linen_example("vit_b16", LinenViT, CONFIGS, images)
equinox_vit = equinox_example("vit_b16", EquinoxViT, CONFIGS, images_channels_first)
