"""Models of PyTorch, imported and compared with ONNX Runtime: `python -m tests.torch.imported FOLDER` prints a table.

This file needs no PyTorch: the folder holds what `tests.torch.models` made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxport
from jaxport.importer.tracing import input_specs, with_constraints
from jaxport.verify.importing import Comparison, Run


def comparisons(path: Path) -> Iterator[Any]:
    """How each output of a model compares, at each of its two sets of inputs."""
    program = jaxport.from_onnx(path)
    comparison = Comparison(program, threads=1)
    name = path.name.partition(".")[0]
    for number in range(2):
        arrays = dict(np.load(path.with_name(f"{name}.{number}.npz")))
        run = Run({"set": number}, {key: arrays[key] for key in program.input_names})
        yield from comparison.compared(run, comparison.in_runtime(run)(), comparison.in_jax(run)())


def traces_symbolically(path: Path) -> str:
    """Nothing if the program traces with sizes that only have names, else why not."""
    program = jaxport.from_onnx(path)
    try:
        with jax.enable_x64(True):
            with_constraints(lambda known: jax.eval_shape(program, *input_specs(program, known).values()))
    except jaxport.JaxportError as error:
        return " | ".join(str(error).splitlines()[:2])
    return ""


def main(folder: str) -> None:
    """Prints one line for each model."""
    for path in sorted(Path(folder).glob("*.onnx")):
        try:
            found = list(comparisons(path))
            wrong = [f"{output.name}: {output.difference.problem}" for output in found if not output.ok]
            error = max(output.difference.relative for output in found)
            line = "; ".join(wrong) or f"equal, largest error {error:.1e}"
            line += f"   symbolic: {traces_symbolically(path) or 'yes'}"
        except jaxport.JaxportError as error:
            line = f"{type(error).__name__}: {' | '.join(str(error).splitlines()[:3])}"
        print(f"{path.name:28} {line}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
