"""`make demo`: a Flax NNX ResNet-50 with a dynamic batch goes to ONNX, is verified, runs in ONNX Runtime, and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from rich.console import Console
from rich.text import Text

import jaxport
from examples.models import Size, build
from jaxport.cli.summary import summarize
from jaxport.cli.tables import file_size, key_values, operator_table, shape_text
from jaxport.columns import counted
from jaxport.printable import printable

BATCHES = (1, 4)


def main(size: Size = "real", folder: Path = Path("out")) -> None:
    """Runs the demo, and leaves `resnet50.onnx` in `folder`."""
    console = Console(highlight=False)
    console.print(f"\n[bold]jaxport {size} ResNet-50[/]: Flax NNX → ONNX → ONNX Runtime, and back to JAX\n")

    example = build("resnet50", "nnx", size)
    graph_definition, weights = nnx.split(example.fn)
    in_jax = jax.jit(lambda weights, x: nnx.merge(graph_definition, weights)(x))

    console.print(f"exporting with inputs {list(example.inputs)} …")
    exported, export_seconds = timed(lambda: jaxport.to_onnx(example.fn, example.inputs))
    folder.mkdir(exist_ok=True)
    path = folder / "resnet50.onnx"
    exported.save(path)

    console.print(f"verifying at batches of {' and '.join(map(str, BATCHES))} …")
    report = exported.verify(sizes=[{"B": batch} for batch in BATCHES])  # raises where the two sides differ

    console.print("timing both sides …")
    rows: dict[str, object] = {}
    for batch, output in zip(BATCHES, report.outputs, strict=True):
        (x,) = example.sample(np.random.default_rng(0), {"B": batch})
        jax_seconds = best_of(lambda x=x: jax.block_until_ready(in_jax(weights, x)))
        onnx_seconds = best_of(lambda x=x: exported(x))
        rows[f"batch of {batch}"] = (
            f"relative error {output.difference.relative:.1e}, "
            f"JAX {1000 * jax_seconds:.0f} ms, ONNX Runtime {1000 * onnx_seconds:.0f} ms"
        )

    console.print("importing it back, and comparing again …")
    program, import_seconds = timed(lambda: jaxport.from_onnx(path))
    imported = program.verify(sizes=[{"B": batch} for batch in BATCHES])
    program.to_source(folder / "resnet50")
    worst = max(output.difference.relative for output in imported.outputs)

    summary = summarize(path)
    console.print()
    console.print(operator_table(summary.operators))
    console.print()
    console.print(
        key_values(
            {
                "weights": f"{counted(summary.element_count, 'element')}, {file_size(summary.weight_bytes)}",
                "inputs": ", ".join(f"{t.name} {t.dtype}{shape_text(t)}" for t in summary.inputs),
                "outputs": ", ".join(f"{t.name} {t.dtype}{shape_text(t)}" for t in summary.outputs),
                "export": f"{export_seconds:.1f} s",
                **rows,
                "file": f"{path.resolve()} ({file_size(summary.file_bytes)})",
                "imported back": f"in {import_seconds:.2f} s, relative error {worst:.1e}, source in {folder / 'resnet50'}",
            }
        )
    )
    console.print()
    outermost = [line for line in program.modules.lines() if not line.startswith(" ")]
    lines = map(printable, [program.modules.type, *outermost])
    console.print(key_values({"modules": Text("\n".join(lines))}))
    console.print(f"\nLook into it with [bold].venv/bin/jaxport inspect {path}[/]\n")


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its seconds."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def best_of(call: Callable[[], Any], repetitions: int = 3) -> float:
    """The seconds of the fastest of some calls, after one that compiles."""
    call()
    return min(timed(call)[1] for _ in range(repetitions))


if __name__ == "__main__":
    main()
