"""`make demo`: a Flax NNX ResNet-50 with a dynamic batch goes to ONNX, is verified, runs in ONNX Runtime, and comes
back.
"""

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
from jaxport.cli.tables import file_size, key_values, operator_table, shape_text, table
from jaxport.columns import counted
from jaxport.printable import printable

BATCHES = (1, 4)
LINES = 20


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
    samples = [example.sample(np.random.default_rng(0), {"B": batch})[0] for batch in BATCHES]
    seconds = [
        (best_of(lambda x=x: jax.block_until_ready(in_jax(weights, x))), best_of(lambda x=x: exported(x)))
        for x in samples
    ]

    console.print("importing it back, and comparing again …")
    program, import_seconds = timed(lambda: jaxport.from_onnx(path))
    imported = program.verify(sizes=[{"B": batch} for batch in BATCHES])
    source = program.to_source(folder / "resnet50")

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
                "import": f"{import_seconds:.1f} s",
                "file": f"{path} ({file_size(summary.file_bytes)})",
            }
        )
    )

    # A column each: no number is parted from its unit, however narrow the terminal is.
    columns = ["batch", "exported", "imported back", "JAX", "ONNX Runtime"]
    compared = [
        (
            batch,
            f"{output.difference.relative:.1e}",
            f"{again.difference.relative:.1e}",
            *(f"{1000 * each:.1f} ms" for each in times),
        )
        for batch, output, times, again in zip(BATCHES, report.outputs, seconds, imported.outputs, strict=True)
    ]
    console.print()
    console.print(table("largest relative differences, and times of one call", columns, compared))
    (x, *_) = samples
    sides = {"JAX": in_jax(weights, x), "ONNX Runtime": exported(x), "imported back": program(x)}
    rows = [(name, *(f"{value:.6f}" for value in np.ravel(values)[:4])) for name, values in sides.items()]
    console.print()
    console.print(table("the first outputs of a batch of 1", ["", *map(str, range(4))], rows, right="0123"))

    console.print()
    outermost = [line for line in program.modules.lines() if not line.startswith(" ")]
    lines = map(printable, [f"{program.modules.type}, and the parameters of its parts", *outermost])
    console.print(key_values({"modules": Text("\n".join(lines))}))

    console.print(
        f"\n[bold]{folder / 'resnet50' / 'model.py'}[/], {LINES} of its {source.code.count(chr(10))} lines:\n"
    )
    whole = source.code[source.code.rindex("\nclass ") :].partition("\n\n\n")[0]  # the model's own class
    for line in whole.strip().splitlines()[:LINES]:
        console.print(Text(printable(line)), soft_wrap=True)

    console.print("\nNext:")
    for command, what in (
        (f"inspect {path}", "the inputs, the operators, the modules"),
        (f"run {path} --random", "the file in JAX and in ONNX Runtime, timed"),
        (f"import {path} --framework burn -o {folder / 'crate'}", "the same in Rust"),
    ):
        console.print(f"  [bold].venv/bin/jaxport {command}[/]\n    {what}")
    console.print()


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
