"""Imported models of PyTorch at their published sizes: CPU time of a call under `jax.jit` against ONNX Runtime.

Of `program.apply(params, x)`, which computes with whatever weights it is given, and of `program(x)`, of which XLA computes
once what depends on the weights alone, as ONNX Runtime does.

`python -m benchmarks.bench_torch [NAME …]`, in the environment that `make test-torch` makes: `.venv-torch/bin/python`.
Both sides have one thread, and are called in turns in one process. `--keep FOLDER` leaves the files of the models there,
and times those that are there already.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import run, table

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
import time
from pathlib import Path
import jax
import numpy as np
import jaxport
from jaxport.verify import difference
from jaxport.verify.importing import Comparison, Run
path = Path({path!r})
program = jaxport.from_onnx(path)
comparison = Comparison(program, threads=1)
made = Run({{}}, dict(np.load(path.with_suffix(".npz"))))
made = Run({{}}, {{name: made.arrays[name] for name in program.input_names}})
with jax.enable_x64(True):
    frozen = jax.jit(lambda inputs: program(**inputs)).lower(made.arrays).compile()
calls = [comparison.in_jax(made), comparison.in_runtime(made), lambda: jax.block_until_ready(frozen(made.arrays))]
pairs = zip(*(call() for call in calls[:2]), strict=True)
seconds = [[], [], []]
for _ in range({repeats}):
    for call, into in zip(calls, seconds):
        start = time.process_time()
        call()
        into.append(time.process_time() - start)
ours, theirs, frozen = (1000 * sorted(each)[len(each) // 2] for each in seconds)
result = {{"apply": ours, "call": frozen, "runtime": theirs, "apply_ratio": ours / theirs, "call_ratio": frozen / theirs,
          "error": max(difference(theirs, ours).relative for ours, theirs in pairs)}}
"""
KEYS = ("apply", "call", "runtime", "apply_ratio", "call_ratio", "error")
EXPORTERS = (("dynamo", 20), ("legacy", 17))
"""In turns, with the operator set that each is asked for."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keep", type=Path)
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
    table(
        f"CPU time of a call, one thread: median ratio {medians[0]:.2f} of `apply(params, x)`, {medians[1]:.2f} of `program(x)`",
        [
            "model",
            "exporter",
            "apply, ms",
            "call, ms",
            "ONNX Runtime, ms",
            "apply ratio",
            "call ratio",
            "largest error",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
