"""Printed crates for Burn beside the source for Flax NNX of the same model: lines of code, and where weights are.

python -m benchmarks.burn.structure [FOLDER] [--every N] [--write rows.json]

Without a folder of files of PyTorch, the examples at their small sizes are measured. A line of code is neither blank nor a
comment or documentation; `model.rs` and `model.py` are counted as a whole, with what loads and saves weights.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jaxport
from examples.models import build, cells
from jaxport.errors import JaxportError
from tests.architecture.sources import code_lines
from tests.torch.imported import Checks

#: What the frameworks call parts of one layer otherwise.
PARTS = re.compile(r"\.(dense_[ih]|\w+_gate\.\w+_transform)$")


class Row(NamedTuple):
    """The figures of a model.

    Attributes:
      nnx: lines of code for Flax NNX.
      burn: lines of code for Burn.
      weights: the tensors of the file that both have.
      moved: those that are in another module there.
    """

    name: str
    nnx: int
    burn: int
    weights: int
    moved: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.burn / self.nnx


def rust_lines(text: str) -> int:
    """Return the lines of code of Rust.

    >>> rust_lines("/// Twice.\\n\\nfn twice(x: i64) -> i64 {\\n    2 * x // always\\n}\\n")
    3
    """
    return sum(bool(line.strip()) and not line.strip().startswith("//") for line in text.splitlines())


def module_of(path: str) -> str:
    """Return the module of a weight, as it is called in all frameworks.

    >>> module_of("blocks.0.mlp.layers_0.weight") == module_of("blocks.0.MLP.layers.0.kernel")
    True
    """
    module = PARTS.sub("", path.rpartition(".")[0])
    module = re.sub(r"\blayers[._](?=\d)", "", re.sub(r"\.output$", ".out", module).lower())
    return re.sub(r"[^a-z0-9]", "", module)


def measured(name: str, program: jaxport.Program, inputs: Mapping | None = None) -> Row:
    """Print a program for both frameworks."""
    nnx, burn = (program.to_source(inputs=inputs, framework=framework) for framework in ("nnx", "burn"))
    places: list[dict[str, set[str]]] = []
    for source in (nnx, burn):
        modules: dict[str, set[str]] = {}
        for path, tensor in source.origins.items():
            modules.setdefault(tensor, set()).add(module_of(path))
        places.append(modules)
    both = places[0].keys() & places[1].keys()
    moved = tuple(sorted(tensor for tensor in both if places[0][tensor] != places[1][tensor]))
    return Row(name, code_lines(nnx.code), rust_lines(burn.code), len(both), moved)


def programs(folder: Path | None) -> Iterator[tuple[str, jaxport.Program, Mapping | None]]:
    """Yield the models, each with what it is recorded with."""
    if folder is None:
        for cell in cells():
            example = build(*cell, "small")
            model = jaxport.to_onnx(example.fn, list(example.inputs), **example.options).model
            yield "/".join(cell), jaxport.from_onnx(model), None
        return
    for path in sorted(folder.glob("*.onnx")):
        checks = Checks(path)
        yield path.stem, checks.program, checks.recorded_with()


def main() -> None:
    """Measure, and print a row for each model and a summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.burn.structure", description=main.__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take each Nth model only")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where the rows go, as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for number, (name, program, inputs) in enumerate(programs(arguments.folder)):
        if number % arguments.every:
            continue
        try:
            row = measured(name, program, inputs)
        except JaxportError as error:
            print(f"{name:40} {' '.join(str(error).split())[:100]}", flush=True)
            continue
        rows.append(row)
        print(f"{row.name:40} {row.nnx:5} {row.burn:5} {row.ratio:5.2f}  {', '.join(row.moved)[:80]}", flush=True)
    ratios = sorted(row.ratio for row in rows)
    within = sum(ratio <= 1.8 for ratio in ratios)
    print(
        f"\n{len(rows)} models: {sum(row.burn for row in rows)} lines of Rust, {sum(row.nnx for row in rows)} of Python"
    )
    print(f"ratio: median {statistics.median(ratios):.2f}, largest {ratios[-1]:.2f}, at most 1.8 in {within}")
    print(f"weights in another module: {sum(len(row.moved) for row in rows)} of {sum(row.weights for row in rows)}")
    if arguments.write:
        arguments.write.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
