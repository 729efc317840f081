"""Whether printed source trains as the file that it was printed from: losses of some steps of gradient descent, side by side.

python -m benchmarks.bench_trained FOLDER [NAME …]     # FOLDER has NAME.onnx, and NAME.0.npz with inputs

`--framework equinox` instead of `nnx`, `--steps 20`. Both sides begin with the weights of the file, and descend the same loss. A weight
that the file has twice is one in printed source, where its gradient is the sum of both.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import jaxport
from benchmarks.measure import rendered
from tests.codegen.structured import arguments, load, loss_function, loss_of

RATE = 0.01


def losses(loss: Callable[[Any], jax.Array], weights: Any, steps: int) -> list[float]:
    """Return the loss before each step of gradient descent, and after the last."""
    slopes = jax.jit(jax.value_and_grad(loss, allow_int=True))

    def moved(weight: jax.Array, slope: jax.Array) -> jax.Array:
        return weight - RATE * slope if jnp.issubdtype(weight.dtype, jnp.floating) else weight

    found = []
    for _ in range(steps):
        value, gradient = slopes(weights)
        found.append(float(value))
        weights = jax.tree.map(moved, weights, gradient)
    return [*found, float(loss(weights))]


def compared(path: Path, framework: Literal["nnx", "equinox"], steps: int) -> list[str]:
    """Return a row: the losses at both ends, and the largest difference between both sides, relative to the first loss."""
    program = jaxport.from_onnx(path)
    inputs = np.load(path.with_suffix(".0.npz"))
    arrays = [jnp.asarray(inputs[name]) for name in program.input_names]
    expected = losses(lambda params: loss_of(program.apply(params, *arrays)), program.params, steps)
    with tempfile.TemporaryDirectory() as folder:
        program.to_source(folder, framework=framework)
        weights, loss = loss_function((module := load(Path(folder))).load(), arguments(module, arrays), framework)
        found = losses(loss, weights, steps)
    difference = max(abs(one - other) for one, other in zip(found, expected, strict=True)) / max(abs(expected[0]), 1e-9)
    return [path.stem, f"{expected[0]:.6f}", f"{expected[-1]:.6f}", f"{found[-1]:.6f}", f"{difference:.1e}"]


def main() -> None:
    """Compare the files of a folder, or some of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="nnx", choices=("nnx", "equinox"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    paths = [path for path in sorted(chosen.folder.glob("*.onnx")) if not chosen.names or path.stem in chosen.names]
    rows = []
    for path in paths:
        try:
            rows.append(compared(path, chosen.framework, chosen.steps))
        except jaxport.JaxportError as error:
            rows.append([path.stem, f"refused: {' '.join(str(error).split())[:80]}", "", "", ""])
        print(*rows[-1], flush=True)
    header = ("file", "loss", "of the file afterwards", "of the source", "difference")
    print(rendered(f"{chosen.steps} steps of gradient descent", header, rows))


if __name__ == "__main__":
    main()
