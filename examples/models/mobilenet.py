"""MobileNetV2 (Sandler et al., 2018; 3.5 million parameters): inverted residuals of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from .building import linen_example, nnx_example
from .example import Size, images


@dataclass(frozen=True)
class Config:
    image: int
    stem: int
    stages: tuple[tuple[int, int, int, int], ...]
    """Expansion, channels, number of blocks and the stride of the first of them."""
    last: int
    classes: int

    def blocks(self) -> Iterator[tuple[int, int, int, int]]:
        """Channels in, expansion, channels and stride of each block."""
        channels_in = self.stem
        for expansion, channels, depth, stride in self.stages:
            for i in range(depth):
                yield channels_in, expansion, channels, stride if i == 0 else 1
                channels_in = channels


CONFIGS: dict[Size, Config] = {
    "small": Config(image=32, stem=8, stages=((1, 8, 1, 1), (6, 12, 2, 2)), last=32, classes=5),
    "real": Config(
        image=224,
        stem=32,
        stages=(
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ),
        last=1280,
        classes=1000,
    ),
}


class NnxConvNorm(nnx.Module):
    def __init__(
        self, channels_in: int, channels: int, kernel: int, strides: int = 1, groups: int = 1, *, rngs: nnx.Rngs
    ):
        self.conv = nnx.Conv(
            channels_in,
            channels,
            kernel_size=(kernel, kernel),
            strides=strides,
            feature_group_count=groups,
            use_bias=False,
            rngs=rngs,
        )
        self.norm = nnx.BatchNorm(channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class NnxInvertedResidual(nnx.Module):
    def __init__(self, channels_in: int, expansion: int, channels: int, strides: int, *, rngs: nnx.Rngs):
        hidden = channels_in * expansion
        self.expand = NnxConvNorm(channels_in, hidden, 1, rngs=rngs) if expansion != 1 else None
        self.depthwise = NnxConvNorm(hidden, hidden, 3, strides, groups=hidden, rngs=rngs)
        self.project = NnxConvNorm(hidden, channels, 1, rngs=rngs)
        self.is_residual = strides == 1 and channels_in == channels

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x if self.expand is None else nnx.relu6(self.expand(x))
        y = self.project(nnx.relu6(self.depthwise(y)))
        return x + y if self.is_residual else y


class NnxMobileNet(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.stem = NnxConvNorm(3, config.stem, 3, 2, rngs=rngs)
        self.blocks = nnx.List([NnxInvertedResidual(*block, rngs=rngs) for block in config.blocks()])
        self.last = NnxConvNorm(config.stages[-1][1], config.last, 1, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(config.last, config.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        x = nnx.relu6(self.last(x))
        return self.head(self.dropout(jnp.mean(x, axis=(1, 2))))


class LinenConvNorm(nn.Module):
    channels: int
    kernel: int
    strides: int = 1
    groups: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Conv(
            self.channels,
            (self.kernel, self.kernel),
            self.strides,
            feature_group_count=self.groups,
            use_bias=False,
        )(x)
        return nn.BatchNorm(use_running_average=not train)(x)


class LinenInvertedResidual(nn.Module):
    expansion: int
    channels: int
    strides: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        hidden = x.shape[-1] * self.expansion
        y = x
        if self.expansion != 1:
            y = nn.relu6(LinenConvNorm(hidden, 1)(y, train))
        y = nn.relu6(LinenConvNorm(hidden, 3, self.strides, groups=hidden)(y, train))
        y = LinenConvNorm(self.channels, 1)(y, train)
        return x + y if x.shape == y.shape else y


class LinenMobileNet(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.relu6(LinenConvNorm(self.config.stem, 3, 2)(x, train))
        for _, expansion, channels, strides in self.config.blocks():
            x = LinenInvertedResidual(expansion, channels, strides)(x, train)
        x = nn.relu6(LinenConvNorm(self.config.last, 1)(x, train))
        x = nn.Dropout(0.2, deterministic=not train)(x.mean(axis=(1, 2)))
        return nn.Dense(self.config.classes)(x)


nnx_mobilenet_v2 = nnx_example("mobilenet_v2", NnxMobileNet, CONFIGS, images)
linen_mobilenet_v2 = linen_example("mobilenet_v2", LinenMobileNet, CONFIGS, images)
