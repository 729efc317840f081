"""Preprocessing of photographs for an ImageNet classifier: resize, center crop, normalize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .example import Example, Size, spec


@dataclass(frozen=True)
class Config:
    resized: int
    cropped: int


CONFIGS: dict[Size, Config] = {"small": Config(resized=12, cropped=8), "real": Config(resized=256, cropped=224)}
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STANDARD_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def preprocess(config: Config, images: jax.Array) -> jax.Array:
    """Uint8 images (batch, height, width, 3) of any size as normalized float32 (batch, cropped, cropped, 3)."""
    batch, _, _, channels = images.shape
    x = images.astype(jnp.float32) / 255
    x = jax.image.resize(x, (batch, config.resized, config.resized, channels), "bilinear")
    border = (config.resized - config.cropped) // 2
    x = x[:, border : border + config.cropped, border : border + config.cropped, :]
    return (jnp.clip(x, 0, 1) - MEAN) / STANDARD_DEVIATION


def plain_preprocess(size: Size) -> Example:
    config = CONFIGS[size]

    def fn(images: jax.Array) -> jax.Array:
        return preprocess(config, images)

    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        return (rng.integers(0, 256, (dims["B"], dims["H"], dims["W"], 3), np.uint8),)

    # Antialiasing matters where an image is made smaller, here in both directions, in one, and in none.
    smaller, larger = config.resized - 3, 2 * config.resized + 5
    sizes = ({"B": 1, "H": larger, "W": larger}, {"B": 3, "H": smaller, "W": larger}, {"B": 2, "H": smaller, "W": 7})
    return Example(
        name="preprocess",
        framework="jax",
        fn=fn,
        weights=None,
        inputs=(spec(("B", "H", "W", 3), "uint8"),),
        sample=sample,
        sizes=sizes,
    )
