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
import onnx
import onnx_ir as ir

import jaxport
from benchmarks.measure import rendered
from jaxport.errors import JaxportError
from jaxport.export.delivery.runtime import Session, as_written
from jaxport.graph.editing import graphs, operator_name
from jaxport.importer.traced.assumptions import with_assumptions
from jaxport.importer.traced.input_specs import input_specs
from jaxport.verify.importing import Comparison
from tests.importer.backend import cases

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
    samples = [each for each in samples if runs(comparison, each)] or sampled(comparison)
    with jax.enable_x64(True):
        try:
            specs = with_assumptions(lambda known: traced(program, input_specs(program, known)))
        except JaxportError as error:
            if not samples:
                raise
            row["fixed"] = str(error)[:200]
            specs = {key: jax.ShapeDtypeStruct(value.shape, value.dtype) for key, value in samples[-1].items()}
    exported = jaxport.to_onnx(program, list(specs.values()), double_precision=True)
    after = operators(exported.model)
    row |= {"after": after.total(), "more": dict((after - before).most_common(12))}
    for sample in samples[-1:]:
        inputs = dict(zip(exported.input_names, (sample[name] for name in program.input_names), strict=True))
        # Where a runtime fuses quantization with its neighbours, values differ by a step of it.
        again = as_written(exported.model, threads=1)
        expected, results = comparison.session.run(sample), again.run(inputs)
        row["difference"] = max(map(relative_difference, results, expected))
    return row


def suite(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The figures of the cases of ONNX's backend suite that have one node."""
    for name, case in cases().items():
        if names and name not in names:
            continue
        model = case.model()
        if len(model.graph.node) != 1 or model.functions:
            continue
        row: dict[str, Any] = {"file": name, "operator": model.graph.node[0].op_type}
        try:
            yield row | single(model, *next(iter(case.data(model))))
        except Exception as error:  # noqa: BLE001  what fails is what is looked for
            yield row | {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        jax.clear_caches()


def single(model: onnx.ModelProto, inputs: Sequence[Any], expected: Sequence[Any]) -> dict[str, Any]:
    """The figures of a model of one node, with sizes as they are in the case."""
    program = jaxport.from_onnx(model)
    given = dict(zip(program.keywords, inputs, strict=False))
    static = {
        key: given.pop(key)
        for key, name in zip(program.keywords, program.input_names, strict=True)
        if name in program.static_inputs
    }
    before = operators(program.model)
    with jax.enable_x64(True):
        specs = {key: jax.ShapeDtypeStruct(value.shape, value.dtype) for key, value in given.items()}
        exported = jaxport.to_onnx(program, (), input_params=specs, static_params=static, double_precision=True)
    after = operators(exported.model)
    row = {"before": before.total(), "after": after.total(), "more": dict((after - before).most_common(12))}
    row["declined"] = [record.note for record in exported.records if record.note]
    try:
        results = exported.run({name: given[name] for name in exported.input_names})
    except JaxportError as error:
        own = loads(program.model)
        return row | {"runtime": f"{'the file loads' if own else 'nor the file'}: {' '.join(str(error).split())[:200]}"}
    return row | {"difference": max(map(relative_difference, results, expected))}


def loads(model: ir.Model) -> bool:
    """Whether ONNX Runtime loads a model."""
    try:
        Session(model, threads=1)
    except JaxportError:
        return False
    return True


def by_operator(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of the suite: by operator, the cases, how many come back as one node, and the most nodes of one."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["operator"], []).append(row)
    cells = []
    for name, own in found.items():
        done = [row["after"] for row in own if "after" in row]
        wrong = [row for row in own if row.get("difference", 0) > 1e-3]
        failed = [row["failed"] for row in own if "failed" in row]
        worst = max((row for row in own if "after" in row), key=lambda row: row["after"], default={})
        more = ", ".join(f"{count} {each}" for each, count in worst.get("more", {}).items())
        cells.append(
            (name, len(own), sum(count <= 1 for count in done), max(done, default=""), len(wrong), len(failed), more)
        )
    cells.sort(key=lambda cell: -(cell[3] or 0))
    done = [row for row in rows if "after" in row]
    facts = [
        f"{len(rows)} cases, {len(done)} come back, {sum(row['after'] <= 1 for row in done)} as one node",
        f"nodes: {sum(row['before'] for row in done)} before, {sum(row['after'] for row in done)} after",
        f"not run: {', '.join(row['file'] for row in done if row.get('runtime', '').startswith('the file loads'))}",
        f"differ: {', '.join(row['file'] for row in done if row.get('difference', 0) > 1e-3)}",
    ]
    header = ("operator", "cases", "one node", "most nodes", "differ", "fail", "the most consist of")
    return rendered("Single operators", header, cells) + "\n\n" + "".join(f"- {fact}\n" for fact in facts)


def sampled(comparison: Comparison) -> list[dict[str, Any]]:
    """Inputs that a program takes; none if those that are made up do not fit it."""
    try:
        return [dict(run.arrays) for run in comparison.runs(None)]
    except JaxportError:
        return []


def runs(comparison: Comparison, sample: Mapping[str, Any]) -> bool:
    """Whether ONNX Runtime computes the file for these inputs."""
    try:
        comparison.session.run(sample)
    except JaxportError:
        return False
    return True


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
        f"more nodes: {sum(ratio > 1 for ratio in ratios)}",
        f"by more than 10 %: {sum(ratio > GROWN for ratio in ratios)}, by half and more: {sum(r >= 1.5 for r in ratios)}",
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
    if command == "--suite":
        print(by_operator([row for row in suite(names) if not print(json.dumps(row), file=sys.stderr, flush=True)]))
        return
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
