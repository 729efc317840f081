"""Every example at its published size: exported, run on both sides at two sets of sizes, and reported.

`python -m benchmarks.bench_examples [model ...]` prints the table; with `--write` it becomes `docs/examples.md`.
"""

from __future__ import annotations

import collections
import gc
import sys
import time

import numpy as np

import jaxport
from benchmarks.measure import ROOT
from examples.models import FRAMEWORKS, MODELS, build
from jaxport.export.saving import weight_bytes

PAGE = """# Examples

Whole models, written as users of each framework write them, with random weights at the published sizes. Each is
exported with symbolic dimensions and compared with `jax.jit` in float32 at two sets of sizes. The figure of a cell is
the largest error of any output element, relative to the largest element of that output. The code is in
`examples/models`; `python -m benchmarks.bench_examples --write` makes this page.

"""


def measured(name: str, framework: str) -> dict[str, object]:
    """Export one cell and compare it: its error, its size, its time."""
    example = build(name, framework, "real")
    start = time.process_time()
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    seconds = time.process_time() - start
    error = 0.0
    for sizes in example.sizes:
        arguments = example.sample(np.random.default_rng(0), sizes)
        report = exported.verify(list(arguments))
        error = max(error, *(output.difference.relative for output in report.outputs))
    operators = collections.Counter(node.op_type for node in exported.model.graph.all_nodes())
    return {
        "error": error,
        "megabytes": weight_bytes(exported.model) / 2**20,
        "nodes": operators.total(),
        "transposes": operators["Transpose"],
        "seconds": seconds,
    }


def main() -> None:
    wanted = [name for name in sys.argv[1:] if not name.startswith("--")] or list(MODELS)
    lines = [
        f"| model | {' | '.join(FRAMEWORKS)} | weights, MB | nodes | CPU seconds to export |",
        f"|---|{'---:|' * (len(FRAMEWORKS) + 3)}",
    ]
    for name in wanted:
        results = {}
        for framework in MODELS[name]:
            results[framework] = measured(name, framework)
            print(name, framework, results[framework], file=sys.stderr, flush=True)
            gc.collect()
        cells = [f"{results[f]['error']:.1e}" if f in results else "" for f in FRAMEWORKS]
        spans = [_span([r[key] for r in results.values()]) for key in ("megabytes", "nodes", "seconds")]
        lines.append(f"| {name} | {' | '.join([*cells, *spans])} |")
    table = "\n".join(lines)
    print(table)
    if "--write" in sys.argv:
        (ROOT / "docs" / "examples.md").write_text(f"{PAGE}{table}\n")


def _span(values: list) -> str:
    """One figure, or the least and the most of several."""
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
