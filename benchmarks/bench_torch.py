"""Imported models of PyTorch at their published sizes: CPU time of a call under `jax.jit` against ONNX Runtime.

Of `program.apply(params, x)`, which computes with whatever weights it is given, and of `program(x)`, of which XLA computes
once what depends on the weights alone, as ONNX Runtime does.

`python -m benchmarks.bench_torch [NAME …]`, in the environment that `make test-torch` makes: `.venv-torch/bin/python`.
Both sides have one thread, and are called in turns in one process. `--keep FOLDER` leaves the files of the models there,
and times those that are there already; `--write` makes `docs/speed.md` of the table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import ROOT, rendered, run

EXPORT = """
import logging, warnings
from pathlib import Path
import numpy as np
from tests.torch.exporting import export_case
from tests.torch.published import PUBLISHED
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
case, sizes = PUBLISHED[{name!r}]
path = Path({path!r})
(inputs,) = export_case(case, [sizes], {exporter!r}, {opset}, path)
np.savez(path.with_suffix(".npz"), **inputs)
"""
SPEED = """
from pathlib import Path
import jax
import numpy as np
import jaxport
from benchmarks.measure import in_turns
from jaxport.verify import difference
from jaxport.verify.importing import Comparison
from jaxport.verify.running import Run
jax.config.update("jax_enable_x64", True)  # words are int64
path = Path({path!r})
program = jaxport.from_onnx(path)
comparison = Comparison(program, threads=1)
made = Run({{}}, dict(np.load(path.with_suffix(".npz"))))
made = Run({{}}, {{name: made.arrays[name] for name in program.input_names}})
free = jax.jit(lambda params, inputs: program.apply(params, **inputs)).lower(program.params, made.arrays).compile()
frozen = jax.jit(lambda inputs: program(**inputs)).lower(made.arrays).compile()
calls = [lambda: jax.block_until_ready(free(program.params, made.arrays)), comparison.in_runtime(made),
         lambda: jax.block_until_ready(frozen(made.arrays))]
pairs = zip(comparison.in_jax(made)(), comparison.in_runtime(made)(), strict=True)
applied, runtime, called = in_turns(calls, {repeats})
result = {{"apply": applied, "call": called, "runtime": runtime, "apply_ratio": applied / runtime, "call_ratio": called / runtime,
          "error": max(difference(theirs, ours).relative for ours, theirs in pairs)}}
"""
PAGE = """# Speed of imported models

See here how fast an imported model runs in JAX, compared with ONNX Runtime. These are PyTorch models at their published sizes
with random weights; the inputs are texts of 128 tokens (one token if the model takes a cache), images of 224 × 224 pixels, and
a batch of one. Figures are the median CPU time of a call under `jax.jit` on one thread, and its ratio to that of ONNX Runtime
in the same process. `program.apply(params, x)` takes the weights as an argument, as training needs; for `program(x)`, XLA
computes whatever depends only on the weights once, as ONNX Runtime does.
`.venv-torch/bin/python -m benchmarks.bench_torch --write` writes this page.
"""
HEADER = [
    "model",
    "exporter",
    "`apply`, ms",
    "call, ms",
    "ONNX Runtime, ms",
    "`apply` ratio",
    "call ratio",
    "largest error",
]
KEYS = ("apply", "call", "runtime", "apply_ratio", "call_ratio", "error")
EXPORTERS = (("dynamo", 20), ("legacy", 17))
"""In turns, with the operator set that each is asked for."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    from tests.torch.published import PUBLISHED

    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for index, name in enumerate(PUBLISHED):
            if options.names and name not in options.names:
                continue
            exporter, opset = EXPORTERS[index % len(EXPORTERS)]
            path = folder / f"{name.replace(' ', '_').replace('/', '')}.{exporter}.onnx"
            if not path.with_suffix(".npz").exists():
                run(EXPORT.format(name=name, path=str(path), exporter=exporter, opset=opset))
            found = run(SPEED.format(path=str(path), repeats=options.repeats))
            rows.append((name, exporter, *(found[key] for key in KEYS)))
            print(rows[-1], file=sys.stderr, flush=True)
            if options.keep is None:
                path.unlink()
    medians = [statistics.median(row[KEYS.index(key) + 2] for row in rows) for key in ("apply_ratio", "call_ratio")]
    title = "Median ratio: {:.2f} for `program.apply(params, x)`, {:.2f} for `program(x)`".format(*medians)
    print(rendered(title, HEADER, rows))
    if options.write:
        (ROOT / "docs" / "speed.md").write_text(PAGE + rendered(title, HEADER, rows) + "\n")


if __name__ == "__main__":
    main()
