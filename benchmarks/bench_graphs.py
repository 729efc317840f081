"""The graphs that `jaxport` writes against those of `torch.onnx`: the same architectures, written in JAX and in PyTorch.

`python -m benchmarks.bench_graphs [NAME …]`, in the environment that `make test-torch` makes:
`.venv-torch/bin/python`. Both files run in ONNX Runtime on one thread, in turns in one process; `jax.jit` runs in
another. PyTorch's files are kept without weights in `out/graphs` and exported again when they are gone.
`--operators` prints of which operators there are more in our files, `--opset 23` asks PyTorch for that operator set, which
has `Attention`; `--write` makes `docs/graphs.md`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks.graphs.pairs import PAIRS
from benchmarks.measure import ROOT, rendered, run

KEPT = ROOT / "out" / "graphs"
EXPORT = """
from pathlib import Path
from benchmarks.graphs.files import write_theirs
from benchmarks.graphs.pairs import PAIRS
write_theirs(PAIRS[{name!r}], {size!r}, {opset}, Path({path!r}))
"""
COMPARE = """
from pathlib import Path
from benchmarks.graphs.comparing import compared
result = compared({name!r}, Path({path!r}), {repeats}, {size!r})
"""
JIT = """
from benchmarks.graphs.comparing import in_jax
result = {{"jit": in_jax({name!r}, {repeats}, {size!r})}}
"""
PAGE = """# Exported graphs compared with PyTorch's

See here how the graphs that jaxport exports compare with PyTorch's, in size and speed. The same architectures were written in
JAX and in PyTorch, each as its users write them, with random weights at the published sizes. They were exported by
`jaxport.to_onnx` and by `torch.onnx.export(dynamo=True)`, each in its default operator set. Both files run in ONNX Runtime on
one thread, alternating in one process; figures are medians of CPU time. A ratio below 1 means that jaxport's file is faster.
Node counts are given for the file and after ONNX Runtime has optimized it; they include the bodies of loops but not
constants. The last column compares with a call under `jax.jit`, also on one thread.

Both sides have the same number of weights, except that PyTorch's recurrent layers have one more bias per gate. `llama_scan`,
`mamba` and `mamba_associative` are compared with files in which layers and steps are unrolled. The code is in
`benchmarks/graphs`; `.venv-torch/bin/python -m benchmarks.bench_graphs --write` writes this page.
"""
HEADER = [
    "model", "sizes", "weights, millions", "nodes", "nodes, PyTorch", "file, MB", "file, MB, PyTorch", "ms",
    "ratio to PyTorch's", "ratio to `jax.jit`",
]  # fmt: skip


def measured(name: str, size: str, opset: int | None, repeats: int) -> dict[str, Any]:
    """Everything about one pair; PyTorch's file is exported unless it is there."""
    module = PAIRS[name].torch.split(".")[-1]
    path = KEPT / f"{'_'.join([module, *PAIRS[name].given])}.{size}.{opset or 'default'}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.with_suffix(".json").exists():
        run(EXPORT.format(name=name, size=size, opset=opset, path=str(path)))
    found = run(COMPARE.format(name=name, size=size, path=str(path), repeats=repeats))
    return found | run(JIT.format(name=name, size=size, repeats=repeats))


def row(name: str, found: dict[str, Any]) -> tuple[object, ...]:
    """The cells of a model."""
    counts = [
        " → ".join(str(sum(found[stage][side].values())) for stage in ("nodes", "optimized"))
        for side in ("ours", "theirs")
    ]
    megabytes = [found["bytes"][side] / 1e6 for side in ("ours", "theirs")]
    sizes = ", ".join(f"{dim}={size}" for dim, size in PAIRS[name].sizes.items())
    ours = found["ours"]
    parameters = found["parameters"] / 1e6
    return name, sizes, parameters, *counts, *megabytes, ours, ours / found["theirs"], ours / found["jit"]


def more(found: dict[str, Any], stage: str) -> str:
    """Of which operators there are more in our file than in PyTorch's, and of which fewer."""
    ours, theirs = found[stage]["ours"], found[stage]["theirs"]
    differences = {each: ours.get(each, 0) - theirs.get(each, 0) for each in ours.keys() | theirs.keys()}
    ordered = sorted(differences.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{operator} {count:+}" for operator, count in ordered if count)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(PAIRS)}; all if none")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--opset", type=int, help="of PyTorch's files; by default what PyTorch chooses")
    parser.add_argument("--size", choices=["small", "real"], default="real")
    options = parser.parse_args()
    if options.write and (options.names or options.opset or options.size != "real"):
        parser.error("--write is for all models as they are by default")

    rows = []
    for name in options.names or PAIRS:
        found = measured(name, options.size, options.opset, options.repeats)
        rows.append(row(name, found))
        print(rows[-1], file=sys.stderr, flush=True)
        if options.operators:
            for stage in ("nodes", "optimized"):
                print(f"  {stage}: {more(found, stage)}", file=sys.stderr, flush=True)
    medians = [statistics.median(cells[index] for cells in rows) for index in (-2, -1)]
    page = rendered("Median ratio: {:.2f} to PyTorch's, {:.2f} to `jax.jit`".format(*medians), HEADER, rows)
    print(page)
    if options.write:
        (ROOT / "docs" / "graphs.md").write_text(PAGE + page + "\n")


if __name__ == "__main__":
    main()
