"""Exports of this checkout against those of another one: what a change has done to graphs, to their speed and to exporting.

`python -m benchmarks.bench_before FOLDER [NAME …]`; the folder is a checkout of an earlier revision (`git worktree add`).
The models are those of `benchmarks/graphs`. Each is exported in a process of its own per checkout; both files run in ONNX
Runtime on one thread, in turns in one process. Figures are medians of CPU time. Nodes are those of the file, and of the graph
that ONNX Runtime makes of it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.graphs.pairs import PAIRS
from benchmarks.measure import ROOT, run, table

EXPORT = """
from pathlib import Path
import time
from benchmarks.graphs.files import write_ours
from benchmarks.graphs.pairs import PAIRS
pair = PAIRS[{name!r}]
example = pair.make({size!r})
start = time.process_time()
write_ours(pair, example, Path({path!r}))
result = {{"seconds": time.process_time() - start}}
"""
COMPARE = """
from pathlib import Path
import onnx
from benchmarks.graphs.comparing import called, operators, optimized
from benchmarks.graphs.pairs import PAIRS
from benchmarks.measure import in_turns
pair, paths = PAIRS[{name!r}], [Path(path) for path in {paths!r}]
example = pair.make({size!r})
arrays = pair.arrays(pair.arguments(example, pair.dims(example, {size!r})))
calls = [called(path, arrays) for path in paths]
[call() for call in calls]
result = {{
    "milliseconds": in_turns(calls, {repeats}),
    "nodes": [sum(operators(onnx.load(path, load_external_data=False)).values()) for path in paths],
    "optimized": [sum(optimized(path).values()) for path in paths],
    "bytes": [sum(file.stat().st_size for file in path.parent.glob(path.name + "*")) for path in paths],
}}
"""
HEADER = [
    "model",
    "nodes, before",
    "nodes",
    "file, MB, before",
    "file, MB",
    "ms, before",
    "ms",
    "ratio",
    "export, ratio",
]


def measured(name: str, before: Path, size: str, repeats: int) -> dict[str, Any]:
    """Export a model with both checkouts, and run both files."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{side}.onnx") for side in ("before", "after")]
        exported = [
            run(EXPORT.format(name=name, size=size, path=path), source=source)["seconds"]
            for path, source in zip(paths, (before / "src", ROOT / "src"), strict=True)
        ]
        found = run(COMPARE.format(name=name, size=size, paths=paths, repeats=repeats))
    return found | {"exported": exported}


def row(name: str, found: dict[str, Any]) -> tuple[object, ...]:
    """Return the cells of a model."""
    counts = [f"{made} → {left}" for made, left in zip(found["nodes"], found["optimized"], strict=True)]
    before, after = found["milliseconds"]
    megabytes = [size / 1e6 for size in found["bytes"]]
    one, other = found["exported"]
    return name, *counts, *megabytes, before, after, after / before, other / one


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Compare exports with those of another checkout.")
    parser.add_argument("before", type=Path, help="the folder of the other checkout")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*PAIRS, []], help="models; all by default")
    parser.add_argument("--size", default="real", choices=["small", "real"])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    rows = []
    for name in options.names or PAIRS:
        rows.append(row(name, measured(name, options.before.resolve(), options.size, options.repeats)))
        print(*(f"{cell:.3g}" if isinstance(cell, float) else cell for cell in rows[-1]), sep=" | ", flush=True)
    table("Exports", HEADER, rows)
    for place in (-2, -1):
        print(f"{HEADER[place]}: median {statistics.median(cells[place] for cells in rows):.2f}")


if __name__ == "__main__":
    main()
