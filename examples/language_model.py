"""A small Llama with a key-value cache, exported for onnxruntime-genai and for any loop of one's own.

    python -m examples.language_model FOLDER

writes `model.onnx` and `genai_config.json`, and continues a prompt by plain ONNX Runtime. `make test-runtimes` does the
same with onnxruntime-genai, and compares the tokens with those of JAX.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxport
from examples.models.llama import CONFIGS, Config, rotary_embedding
from examples.models.weights import nnx_model

Rows = dict[str, jax.Array]
"""The keys and values of one layer: `{"key", "value"}`, each (batch, groups, length, head)."""

PROMPT = (3, 17, 22, 5)
NEW_TOKENS = 32
CONTEXT = 64


class Attention(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.config = config
        key_value = config.groups * config.head
        self.query = nnx.Linear(config.hidden, config.hidden, use_bias=False, rngs=rngs)
        self.key = nnx.Linear(config.hidden, key_value, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(config.hidden, key_value, use_bias=False, rngs=rngs)
        self.output = nnx.Linear(config.hidden, config.hidden, use_bias=False, rngs=rngs)

    def __call__(
        self, x: jax.Array, positions: jax.Array, mask: jax.Array, past: Rows, at: Any
    ) -> tuple[jax.Array, Rows]:
        config = self.config
        batch, length, _ = x.shape
        query = rotary_embedding(
            self.query(x).reshape(batch, length, config.heads, config.head), positions, config.theta
        )
        key = rotary_embedding(self.key(x).reshape(batch, length, config.groups, config.head), positions, config.theta)
        value = self.value(x).reshape(batch, length, config.groups, config.head)
        present = {"key": written(past["key"], key, at), "value": written(past["value"], value, at)}
        seen = [rows.swapaxes(1, 2) for rows in (present["key"], present["value"])]
        mixed = jax.nn.dot_product_attention(query, *seen, mask=mask)
        return self.output(mixed.reshape(batch, length, config.hidden)), present


def written(past: jax.Array, rows: jax.Array, at: Any) -> jax.Array:
    """A cache with new rows, (batch, length, groups, head): at a position of it, or at its end where that is None."""
    rows = rows.swapaxes(1, 2)
    return (
        jnp.concatenate([past, rows], axis=2) if at is None else jax.lax.dynamic_update_slice(past, rows, (0, 0, at, 0))
    )


class Layer(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.attention_norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.gate = nnx.Linear(config.hidden, config.mlp, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(config.hidden, config.mlp, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(config.mlp, config.hidden, use_bias=False, rngs=rngs)

    def __call__(
        self, x: jax.Array, positions: jax.Array, mask: jax.Array, past: Rows, at: Any
    ) -> tuple[jax.Array, Rows]:
        mixed, present = self.attention(self.attention_norm(x), positions, mask, past, at)
        x = x + mixed
        y = self.mlp_norm(x)
        return x + self.down(nnx.silu(self.gate(y)) * self.up(y)), present


class Llama(nnx.Module):
    """A step of the decoder; `window` is how many tokens a token sees, where that is limited."""

    def __init__(self, config: Config, window: int | None = None, *, rngs: nnx.Rngs):
        self.window = window
        self.words = nnx.Embed(config.vocabulary, config.hidden, rngs=rngs)
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = nnx.RMSNorm(config.hidden, epsilon=config.epsilon, rngs=rngs)
        self.head = nnx.Linear(config.hidden, config.vocabulary, use_bias=False, rngs=rngs)

    def __call__(
        self, input_ids: jax.Array, attention_mask: jax.Array, position_ids: jax.Array, past_key_values: list[Rows]
    ) -> dict[str, Any]:
        total, length = attention_mask.shape[1], input_ids.shape[1]
        rows = past_key_values[0]["key"].shape[2]  # of a static cache; of one that grows, all but the new ones
        static = rows != total - length
        if static:
            attention_mask = jnp.pad(attention_mask, ((0, 0), (0, rows - total)))
        queries, keys = jnp.arange(total - length, total)[:, None], jnp.arange(attention_mask.shape[1])
        seen = keys <= queries
        if self.window is not None:
            seen &= keys > queries - self.window
        mask = (seen & (attention_mask[:, None, :] != 0))[:, None]
        x, present = self.words(input_ids), []
        for layer, past in zip(self.layers, past_key_values, strict=True):
            x, rows_of_layer = layer(x, position_ids, mask, past, total - length if static else None)
            present.append(rows_of_layer)
        return {"logits": self.head(self.norm(x)), "present": present}


def build(window: int | None = None) -> Llama:
    """The model in the sizes of the tests, with random weights."""
    return nnx_model(Llama, CONFIGS["small"], window)


def export(model: Llama, cache: Literal["growing", "static"] = "growing", **options: Any) -> jaxport.Exported:
    config = CONFIGS["small"]
    inputs = jaxport.decoder_inputs(config.layers, config.groups, config.head, cache=cache)
    return jaxport.to_onnx(model, inputs, target="genai", **options)


def greedy(step: Callable[..., Any], prompt: Sequence[int], new_tokens: int, rows: int = 0) -> list[int]:
    """A prompt continued by the most likely tokens.

    `step` is the model, or the exported model: both take the same arguments. `rows` is the length of a static cache.
    """
    config = CONFIGS["small"]
    empty = np.zeros((1, config.groups, rows, config.head), np.float32)
    past: Any = [{"key": empty, "value": empty} for _ in range(config.layers)]
    ids, new = list(prompt), list(prompt)
    for _ in range(new_tokens):
        mask, positions = np.ones((1, len(ids)), np.int64), np.arange(len(ids) - len(new), len(ids))[None]
        result = step(np.asarray([new]), mask, positions, past)
        past, new = result["present"], [int(result["logits"][0, -1].argmax())]
        ids += new
    return ids


def main(arguments: list[str]) -> None:
    exported = export(build())
    exported.save_genai(arguments[0], context_length=CONTEXT, eos_token_id=CONFIGS["small"].end_of_text)
    sys.stdout.write(f"{greedy(exported, PROMPT, NEW_TOKENS)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
