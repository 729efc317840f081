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
from examples.models.comparing import Comparison, compare

PAGE = """# Examples

Whole models, written as users of each framework write them, with random weights at the published sizes. Each is
exported with symbolic dimensions and compared with `jax.jit` in float32 at two sets of sizes. The figure of a cell is
the largest error of any output element, relative to the largest element of that output. Where rounding is amplified
beyond 1e-5, both sides are held against float64, and the cell says how far the exported model and JAX itself are from
that. The code is in `examples/models`; `python -m benchmarks.bench_examples --write` makes this page.

"""


def measured(name: str, framework: str) -> dict[str, object]:
    """Export one cell and compare it: its error, its size, its time."""
    example = build(name, framework, "real")
    start = time.process_time()
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    seconds = time.process_time() - start
    found: list[Comparison] = []
    for sizes in example.sizes:
        found += compare(example, exported, example.sample(np.random.default_rng(0), sizes))
    assert all(comparison.ok for comparison in found), (name, framework, found)
    operators = collections.Counter(node.op_type for node in exported.model.graph.all_nodes())
    return {
        "error": _cell(max(found, key=lambda comparison: comparison.error)),
        "megabytes": sum(weight.const_value.nbytes for weight in exported.model.graph.initializers.values()) / 2**20,
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
        cells = [f"{results[f]['error']}" if f in results else "" for f in FRAMEWORKS]
        spans = [_span([r[key] for r in results.values()]) for key in ("megabytes", "nodes", "seconds")]
        lines.append(f"| {name} | {' | '.join([*cells, *spans])} |")
    table = "\n".join(lines)
    print(table)
    if "--write" in sys.argv:
        (ROOT / "docs" / "examples.md").write_text(f"{PAGE}{table}\n")


def _cell(worst: Comparison) -> str:
    text = f"{worst.error:.1e}"
    return text if worst.exact is None else f"{text} (from float64: {worst.exact:.1e}, JAX: {worst.exact_jax:.1e})"


def _span(values: list) -> str:
    """One figure, or the least and the most of several."""
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
