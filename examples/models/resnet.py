"""ResNet-50 (He et al., 2015; 25.6 million parameters), with the stride in the 3×3 convolution (v1.5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from .building import equinox_example_with_state, linen_example, nnx_example
from .example import Size, images, images_channels_first

EXPANSION = 4


@dataclass(frozen=True)
class Config:
    image: int
    stages: tuple[int, ...]
    width: int
    classes: int


CONFIGS: dict[Size, Config] = {
    "small": Config(image=32, stages=(2, 1), width=8, classes=5),
    "real": Config(image=224, stages=(3, 4, 6, 3), width=64, classes=1000),
}


class NnxConvNorm(nnx.Module):
    def __init__(self, channels_in: int, channels: int, kernel: int, strides: int = 1, *, rngs: nnx.Rngs):
        self.conv = nnx.Conv(
            channels_in,
            channels,
            kernel_size=(kernel, kernel),
            strides=strides,
            padding=kernel // 2,
            use_bias=False,
            rngs=rngs,
        )
        self.norm = nnx.BatchNorm(channels, momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class NnxBottleneck(nnx.Module):
    def __init__(self, channels_in: int, width: int, strides: int, *, rngs: nnx.Rngs):
        channels = width * EXPANSION
        self.reduce = NnxConvNorm(channels_in, width, 1, rngs=rngs)
        self.spatial = NnxConvNorm(width, width, 3, strides, rngs=rngs)
        self.expand = NnxConvNorm(width, channels, 1, rngs=rngs)
        needs_projection = strides != 1 or channels_in != channels
        self.shortcut = NnxConvNorm(channels_in, channels, 1, strides, rngs=rngs) if needs_projection else None

    def __call__(self, x: jax.Array) -> jax.Array:
        residual = x if self.shortcut is None else self.shortcut(x)
        x = nnx.relu(self.reduce(x))
        x = nnx.relu(self.spatial(x))
        return nnx.relu(self.expand(x) + residual)


class NnxResNet(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.stem = NnxConvNorm(3, config.width, 7, 2, rngs=rngs)
        self.stages = nnx.List()
        channels = config.width
        for i, depth in enumerate(config.stages):
            width = config.width * 2**i
            blocks = nnx.List()
            for j in range(depth):
                strides = 2 if i > 0 and j == 0 else 1
                blocks.append(NnxBottleneck(channels, width, strides, rngs=rngs))
                channels = width * EXPANSION
            self.stages.append(blocks)
        self.head = nnx.Linear(channels, config.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.stem(x))
        padding: Any = ((1, 1), (1, 1))  # Flax documents pairs and annotates `str`
        x = nnx.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding=padding)
        for blocks in self.stages:
            for block in blocks:
                x = block(x)
        return self.head(jnp.mean(x, axis=(1, 2)))


class LinenBottleneck(nn.Module):
    width: int
    strides: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        residual = x
        y = nn.relu(self.norm()(self.conv(self.width, (1, 1))(x)))
        y = nn.relu(self.norm()(self.conv(self.width, (3, 3), self.strides)(y)))
        y = self.norm(scale_init=nn.initializers.zeros_init())(self.conv(self.width * EXPANSION, (1, 1))(y))
        if residual.shape != y.shape:
            residual = self.conv(self.width * EXPANSION, (1, 1), self.strides, name="shortcut_conv")(residual)
            residual = self.norm(name="shortcut_norm")(residual)
        return nn.relu(residual + y)


class LinenResNet(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        conv = partial(nn.Conv, use_bias=False)
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5)
        x = conv(self.config.width, (7, 7), (2, 2), padding=[(3, 3), (3, 3)], name="stem_conv")(x)
        x = nn.relu(norm(name="stem_norm")(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for i, depth in enumerate(self.config.stages):
            for j in range(depth):
                strides = 2 if i > 0 and j == 0 else 1
                x = LinenBottleneck(self.config.width * 2**i, strides, conv, norm)(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.config.classes)(x)


class EquinoxConvNorm(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int = 1, *, key: jax.Array):
        self.conv = eqx.nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2, use_bias=False, key=key)
        self.norm = eqx.nn.BatchNorm(channels, axis_name="batch", mode="batch")

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        return self.norm(self.conv(x), state)


class EquinoxBottleneck(eqx.Module):
    reduce: EquinoxConvNorm
    spatial: EquinoxConvNorm
    expand: EquinoxConvNorm
    shortcut: EquinoxConvNorm | None

    def __init__(self, channels_in: int, width: int, stride: int, *, key: jax.Array):
        keys = jax.random.split(key, 4)
        channels = width * EXPANSION
        self.reduce = EquinoxConvNorm(channels_in, width, 1, key=keys[0])
        self.spatial = EquinoxConvNorm(width, width, 3, stride, key=keys[1])
        self.expand = EquinoxConvNorm(width, channels, 1, key=keys[2])
        needs_projection = stride != 1 or channels_in != channels
        self.shortcut = EquinoxConvNorm(channels_in, channels, 1, stride, key=keys[3]) if needs_projection else None

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        residual = x
        if self.shortcut is not None:
            residual, state = self.shortcut(x, state)
        x, state = self.reduce(x, state)
        x, state = self.spatial(jax.nn.relu(x), state)
        x, state = self.expand(jax.nn.relu(x), state)
        return jax.nn.relu(x + residual), state


class EquinoxResNet(eqx.Module):
    stem: EquinoxConvNorm
    max_pool: eqx.nn.MaxPool2d
    blocks: list[EquinoxBottleneck]
    head: eqx.nn.Linear

    def __init__(self, config: Config, *, key: jax.Array):
        stem_key, head_key, blocks_key = jax.random.split(key, 3)
        self.stem = EquinoxConvNorm(3, config.width, 7, 2, key=stem_key)
        self.max_pool = eqx.nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.blocks = []
        channels = config.width
        for i, depth in enumerate(config.stages):
            width = config.width * 2**i
            for j in range(depth):
                block_key = jax.random.fold_in(blocks_key, len(self.blocks))
                self.blocks.append(EquinoxBottleneck(channels, width, 2 if i > 0 and j == 0 else 1, key=block_key))
                channels = width * EXPANSION
        self.head = eqx.nn.Linear(channels, config.classes, key=head_key)

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        x, state = self.stem(x, state)
        x = self.max_pool(jax.nn.relu(x))
        for block in self.blocks:
            x, state = block(x, state)
        return self.head(jnp.mean(x, axis=(1, 2))), state


nnx_resnet50 = nnx_example("resnet50", NnxResNet, CONFIGS, images)
linen_resnet50 = linen_example("resnet50", LinenResNet, CONFIGS, images)
equinox_resnet50 = equinox_example_with_state("resnet50", EquinoxResNet, CONFIGS, images_channels_first)
# In train mode: batch statistics normalize, and `apply` returns the new running ones beside the logits.
linen_resnet50_train = linen_example(
    "resnet50_train", LinenResNet, CONFIGS, partial(images, train=True), train=True, mutable=["batch_stats"]
)
