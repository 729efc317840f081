"""Models of images in Flax NNX that `examples` does not have: EfficientNet-B0, ConvNeXt-T, and U-Net for segmentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from examples.models.building import nnx_example
from examples.models.example import Size, images


@dataclass(frozen=True)
class EfficientNetConfig:
    """The sizes of EfficientNet-B0 (Tan and Le, 2019; 5.3 million parameters)."""

    image: int
    stem: int
    stages: tuple[tuple[int, int, int, int, int], ...]
    """Expansion, channels, number of blocks, stride of the first of them, and kernel."""
    last: int
    classes: int
    epsilon: float = 1e-3

    def blocks(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Channels in, expansion, channels, stride and kernel of each block."""
        channels_in = self.stem
        for expansion, channels, depth, stride, kernel in self.stages:
            for i in range(depth):
                yield channels_in, expansion, channels, stride if i == 0 else 1, kernel
                channels_in = channels


@dataclass(frozen=True)
class ConvNextConfig:
    """The sizes of ConvNeXt-T (Liu et al., 2022; 28.6 million parameters)."""

    image: int
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    classes: int
    epsilon: float = 1e-6


@dataclass(frozen=True)
class UNetConfig:
    """The sizes of U-Net (Ronneberger et al., 2015; 31 million parameters), with padding and batch normalization."""

    image: int
    widths: tuple[int, ...]
    classes: int


EFFICIENTNET: dict[Size, EfficientNetConfig] = {
    "small": EfficientNetConfig(image=32, stem=8, stages=((1, 8, 1, 1, 3), (6, 12, 2, 2, 5)), last=32, classes=5),
    "real": EfficientNetConfig(
        image=224,
        stem=32,
        stages=(
            (1, 16, 1, 1, 3),
            (6, 24, 2, 2, 3),
            (6, 40, 2, 2, 5),
            (6, 80, 3, 2, 3),
            (6, 112, 3, 1, 5),
            (6, 192, 4, 2, 5),
            (6, 320, 1, 1, 3),
        ),
        last=1280,
        classes=1000,
    ),
}
CONVNEXT: dict[Size, ConvNextConfig] = {
    "small": ConvNextConfig(image=32, depths=(1, 2), widths=(8, 16), classes=5),
    "real": ConvNextConfig(image=224, depths=(3, 3, 9, 3), widths=(96, 192, 384, 768), classes=1000),
}
UNET: dict[Size, UNetConfig] = {
    "small": UNetConfig(image=16, widths=(4, 8, 16), classes=2),
    "real": UNetConfig(image=128, widths=(64, 128, 256, 512, 1024), classes=2),
}


