"""Every example at its published size: exported, run on both sides at two sets of sizes, and put on a page.

`python -m benchmarks.bench_examples --measure [model ...]` measures, of all models or of these, prints what it finds, and
keeps it in `examples.json`. `python -m benchmarks.bench_examples --write` writes `docs/examples.md` and its pictures from
what was measured.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import numpy as np

import jaxport
from benchmarks import gallery
from examples.models import MODELS, Framework, build
from examples.models.comparing import Comparison, compare


def measured(name: str, framework: Framework) -> tuple[dict[str, Any], float]:
    """Export one cell and compare it: its error, its operators, its size; and the seconds of the export."""
    example = build(name, framework, "real")
    start = time.process_time()
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    seconds = time.process_time() - start
    found: list[Comparison] = []
    for sizes in example.sizes:
        found += compare(example, exported, example.sample(np.random.default_rng(0), sizes))
    assert all(comparison.ok for comparison in found), (name, framework, found)
    worst = max(found, key=lambda comparison: comparison.error)
    exact = {} if worst.exact is None else {"from_float64": worst.exact, "jax_from_float64": worst.exact_jax}
    return {
        "error": worst.error,
        **exact,
        "operators": sum(1 for _ in exported.model.graph.all_nodes()),
        "bytes": sum(w.const_value.nbytes for w in exported.model.graph.initializers.values() if w.const_value),
    }, seconds


def measure(names: list[str]) -> None:
    figures = gallery.figures()
    for name in names:
        cells, seconds = {}, []
        for framework in MODELS[name]:
            cells[framework], took = measured(name, framework)
            seconds.append(took)
            print(name, framework, cells[framework], f"{took:.3g} s", flush=True)
            gc.collect()
        figures[name] = {"seconds": [float(f"{edge(seconds):.3g}") for edge in (min, max)], "frameworks": cells}
        gallery.FIGURES.write_text(f"{json.dumps(figures, indent=1)}\n")


def write() -> None:
    gallery.PAGE.write_text(gallery.page())
    gallery.PICTURES.mkdir(exist_ok=True)
    for name in MODELS:
        (gallery.PICTURES / f"{name}.svg").write_text(gallery.drawn(name))


def main() -> None:
    named = [name for name in sys.argv[1:] if not name.startswith("--")]
    if "--measure" in sys.argv:
        measure(named or list(MODELS))
    if "--write" in sys.argv:
        write()
    if not {"--measure", "--write"} & set(sys.argv):
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
