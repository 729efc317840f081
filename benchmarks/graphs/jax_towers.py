"""Models of two transformers in Flax NNX: one like Whisper, which hears and writes, and CLIP, which sees and reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from examples.models.building import nnx_example
from examples.models.example import TEXT_SIZES, Size, normal, spec, token_ids


@dataclass(frozen=True)
class WhisperConfig:
    """The sizes of Whisper tiny (Radford et al., 2022; 37 million parameters)."""

    mels: int
    frames: int
    vocabulary: int
    context: int
    hidden: int
    heads: int
    layers: int
    """Of the encoder and of the decoder, each."""


@dataclass(frozen=True)
class TowerConfig:
    hidden: int
    heads: int
    layers: int


@dataclass(frozen=True)
class ClipConfig:
    """The sizes of CLIP ViT-B/32 (Radford et al., 2021; 151 million parameters)."""

    image: int
    patch: int
    vocabulary: int
    context: int
    seeing: TowerConfig
    reading: TowerConfig
    shared: int


WHISPER: dict[Size, WhisperConfig] = {
    "small": WhisperConfig(mels=8, frames=12, vocabulary=40, context=16, hidden=32, heads=4, layers=2),
    "real": WhisperConfig(mels=80, frames=3000, vocabulary=51865, context=448, hidden=384, heads=6, layers=4),
}
CLIP: dict[Size, ClipConfig] = {
    "small": ClipConfig(16, 8, 40, 6, TowerConfig(32, 4, 2), TowerConfig(16, 2, 2), 8),
    "real": ClipConfig(224, 32, 49408, 77, TowerConfig(768, 12, 12), TowerConfig(512, 8, 12), 512),
}


def gelu(x: jax.Array) -> jax.Array:
    return nnx.gelu(x, approximate=False)


def quick_gelu(x: jax.Array) -> jax.Array:
    return x * nnx.sigmoid(1.702 * x)


class Block(nnx.Module):
    """A layer with its normalizations first, and attention to a memory if it `crosses`."""

    def __init__(self, hidden: int, heads: int, activation: Any, crosses: bool = False, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.LayerNorm(hidden, epsilon=1e-5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, hidden, decode=False, rngs=rngs)
        self.cross_norm = nnx.LayerNorm(hidden, epsilon=1e-5, rngs=rngs) if crosses else None
        self.cross = nnx.MultiHeadAttention(heads, hidden, decode=False, rngs=rngs) if crosses else None
        self.mlp_norm = nnx.LayerNorm(hidden, epsilon=1e-5, rngs=rngs)
        self.widen = nnx.Linear(hidden, 4 * hidden, rngs=rngs)
        self.narrow = nnx.Linear(4 * hidden, hidden, rngs=rngs)
        self.activation = activation

    def __call__(self, x: jax.Array, mask: jax.Array | None = None, memory: jax.Array | None = None) -> jax.Array:
        x = x + self.attention(self.attention_norm(x), mask=mask)
        if self.cross is not None and self.cross_norm is not None:
            x = x + self.cross(self.cross_norm(x), memory)
        return x + self.narrow(self.activation(self.widen(self.mlp_norm(x))))


def sinusoids(length: int, width: int) -> np.ndarray:
    """The positions of sounds, (length, width): sines, then cosines, of ever lower frequencies."""
    frequencies = np.exp(-np.log(10_000) / (width // 2 - 1) * np.arange(width // 2))
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class Whisper(nnx.Module):
    def __init__(self, config: WhisperConfig, *, rngs: nnx.Rngs):
        hidden = config.hidden
        self.config = config
        self.first = nnx.Conv(config.mels, hidden, (3,), padding=1, rngs=rngs)
        self.second = nnx.Conv(hidden, hidden, (3,), strides=2, padding=1, rngs=rngs)
        self.encoder = nnx.List([Block(hidden, config.heads, gelu, rngs=rngs) for _ in range(config.layers)])
        self.encoder_norm = nnx.LayerNorm(hidden, epsilon=1e-5, rngs=rngs)
        self.words = nnx.Embed(config.vocabulary, hidden, rngs=rngs)
        self.positions = nnx.Param(jnp.zeros((config.context, hidden)))
        self.decoder = nnx.List([Block(hidden, config.heads, gelu, True, rngs=rngs) for _ in range(config.layers)])
        self.decoder_norm = nnx.LayerNorm(hidden, epsilon=1e-5, rngs=rngs)

    def __call__(self, sound: jax.Array, ids: jax.Array) -> jax.Array:
        """Logits (batch, length, vocabulary) of a spectrogram (batch, mels, frames) and ids (batch, length)."""
        x = gelu(self.second(gelu(self.first(sound.transpose(0, 2, 1)))))
        x = x + sinusoids(*x.shape[1:])
        for block in self.encoder:
            x = block(x)
        memory = self.encoder_norm(x)
        x = self.words(ids) + self.positions[: ids.shape[1]]
        mask = nnx.make_causal_mask(ids)
        for block in self.decoder:
            x = block(x, mask, memory)
        return self.words.attend(self.decoder_norm(x))


class Clip(nnx.Module):
    def __init__(self, config: ClipConfig, *, rngs: nnx.Rngs):
        seeing, reading = config.seeing, config.reading
        patch = (config.patch, config.patch)
        self.patches = nnx.Conv(3, seeing.hidden, patch, strides=patch, padding="VALID", use_bias=False, rngs=rngs)
        self.class_token = nnx.Param(jnp.zeros(seeing.hidden))
        self.places = nnx.Param(jnp.zeros(((config.image // config.patch) ** 2 + 1, seeing.hidden)))
        self.norm_in = nnx.LayerNorm(seeing.hidden, epsilon=1e-5, rngs=rngs)
        self.seeing = nnx.List(
            [Block(seeing.hidden, seeing.heads, quick_gelu, rngs=rngs) for _ in range(seeing.layers)]
        )
        self.seen_norm = nnx.LayerNorm(seeing.hidden, epsilon=1e-5, rngs=rngs)
        self.seen = nnx.Linear(seeing.hidden, config.shared, use_bias=False, rngs=rngs)

        self.words = nnx.Embed(config.vocabulary, reading.hidden, rngs=rngs)
        self.positions = nnx.Param(jnp.zeros((config.context, reading.hidden)))
        self.reading = nnx.List(
            [Block(reading.hidden, reading.heads, quick_gelu, rngs=rngs) for _ in range(reading.layers)]
        )
        self.read_norm = nnx.LayerNorm(reading.hidden, epsilon=1e-5, rngs=rngs)
        self.read = nnx.Linear(reading.hidden, config.shared, use_bias=False, rngs=rngs)
        self.scale = nnx.Param(jnp.zeros(()))

    def __call__(self, images: jax.Array, ids: jax.Array) -> jax.Array:
        """How well images (images, height, width, 3) and texts (texts, length) fit: (images, texts)."""
        seen, read = self.see(images), self.understand(ids)
        seen = seen / jnp.linalg.norm(seen, axis=-1, keepdims=True)
        read = read / jnp.linalg.norm(read, axis=-1, keepdims=True)
        return jnp.exp(self.scale[...]) * (seen @ read.T)

    def see(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        batch, height, width, hidden = x.shape
        first = jnp.broadcast_to(self.class_token[...], (batch, 1, hidden))
        x = jnp.concatenate([first, x.reshape(batch, height * width, hidden)], axis=1)
        x = self.norm_in(x + self.places[...])
        for block in self.seeing:
            x = block(x)
        return self.seen(self.seen_norm(x[:, 0]))

    def understand(self, ids: jax.Array) -> jax.Array:
        x = self.words(ids) + self.positions[: ids.shape[1]]
        mask = nnx.make_causal_mask(ids)
        for block in self.reading:
            x = block(x, mask)
        # The end of a text is its largest id.
        last = self.read_norm(x)[jnp.arange(ids.shape[0]), jnp.argmax(ids, axis=-1)]
        return self.read(last)


def _sound_and_text(config: WhisperConfig) -> dict[str, Any]:
    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        sound = normal(rng, (dims["B"], config.mels, config.frames))
        return sound, token_ids(rng, (dims["B"], dims["T"]), config.vocabulary)

    inputs = (("B", config.mels, config.frames), spec(("B", "T"), "int32"))
    # A prefix of the table of positions is there only for texts that are not longer than it.
    options = {"constraints": [f"T <= {config.context}"]}
    return {"inputs": inputs, "sample": sample, "sizes": TEXT_SIZES, "options": options}


def _images_and_texts(config: ClipConfig) -> dict[str, Any]:
    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        images = normal(rng, (dims["B"], config.image, config.image, 3))
        return images, token_ids(rng, (dims["N"], config.context), config.vocabulary)

    inputs = (("B", config.image, config.image, 3), spec(("N", config.context), "int32"))
    return {"inputs": inputs, "sample": sample, "sizes": ({"B": 1, "N": 2}, {"B": 3, "N": 1})}


whisper_tiny = nnx_example("whisper_tiny", Whisper, WHISPER, _sound_and_text)
clip_vit_b32 = nnx_example("clip_vit_b32", Clip, CLIP, _images_and_texts)
