"""A small convolutional classifier with BatchNorm and both kinds of pooling, in eval and in train mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from .building import batched, equinox_example_with_state, linen_example, nnx_example
from .example import Example, Size, images, images_channels_first, numbers
from .weights import equinox_model_and_state, nnx_model


@dataclass(frozen=True)
class Config:
    image: int
    channels: tuple[int, ...]
    classes: int


CONFIGS: dict[Size, Config] = {"small": Config(12, (8, 16), 5), "real": Config(32, (64, 128, 256), 10)}


class NnxStage(nnx.Module):
    def __init__(self, channels_in: int, channels: int, *, rngs: nnx.Rngs):
        self.conv = nnx.Conv(channels_in, channels, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(channels, momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.conv(x)))
        return nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2))


class NnxCnn(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        widths = (3, *config.channels)
        self.stages = nnx.List([NnxStage(i, o, rngs=rngs) for i, o in zip(widths, config.channels, strict=False)])
        self.head = nnx.Linear(config.channels[-1], config.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for stage in self.stages:
            x = stage(x)
        x = nnx.avg_pool(x, window_shape=(2, 2), strides=(1, 1), padding="SAME")
        return self.head(x.mean(axis=(1, 2)))


class LinenCnn(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for channels in self.config.channels:
            x = nn.Conv(channels, kernel_size=(3, 3))(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = nn.relu(x)
            x = nn.max_pool(x, window_shape=(3, 3), strides=(2, 2), padding="SAME")
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2), padding="SAME", count_include_pad=False)
        x = x.reshape((x.shape[0], -1))
        return nn.Dense(self.config.classes)(x)


class EquinoxCnn(eqx.Module):
    convs: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    max_pool: eqx.nn.MaxPool2d
    average_pool: eqx.nn.AdaptiveAvgPool2d
    head: eqx.nn.Linear

    def __init__(self, config: Config, *, key: jax.Array):
        *conv_keys, head_key = jax.random.split(key, len(config.channels) + 1)
        widths = zip((3, *config.channels), config.channels, conv_keys, strict=False)
        self.convs = [eqx.nn.Conv2d(i, o, kernel_size=3, padding=1, key=k) for i, o, k in widths]
        self.norms = [eqx.nn.BatchNorm(c, axis_name="batch", mode="batch") for c in config.channels]
        self.max_pool = eqx.nn.MaxPool2d(kernel_size=2, stride=2)
        self.average_pool = eqx.nn.AdaptiveAvgPool2d(1)
        self.head = eqx.nn.Linear(config.channels[-1], config.classes, key=head_key)

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x, state = norm(conv(x), state)
            x = self.max_pool(jax.nn.relu(x))
        return self.head(jnp.ravel(self.average_pool(x))), state


nnx_cnn = nnx_example("cnn", NnxCnn, CONFIGS, images)
linen_cnn = linen_example("cnn", LinenCnn, CONFIGS, images)
equinox_cnn = equinox_example_with_state("cnn", EquinoxCnn, CONFIGS, images_channels_first)


def nnx_cnn_train(size: Size) -> Example:
    """The module in train mode: its running statistics change, and the new ones become outputs."""
    config = CONFIGS[size]
    model = nnx_model(NnxCnn, config)
    model.train()
    return Example(
        name="cnn_train",
        framework="nnx",
        fn=model,
        weights=nnx.state(model, nnx.Param),
        options={"state": "outputs"},
        **images(config, train=True),
    )


# In train mode: `apply` returns the new running statistics beside the logits.
linen_cnn_train = linen_example(
    "cnn_train", LinenCnn, CONFIGS, partial(images, train=True), train=True, mutable=["batch_stats"]
)


def equinox_cnn_train(size: Size) -> Example:
    """The module in train mode: it returns its new state beside the logits.

    The batch has a fixed size: the mean over a batch axis under `vmap` (`lax.pmean`) needs a number.
    """
    config = CONFIGS[size]
    model, state = equinox_model_and_state(EquinoxCnn, config)
    model = eqx.nn.inference_mode(model, value=False)
    sizes = ({"H": config.image, "W": config.image}, {"H": config.image + 4, "W": config.image + 7})

    def train(x: jax.Array) -> tuple[jax.Array, eqx.nn.State]:
        return batched(model)(x, state)

    return Example(
        name="cnn_train",
        framework="equinox",
        fn=train,
        weights=eqx.filter(model, eqx.is_inexact_array),
        **numbers((4, 3, "H", "W"), sizes=sizes),
    )
