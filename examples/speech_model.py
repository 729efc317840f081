"""A small encoder-decoder in the manner of Whisper (Radford et al., 2022), exported as two models for
onnxruntime-genai.

    python -m examples.speech_model FOLDER

writes `encoder_model.onnx`, `decoder_model.onnx` and `genai_config.json`, and continues a prompt by plain ONNX Runtime.
The encoder computes the keys and values of its result once; the decoder attends to them in each step, and has a growing
cache of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxport
from examples.models.weights import nnx_model

Rows = dict[str, jax.Array]
"""Keys and values of one layer: `{"key", "value"}`, each (batch, heads, length, head)."""


@dataclass(frozen=True)
class Config:
    vocabulary: int = 40
    features: int = 16
    frames: int = 3000
    positions: int = 64
    hidden: int = 32
    heads: int = 4
    layers: int = 2
    mlp: int = 64

    @property
    def head(self) -> int:
        return self.hidden // self.heads


CONFIG = Config()
PROMPT = (3, 17, 22, 5)
NEW_TOKENS = 32


def heads_of(x: jax.Array, heads: int) -> jax.Array:
    """(batch, length, hidden) as (batch, heads, length, head)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


class Attention(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.heads = config.heads
        self.query = nnx.Linear(config.hidden, config.hidden, rngs=rngs)
        self.key = nnx.Linear(config.hidden, config.hidden, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(config.hidden, config.hidden, rngs=rngs)
        self.output = nnx.Linear(config.hidden, config.hidden, rngs=rngs)

    def rows(self, x: jax.Array) -> Rows:
        return {"key": heads_of(self.key(x), self.heads), "value": heads_of(self.value(x), self.heads)}

    def __call__(self, x: jax.Array, rows: Rows, mask: jax.Array | None = None) -> jax.Array:
        query = heads_of(self.query(x), self.heads).swapaxes(1, 2)
        key, value = (rows[side].swapaxes(1, 2) for side in ("key", "value"))
        mixed = jax.nn.dot_product_attention(query, key, value, mask=mask)
        return self.output(mixed.reshape(x.shape))


class Layer(nnx.Module):
    """A layer of the encoder, or with `crosses` one of the decoder."""

    def __init__(self, config: Config, crosses: bool, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.LayerNorm(config.hidden, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.cross_norm = nnx.LayerNorm(config.hidden, rngs=rngs) if crosses else None
        self.cross = Attention(config, rngs=rngs) if crosses else None
        self.mlp_norm = nnx.LayerNorm(config.hidden, rngs=rngs)
        self.up = nnx.Linear(config.hidden, config.mlp, rngs=rngs)
        self.down = nnx.Linear(config.mlp, config.hidden, rngs=rngs)

    def __call__(
        self, x: jax.Array, past: Rows | None = None, seen: Rows | None = None, mask: jax.Array | None = None
    ) -> tuple[jax.Array, Rows]:
        y = self.attention_norm(x)
        rows = self.attention.rows(y)
        if past is not None:
            rows = {side: jnp.concatenate([past[side], rows[side]], axis=2) for side in rows}
        x = x + self.attention(y, rows, mask)
        if self.cross is not None and self.cross_norm is not None and seen is not None:
            x = x + self.cross(self.cross_norm(x), seen)
        return x + self.down(jax.nn.gelu(self.up(self.mlp_norm(x)), approximate=False)), rows


class Whisper(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.config = config
        self.first = nnx.Conv(config.features, config.hidden, (3,), rngs=rngs)
        self.second = nnx.Conv(config.hidden, config.hidden, (3,), strides=(2,), rngs=rngs)
        self.places = nnx.Embed(config.frames // 2, config.hidden, rngs=rngs)
        self.encoder = nnx.List([Layer(config, False, rngs=rngs) for _ in range(config.layers)])
        self.encoder_norm = nnx.LayerNorm(config.hidden, rngs=rngs)
        self.words = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.positions = nnx.Embed(config.positions, config.hidden, rngs=rngs)
        self.decoder = nnx.List([Layer(config, True, rngs=rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.hidden, rngs=rngs)

    def encode(self, audio_features: jax.Array) -> dict[str, Any]:
        """The states of (batch, features, frames), and what each layer of the decoder attends to."""
        x = jax.nn.gelu(self.first(audio_features.swapaxes(1, 2)), approximate=False)
        x = jax.nn.gelu(self.second(x), approximate=False) + self.places(jnp.arange(self.config.frames // 2))
        for layer in self.encoder:
            x, _ = layer(x)
        x = self.encoder_norm(x)
        present = [{"encoder": layer.cross.rows(x)} for layer in self.decoder if layer.cross is not None]
        return {"encoder_hidden_states": x, "present": present}

    def decode(self, input_ids: jax.Array, past_key_values: list[dict[str, Rows]]) -> dict[str, Any]:
        """A step of the decoder."""
        before, length = past_key_values[0]["decoder"]["key"].shape[2], input_ids.shape[1]
        queries, keys = before + jnp.arange(length), jnp.arange(before + length)
        mask = (keys <= queries[:, None])[None, None]
        x, present = self.words(input_ids) + self.positions(queries), []
        for layer, past in zip(self.decoder, past_key_values, strict=True):
            x, rows = layer(x, past["decoder"], past["encoder"], mask)
            present.append({"decoder": rows})
        return {"logits": self.words.attend(self.norm(x)), "present": present}


def build() -> Whisper:
    """The model with random weights."""
    return nnx_model(Whisper, CONFIG)


def audio(seed: int = 0) -> np.ndarray:
    """Features that could be those of a sound."""
    return np.random.default_rng(seed).normal(size=(1, CONFIG.features, CONFIG.frames)).astype(np.float32)


def export(model: Whisper, **options: Any) -> tuple[jaxport.Exported, jaxport.Exported]:
    """The encoder and the decoder."""
    config = CONFIG
    features = [("batch_size", config.features, config.frames)]
    step = jaxport.encoder_decoder_inputs(config.layers, config.heads, config.head, config.frames // 2)
    encoder = jaxport.to_onnx(model.encode, features, target="genai", **options)
    return encoder, jaxport.to_onnx(model.decode, step, target="genai", **options)


def greedy(
    encode: Callable[..., Any], decode: Callable[..., Any], features: Any, prompt: Sequence[int], new_tokens: int
) -> list[int]:
    """A prompt continued by the most likely tokens, given a sound.

    `encode` and `decode` are methods of the model, or the exported models: both take the same arguments.
    """
    empty = dict.fromkeys(("key", "value"), np.zeros((1, CONFIG.heads, 0, CONFIG.head), np.float32))
    seen = encode(features)["present"]
    past: Any = [{"decoder": empty, **layer} for layer in seen]
    ids, new = list(prompt), list(prompt)
    for _ in range(new_tokens):
        result = decode(np.asarray([new]), past)
        past = [{**own, **layer} for own, layer in zip(result["present"], seen, strict=True)]
        new = [int(result["logits"][0, -1].argmax())]
        ids += new
    return ids


def main(arguments: list[str]) -> None:
    encoder, decoder = export(build())
    decoder.save_genai(arguments[0], encoder=encoder, context_length=CONFIG.positions, eos_token_id=0)
    sys.stdout.write(f"{greedy(encoder, decoder, audio(), PROMPT, NEW_TOKENS)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
