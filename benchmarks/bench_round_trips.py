"""Round trips: the nodes of files, and those of the same files after `from_onnx` and `to_onnx`.

python -m benchmarks.bench_round_trips FOLDER [NAME …]     # every file; `--every 4` takes each fourth one
python -m benchmarks.bench_round_trips --suite             # the cases of ONNX's backend suite, by operator
python -m benchmarks.bench_round_trips --table FOLDER      # the table of the last run again

Nodes of subgraphs and of functions count, those of operator `Constant` do not. Each new file runs in ONNX Runtime and is
compared with the first one. `rows.trips.jsonl` in the folder holds a row for each file.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

import jaxport
from benchmarks.measure import rendered
from jaxport.errors import JaxportError
from jaxport.graph.editing import graphs, operator_name
from jaxport.importer.assumptions import with_assumptions
from jaxport.importer.input_specs import input_specs
from jaxport.verify import difference
from jaxport.verify.importing import Comparison

ROWS = "rows.trips.jsonl"
GROWN = 1.1
HEADER = ("file", "before", "after", "ratio", "difference", "more of")


def operators(model: ir.Model) -> Counter[str]:
    """The operators of a model with their counts, those of its subgraphs and functions too."""
    return Counter(operator_name(node) for graph in graphs(model) for node in graph if node.op_type != "Constant")


def measured(path: Path) -> dict[str, Any]:
    """The figures of a file."""
    program = jaxport.from_onnx(path)
    before = operators(program.model)
    row: dict[str, Any] = {"before": before.total()}
    comparison = Comparison(program, threads=1)
    given = [dict(np.load(beside)) for beside in sorted(path.parent.glob(f"{path.stem}.[0-9].npz"))]
    samples = [{name: arrays[name] for name in program.input_names} for arrays in given]
    if not samples:
        samples = [dict(run.arrays) for run in comparison.runs(None, None, 0)]
    with jax.enable_x64(True):
        try:
            specs = with_assumptions(lambda known: traced(program, input_specs(program, known)))
        except JaxportError as error:
            row["fixed"] = str(error)[:200]
            specs = {key: jax.ShapeDtypeStruct(value.shape, value.dtype) for key, value in samples[-1].items()}
    exported = jaxport.to_onnx(program, list(specs.values()), double_precision=True)
    after = operators(exported.model)
    row |= {"after": after.total(), "more": dict((after - before).most_common(12))}
    for sample in samples[-1:]:
        inputs = dict(zip(exported.input_names, (sample[name] for name in program.input_names), strict=True))
        expected, results = comparison.session.run(sample), exported.run(inputs)
        row["difference"] = max(map(relative_difference, results, expected))
    return row


def traced(program: jaxport.Program, specs: dict[str, Any]) -> dict[str, Any]:
    jax.eval_shape(program, *specs.values())
    return specs


def relative_difference(result: Any, expected: Any) -> float:
    """The largest difference relative to the largest element; infinite if shapes or what is not finite differ."""
    one, other = np.asarray(result), np.asarray(expected)
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.dtype.kind not in "fV" or one.dtype.kind == "O":
        return 0.0 if np.array_equal(one, other) else float("inf")
    one, other = one.astype(np.float64), other.astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    finite = np.isfinite(other)
    scale = float(np.abs(other[finite]).max(initial=0)) or 1.0
    return float(np.abs(one - other)[finite].max(initial=0)) / scale


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, those that grow most first, and the figures over all files."""
    done = sorted((row for row in rows if "after" in row), key=lambda row: -row["after"] / max(row["before"], 1))
    cells = [
        (
            row["file"], row["before"], row["after"], f"{row['after'] / max(row['before'], 1):.2f}",
            f"{row['difference']:.0e}" if "difference" in row else "",
            ", ".join(f"{count} {name}" for name, count in row["more"].items()),
        )
        for row in done
    ]  # fmt: skip
    more: Counter[str] = Counter()
    for row in done:
        if row["after"] > row["before"]:
            more.update(row["more"])
    ratios = [row["after"] / max(row["before"], 1) for row in done]
    facts = [
        f"{len(rows)} files, {len(done)} come back",
        f"more nodes: {sum(ratio > 1 for ratio in ratios)}, by more than 10 %: {sum(ratio > GROWN for ratio in ratios)}, "
        f"by half and more: {sum(ratio >= 1.5 for ratio in ratios)}",
        f"differ by more than 1e-3: {sum(row.get('difference', 0) > 1e-3 for row in done)}",
        f"operators of the growth: {', '.join(f'{count} {name}' for name, count in more.most_common(20))}",
        *(f"{row['file']}: {row['failed']}" for row in rows if "failed" in row),
    ]
    return rendered("Round trips", HEADER, cells) + "\n\n" + "".join(f"- {fact}\n" for fact in facts)


def rows_of(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            yield {"file": path.stem, **measured(path)}
        except Exception as error:  # noqa: BLE001  what fails is what is looked for
            yield {"file": path.stem, "failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        jax.clear_caches()


def main() -> None:
    command, *names = sys.argv[1:]
    folder = Path(names[0]) if command == "--table" else Path(command)
    if command != "--table":
        every = int(names[names.index("--every") + 1]) if "--every" in names else 1
        names = names[: names.index("--every")] if "--every" in names else names
        paths = [path for path in sorted(folder.glob("*.onnx"))[::every] if not names or path.stem in names]
        for row in rows_of(paths):
            with (folder / ROWS).open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    newest = {row["file"]: row for row in map(json.loads, (folder / ROWS).read_text().splitlines())}
    print(page([newest[key] for key in sorted(newest)]))


if __name__ == "__main__":
    main()
