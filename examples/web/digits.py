"""Trains a small NNX network on the digits of scikit-learn, and exports it for the browser.

    python -m examples.web.digits FOLDER

writes the page with its model into a folder. Put `ort.webgpu.bundle.min.mjs` and `ort-wasm-simd-threaded.*` of the npm
package onnxruntime-web into `FOLDER/ort`, and serve it: `python -m http.server --directory FOLDER`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import jaxport

PAGE = Path(__file__).with_name("index.html")
STEPS, BATCH = 400, 128


class Digits(nnx.Module):
    """Two convolutions over images of 8 by 8, from 0 to 1, of shape (batch, 8, 8)."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.hidden = nnx.Linear(128, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.first(image[..., None])), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.second(x)), (2, 2), (2, 2))
        return jax.nn.softmax(self.out(nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))))


def data() -> tuple[np.ndarray, np.ndarray]:
    """The 1797 images, from 0 to 1, and their digits, in a random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order].reshape(-1, 8, 8) / 16).astype(np.float32), labels[order]


def trained(steps: int = STEPS) -> Digits:
    """The model after some hundred steps; the last 297 images are not seen."""
    images, labels = data()
    model = Digits(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    def loss(model: Digits, image: jax.Array, label: jax.Array) -> jax.Array:
        return -jnp.log(jnp.take_along_axis(model(image), label[:, None], axis=1) + 1e-9).mean()

    @nnx.jit
    def step(model: Digits, optimizer: nnx.Optimizer, image: jax.Array, label: jax.Array) -> None:
        optimizer.update(model, nnx.grad(loss)(model, image, label))

    generator = np.random.default_rng(1)
    for _ in range(steps):
        chosen = generator.integers(0, 1500, BATCH)
        step(model, optimizer, jnp.asarray(shifted(images[chosen], generator)), jnp.asarray(labels[chosen]))
    return model


def shifted(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The images moved by at most a pixel each way, as a hand on a canvas would."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    starts = generator.integers(0, 3, (len(images), 2))
    return np.stack([padded[i, y : y + 8, x : x + 8] for i, (y, x) in enumerate(starts)])


def write(folder: Path, steps: int = STEPS) -> None:
    """The page, and the model beside it."""
    exported = jaxport.to_onnx(
        trained(steps), [("B", 8, 8)], output_names=["digits"], target="webgpu", nonfinite="ignore"
    )
    exported.verify()
    exported.save(folder / "digits.onnx")
    shutil.copy(PAGE, folder / "index.html")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
