"""Trains a small decoder on two rhymes, and exports a step of it, with a static cache, for a page that writes text.

    python -m examples.web.text FOLDER

writes the page with its model into a folder; what else it needs is what `examples.web.digits` says.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxport

PAGE = Path(__file__).with_name("text.html")
TEXT = """twinkle, twinkle, little star, how i wonder what you are.
row, row, row your boat, gently down the stream. merrily, merrily, merrily, merrily, life is but a dream. """
LETTERS = sorted(set(TEXT))
LAYERS, WIDTH, HEADS, LENGTH = 2, 32, 4, 32


class Layer(nnx.Module):
    """Attention to the past, and an MLP, of vectors of `WIDTH`."""

    def __init__(self, rngs: nnx.Rngs):
        self.first, self.second = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.qkv, self.out = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, cache: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One token of shape (WIDTH,); `cache` has the keys and values, of shape (2, LENGTH, WIDTH)."""
        query, key, value = jnp.split(self.qkv(self.first(x)), 3)
        here = (jnp.arange(LENGTH) == position)[None, :, None]
        cache = jnp.where(here, jnp.stack([key, value])[:, None], cache)
        keys, values = (each.reshape(LENGTH, HEADS, -1) for each in cache)
        scores = jnp.einsum("hd,thd->ht", query.reshape(HEADS, -1), keys) / (WIDTH // HEADS) ** 0.5
        weights = jax.nn.softmax(jnp.where(jnp.arange(LENGTH) <= position, scores, -1e9))
        x = x + self.out(jnp.einsum("ht,thd->hd", weights, values).reshape(-1))
        return x + self.down(jax.nn.gelu(self.up(self.second(x)))), cache


class Decoder(nnx.Module):
    """Letters in, scores of the next letter out."""

    def __init__(self, rngs: nnx.Rngs):
        self.letters, self.places = nnx.Embed(len(LETTERS), WIDTH, rngs=rngs), nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])
        self.norm, self.scores = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, len(LETTERS), rngs=rngs)

    def __call__(self, letter: jax.Array, position: jax.Array, cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step: a letter and its position, int32 scalars, and the cache, (LAYERS, 2, LENGTH, WIDTH)."""
        x, caches = self.letters(letter) + self.places(position), []
        for layer, own in zip(self.layers, cache, strict=True):
            x, own = layer(x, own, position)
            caches.append(own)
        return self.scores(self.norm(x)), jnp.stack(caches)


def empty() -> jax.Array:
    """The cache before the first letter."""
    return jnp.zeros((LAYERS, 2, LENGTH, WIDTH))


def trained(steps: int = 200) -> Decoder:
    """The decoder after some hundred steps, each on sixteen pieces of the text."""
    model = Decoder(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    letters = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)

    def loss(model: Decoder, pieces: jax.Array) -> jax.Array:
        def scores(piece: jax.Array) -> jax.Array:
            def step(cache: jax.Array, given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                found, cache = model(*given, cache)
                return cache, found

            return jax.lax.scan(step, empty(), (piece[:-1], jnp.arange(LENGTH)))[1]

        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(scores)(pieces), pieces[:, 1:]).mean()

    @nnx.jit
    def update(model: Decoder, optimizer: nnx.Optimizer, pieces: jax.Array) -> None:
        optimizer.update(model, nnx.grad(loss)(model, pieces))

    generator = np.random.default_rng(0)
    for _ in range(steps):
        starts = generator.integers(0, len(letters) - LENGTH, 16)
        update(model, optimizer, jnp.stack([letters[start : start + LENGTH + 1] for start in starts]))
    return model


def continued(model: Decoder, prompt: str) -> str:
    """What the decoder makes of a text, until the cache is full: always the likeliest letter."""
    step, cache, text = nnx.jit(lambda model, *given: model(*given)), empty(), prompt
    for position in range(LENGTH - 1):
        scores, cache = step(model, jnp.int32(LETTERS.index(text[position])), jnp.int32(position), cache)
        if position + 1 == len(text):
            text += LETTERS[int(scores.argmax())]
    return text


def write(folder: Path, steps: int = 200) -> Decoder:
    """The page, and beside it one step of the model, and the letters."""
    model, number = trained(steps), jax.ShapeDtypeStruct((), np.int32)
    exported = jaxport.to_onnx(
        model,
        [number, number, empty().shape],
        output_names=["scores", "next_cache"],
        target="webgpu",
        nonfinite="ignore",
    )
    exported.verify()
    exported.save(folder / "text.onnx")
    (folder / "letters.json").write_text(json.dumps({"letters": LETTERS, "cache": empty().shape}))
    shutil.copy(PAGE, folder / "text.html")
    return model


if __name__ == "__main__":
    write(Path(sys.argv[1]))