class ConvNorm(nnx.Module):
    def __init__(
        self, channels_in: int, channels: int, kernel: int, config: EfficientNetConfig,
        strides: int = 1, groups: int = 1, *, rngs: nnx.Rngs,
    ):  # fmt: skip
        size = (kernel, kernel)
        self.conv = nnx.Conv(
            channels_in, channels, size, strides=strides, padding=kernel // 2, feature_group_count=groups,
            use_bias=False, rngs=rngs,
        )  # fmt: skip
        self.norm = nnx.BatchNorm(channels, epsilon=config.epsilon, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class SqueezeExcite(nnx.Module):
    def __init__(self, channels: int, squeezed: int, *, rngs: nnx.Rngs):
        self.reduce = nnx.Linear(channels, squeezed, rngs=rngs)
        self.expand = nnx.Linear(squeezed, channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = jnp.mean(x, axis=(1, 2), keepdims=True)
        return x * nnx.sigmoid(self.expand(nnx.silu(self.reduce(y))))


class MobileBlock(nnx.Module):
    def __init__(
        self, channels_in: int, expansion: int, channels: int, strides: int, kernel: int, config: EfficientNetConfig,
        *, rngs: nnx.Rngs,
    ):  # fmt: skip
        hidden = channels_in * expansion
        self.expand = ConvNorm(channels_in, hidden, 1, config, rngs=rngs) if expansion != 1 else None
        self.depthwise = ConvNorm(hidden, hidden, kernel, config, strides, hidden, rngs=rngs)
        self.excite = SqueezeExcite(hidden, max(1, channels_in // 4), rngs=rngs)
        self.project = ConvNorm(hidden, channels, 1, config, rngs=rngs)
        self.is_residual = strides == 1 and channels_in == channels

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x if self.expand is None else nnx.silu(self.expand(x))
        y = self.project(self.excite(nnx.silu(self.depthwise(y))))
        return x + y if self.is_residual else y


class EfficientNet(nnx.Module):
    def __init__(self, config: EfficientNetConfig, *, rngs: nnx.Rngs):
        self.stem = ConvNorm(3, config.stem, 3, config, 2, rngs=rngs)
        self.blocks = nnx.List([MobileBlock(*block, config, rngs=rngs) for block in config.blocks()])
        self.last = ConvNorm(config.stages[-1][1], config.last, 1, config, rngs=rngs)
        self.head = nnx.Linear(config.last, config.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.silu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(nnx.silu(self.last(x)), axis=(1, 2)))


class ConvNextBlock(nnx.Module):
    def __init__(self, width: int, epsilon: float, *, rngs: nnx.Rngs):
        self.depthwise = nnx.Conv(width, width, (7, 7), padding=3, feature_group_count=width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, epsilon=epsilon, rngs=rngs)
        self.widen = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)
        self.scale = nnx.Param(jnp.full(width, 1e-6))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = nnx.gelu(self.widen(self.norm(self.depthwise(x))), approximate=False)
        return x + self.scale[...] * self.narrow(y)


class ConvNext(nnx.Module):
    def __init__(self, config: ConvNextConfig, *, rngs: nnx.Rngs):
        self.stem = nnx.Conv(3, config.widths[0], (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.norms = nnx.List()
        self.halve = nnx.List()
        self.stages = nnx.List()
        width_in = config.widths[0]
        for depth, width in zip(config.depths, config.widths, strict=True):
            self.norms.append(nnx.LayerNorm(width_in, epsilon=config.epsilon, rngs=rngs))
            if self.stages:
                self.halve.append(nnx.Conv(width_in, width, (2, 2), strides=2, padding="VALID", rngs=rngs))
            self.stages.append(nnx.List([ConvNextBlock(width, config.epsilon, rngs=rngs) for _ in range(depth)]))
            width_in = width
        self.norm = nnx.LayerNorm(width_in, epsilon=config.epsilon, rngs=rngs)
        self.head = nnx.Linear(width_in, config.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.norms[0](self.stem(x))
        for i, blocks in enumerate(self.stages):
            if i > 0:
                x = self.halve[i - 1](self.norms[i](x))
            for block in blocks:
                x = block(x)
        return self.head(self.norm(jnp.mean(x, axis=(1, 2))))


class DoubleConv(nnx.Module):
    def __init__(self, channels_in: int, channels: int, *, rngs: nnx.Rngs):
        self.first = nnx.Conv(channels_in, channels, (3, 3), use_bias=False, rngs=rngs)
        self.first_norm = nnx.BatchNorm(channels, rngs=rngs)
        self.second = nnx.Conv(channels, channels, (3, 3), use_bias=False, rngs=rngs)
        self.second_norm = nnx.BatchNorm(channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.first_norm(self.first(x)))
        return nnx.relu(self.second_norm(self.second(x)))


class UNet(nnx.Module):
    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs):
        widths = config.widths
        self.down = nnx.List([DoubleConv(a, b, rngs=rngs) for a, b in zip((3, *widths), widths, strict=False)])
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.double = nnx.List([nnx.ConvTranspose(a, b, (2, 2), strides=(2, 2), rngs=rngs) for a, b in pairs])
        self.up = nnx.List([DoubleConv(2 * b, b, rngs=rngs) for _, b in pairs])
        self.head = nnx.Conv(widths[0], config.classes, (1, 1), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else nnx.max_pool(x, (2, 2), strides=(2, 2)))
            skips.append(x)
        for double, block in zip(self.double, self.up, strict=True):
            skips.pop()
            x = block(jnp.concatenate([skips[-1], double(x)], axis=-1))
        return self.head(x)


efficientnet_b0 = nnx_example("efficientnet_b0", EfficientNet, EFFICIENTNET, images)
convnext_t = nnx_example("convnext_t", ConvNext, CONVNEXT, images)
segmentation_unet = nnx_example("segmentation_unet", UNet, UNET, images)
