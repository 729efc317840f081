"""The diffusion UNet of DDPM for 32×32 images (Ho et al., 2020; 35.7 million parameters).

Residual blocks with GroupNorm that are told the time step, self-attention at one resolution, strided convolutions on
the way down, nearest-neighbour resizing on the way up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .building import linen_example, nnx_example
from .example import Size, normal, spec


@dataclass(frozen=True)
class Config:
    image: int
    channels: int
    multipliers: tuple[int, ...]
    blocks: int
    attention_at: int
    """The resolution at which there is attention."""
    groups: int
    dropout: float = 0.1


CONFIGS: dict[Size, Config] = {
    "small": Config(image=8, channels=8, multipliers=(1, 2), blocks=1, attention_at=4, groups=4),
    "real": Config(image=32, channels=128, multipliers=(1, 2, 2, 2), blocks=2, attention_at=16, groups=32),
}


def time_embedding(time: jax.Array, features: int) -> jax.Array:
    """Sines and cosines of int time steps of shape (batch,): (batch, features)."""
    half = features // 2
    frequencies = jnp.exp(-np.log(10_000) * jnp.arange(half) / (half - 1))
    angles = time.astype(jnp.float32)[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def double_size(x: jax.Array) -> jax.Array:
    batch, height, width, channels = x.shape
    return jax.image.resize(x, (batch, 2 * height, 2 * width, channels), "nearest")


class NnxResidual(nnx.Module):
    def __init__(self, config: Config, channels_in: int, channels: int, *, rngs: nnx.Rngs):
        self.norm_in = nnx.GroupNorm(channels_in, config.groups, rngs=rngs)
        self.conv_in = nnx.Conv(channels_in, channels, (3, 3), rngs=rngs)
        self.time = nnx.Linear(4 * config.channels, channels, rngs=rngs)
        self.norm_out = nnx.GroupNorm(channels, config.groups, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.conv_out = nnx.Conv(channels, channels, (3, 3), rngs=rngs)
        self.shortcut = nnx.Linear(channels_in, channels, rngs=rngs) if channels_in != channels else None

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        y = self.conv_in(nnx.silu(self.norm_in(x)))
        y = y + self.time(nnx.silu(time))[:, None, None, :]
        y = self.conv_out(self.dropout(nnx.silu(self.norm_out(y))))
        return y + (x if self.shortcut is None else self.shortcut(x))


class NnxAttention(nnx.Module):
    def __init__(self, config: Config, channels: int, *, rngs: nnx.Rngs):
        self.norm = nnx.GroupNorm(channels, config.groups, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(1, channels, decode=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, height, width, channels = x.shape
        y = self.norm(x).reshape(batch, height * width, channels)
        return x + self.attention(y).reshape(x.shape)


class NnxStep(nnx.Module):
    """A residual block, and attention if it is for this resolution."""

    def __init__(self, config: Config, resolution: int, channels_in: int, channels: int, *, rngs: nnx.Rngs):
        self.residual = NnxResidual(config, channels_in, channels, rngs=rngs)
        has_attention = resolution == config.attention_at
        self.attention = NnxAttention(config, channels, rngs=rngs) if has_attention else None

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        x = self.residual(x, time)
        return x if self.attention is None else self.attention(x)


class NnxUNet(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.config = config
        width = 4 * config.channels
        self.time_in = nnx.Linear(config.channels, width, rngs=rngs)
        self.time_out = nnx.Linear(width, width, rngs=rngs)
        self.conv_in = nnx.Conv(3, config.channels, (3, 3), rngs=rngs)

        self.down = nnx.List()
        self.down_samples = nnx.List()
        resolution, channels = config.image, config.channels
        skips = [channels]
        for level, multiplier in enumerate(config.multipliers):
            steps = nnx.List()
            for _ in range(config.blocks):
                steps.append(NnxStep(config, resolution, channels, config.channels * multiplier, rngs=rngs))
                channels = config.channels * multiplier
                skips.append(channels)
            self.down.append(steps)
            if level < len(config.multipliers) - 1:
                self.down_samples.append(nnx.Conv(channels, channels, (3, 3), strides=2, rngs=rngs))
                skips.append(channels)
                resolution //= 2

        self.middle_in = NnxResidual(config, channels, channels, rngs=rngs)
        self.middle_attention = NnxAttention(config, channels, rngs=rngs)
        self.middle_out = NnxResidual(config, channels, channels, rngs=rngs)

        self.up = nnx.List()
        self.up_samples = nnx.List()
        for level, multiplier in reversed(list(enumerate(config.multipliers))):
            steps = nnx.List()
            for _ in range(config.blocks + 1):
                channels_in, channels = channels + skips.pop(), config.channels * multiplier
                steps.append(NnxStep(config, resolution, channels_in, channels, rngs=rngs))
            self.up.append(steps)
            if level > 0:
                self.up_samples.append(nnx.Conv(channels, channels, (3, 3), rngs=rngs))
                resolution *= 2

        self.norm = nnx.GroupNorm(channels, config.groups, rngs=rngs)
        self.conv_out = nnx.Conv(channels, 3, (3, 3), rngs=rngs)

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        """The noise in images (batch, height, width, 3) at int time steps (batch,)."""
        time = time_embedding(time, self.config.channels)
        time = self.time_out(nnx.silu(self.time_in(time)))
        x = self.conv_in(x)
        skips = [x]
        for level, steps in enumerate(self.down):
            for step in steps:
                x = step(x, time)
                skips.append(x)
            if level < len(self.down_samples):
                x = self.down_samples[level](x)
                skips.append(x)
        x = self.middle_out(self.middle_attention(self.middle_in(x, time)), time)
        for level, steps in enumerate(self.up):
            for step in steps:
                x = step(jnp.concatenate([x, skips.pop()], axis=-1), time)
            if level < len(self.up_samples):
                x = self.up_samples[level](double_size(x))
        return self.conv_out(nnx.silu(self.norm(x)))


class LinenResidual(nn.Module):
    config: Config
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array, train: bool) -> jax.Array:
        config = self.config
        y = nn.silu(nn.GroupNorm(config.groups)(x))
        y = nn.Conv(self.channels, (3, 3))(y)
        y = y + nn.Dense(self.channels)(nn.silu(time))[:, None, None, :]
        y = nn.silu(nn.GroupNorm(config.groups)(y))
        y = nn.Dropout(config.dropout, deterministic=not train)(y)
        y = nn.Conv(self.channels, (3, 3))(y)
        if x.shape[-1] != self.channels:
            x = nn.Conv(self.channels, (1, 1))(x)
        return x + y


class LinenAttention(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.GroupNorm(self.config.groups)(x)
        y = y.reshape(y.shape[0], -1, y.shape[-1])
        return x + nn.MultiHeadDotProductAttention(num_heads=1)(y).reshape(x.shape)


class LinenUNet(nn.Module):
    """The same network, with transposed convolutions on the way up and average pooling on the way down."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        width = 4 * config.channels
        time = nn.silu(nn.Dense(width)(time_embedding(time, config.channels)))
        time = nn.Dense(width)(time)
        x = nn.Conv(config.channels, (3, 3))(x)
        skips = [x]
        for level, multiplier in enumerate(config.multipliers):
            for _ in range(config.blocks):
                x = LinenResidual(config, config.channels * multiplier)(x, time, train)
                if x.shape[1] == config.attention_at:
                    x = LinenAttention(config)(x)
                skips.append(x)
            if level < len(config.multipliers) - 1:
                x = nn.avg_pool(x, (2, 2), strides=(2, 2))
                skips.append(x)
        x = LinenResidual(config, x.shape[-1])(x, time, train)
        x = LinenAttention(config)(x)
        x = LinenResidual(config, x.shape[-1])(x, time, train)
        for level, multiplier in reversed(list(enumerate(config.multipliers))):
            for _ in range(config.blocks + 1):
                x = jnp.concatenate([x, skips.pop()], axis=-1)
                x = LinenResidual(config, config.channels * multiplier)(x, time, train)
                if x.shape[1] == config.attention_at:
                    x = LinenAttention(config)(x)
            if level > 0:
                x = nn.ConvTranspose(x.shape[-1], (4, 4), strides=(2, 2))(x)
        return nn.Conv(3, (3, 3))(nn.silu(nn.GroupNorm(config.groups)(x)))


def _noisy_images(config: Config) -> dict[str, Any]:
    image = (config.image, config.image, 3)

    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        return normal(rng, (dims["B"], *image)), rng.integers(0, 1000, dims["B"], np.int32)

    return {"inputs": (("B", *image), spec(("B",), "int32")), "sample": sample, "sizes": ({"B": 1}, {"B": 3})}


nnx_unet = nnx_example("unet", NnxUNet, CONFIGS, _noisy_images)
linen_unet = linen_example("unet", LinenUNet, CONFIGS, _noisy_images)
