"""Structured source of files of PyTorch: whether it agrees with ONNX Runtime, how much of a file it covers, its length.

python -m tests.torch.exporting FOLDER [NAME …]            # the models of the tests, by both exporters
python -m benchmarks.bench_printed --export FOLDER         # and those of benchmarks/graphs
python -m benchmarks.bench_printed FOLDER [NAME …]         # prints each for both frameworks, and a table of figures
python -m benchmarks.bench_printed --table FOLDER          # the table again
python -m benchmarks.bench_printed --declared FOLDER [NAME …]    # files of packages: see `benchmarks.strangers`

The first two need PyTorch; without it, the lines of the original classes are unknown. `rows.printed.jsonl` in the folder
holds a row for each file.
"""

from __future__ import annotations

import ast
import json
import statistics
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx

import jaxport
from benchmarks import strangers
from benchmarks.bench_source import coverage
from benchmarks.graphs.pairs import PAIRS, Pair
from benchmarks.measure import rendered
from jaxport.codegen.modules import ModuleSource
from jaxport.jaxprs.releases import QUICKLY
from tests.codegen.structured import NEEDED, arguments, imported, load, nameless
from tests.torch.imported import Checks

FRAMEWORKS = ("nnx", "equinox")
ROWS = "rows.printed.jsonl"
HEADER = (
    "file", "opset", "difference NNX", "difference Equinox", "% of nodes", "% of nodes below the model", "% of weights",
    "% of weights of the original", "lines NNX", "lines Equinox", "lines of the original", "loops", "unrolled", "nameless: difference", "nameless: loops",
)  # fmt: skip


def export(folder: Path) -> None:
    """Writes the small models of `benchmarks.graphs`, by both of PyTorch's exporters."""
    from tests.torch.exporting import export_case

    folder.mkdir(parents=True, exist_ok=True)
    for name, pair in PAIRS.items():
        for exporter, opset in (("dynamo", 20), ("legacy", 17)):
            path = folder / f"graphs-{name}.{exporter}.onnx"
            try:
                case, sizes = _case(pair)
                inputs = export_case(case, sizes, exporter, opset, path)  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001  PyTorch's exporters raise everything
                print(f"{path.name}: {type(error).__name__}: {str(error)[:200]!r}", flush=True)
                continue
            for number, arrays in enumerate(inputs):
                np.savez(path.with_suffix(f".{number}.npz"), allow_pickle=False, **arrays)
            print(path.name, flush=True)


def _case(pair: Pair) -> tuple[Any, list[Mapping[str, int]]]:
    """A pair's PyTorch side as a case of the tests, and two sets of sizes."""
    import torch

    from tests.torch.models import Case

    example = pair.make("small")
    fixed = {name: number for name, number in pair.dims(example, "small").items() if name in pair.fixed}
    # PyTorch takes a dim of 1 for a fixed one.
    sets = [{name: 4 + 3 * at + 2 * number for at, name in enumerate(pair.sizes)} | fixed for number in range(2)]

    def inputs(sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
        tensors = [torch.from_numpy(np.array(x)) for x in pair.arrays(pair.arguments(example, sizes))]
        return {f"x{at}": x.long() if x.dtype == torch.int32 else x for at, x in enumerate(tensors)}

    axes = {f"x{at}": open_axes for at, open_axes in enumerate(pair.axes(example))}
    return Case(make=partial(pair.network, "small"), inputs=inputs, axes=axes), sets  # type: ignore[arg-type]


def measured(path: Path) -> dict[str, Any]:
    """The figures of a file."""
    checks = Checks(path)
    row: dict[str, Any] = {"opset": checks.program.model.opset_imports[""]}
    specs = checks.recorded_with()
    for framework in FRAMEWORKS:
        source, row[framework] = _printed(checks, specs, framework)
        if source is not None:
            row[f"{framework} lines"] = lines_of(_classes(source.code))
            if framework == "nnx":
                row["loops"], row["unrolled"] = loops(_classes(source.code))
    row["oracle"] = checks.oracle
    covered = coverage(checks.program, specs)
    row |= {"nodes": covered.nodes, "placed": covered.placed, "weights": covered.weights}
    original = _original(path.name.partition(".")[0])
    if original is not None:
        row |= {"original": original.lines, "original weights": original.weights}
    stripped = jaxport.from_onnx(nameless(onnx.load(path)))
    checks.program = stripped
    source, row["nameless"] = _printed(checks, specs, "nnx")
    if source is not None:
        row["nameless loops"] = loops(_classes(source.code))[0]
    return row


def _printed(checks: Checks, specs: Any, framework: str) -> tuple[ModuleSource | None, Any]:
    """The source of a program, and its largest difference from ONNX Runtime; or why there is none."""
    try:
        source = checks.program.to_source(inputs=specs, framework=framework)
        assert isinstance(source, ModuleSource)
    except Exception as error:  # noqa: BLE001  what fails is what is looked for
        return None, f"not generated: {_told(error)}"
    try:
        assert imported(source.code) <= NEEDED
        with tempfile.TemporaryDirectory() as folder:
            source.save(folder)
            module = load(Path(folder))
            made = module.load()
        call = jax.jit(lambda *inputs: made(*arguments(module, inputs)), compiler_options=QUICKLY)
        largest = 0.0
        expected_sets = checks.expected
        # What the runtime refuses at the second set of sizes has the first ones written into the file.
        compared = 1 if checks.oracle != "ONNX Runtime" and _has_sizes(checks) else len(expected_sets)
        for expected, inputs in zip(expected_sets[:compared], checks.sets, strict=False):
            if specs is not None and any(
                isinstance(size, int) and size != inputs[key].shape[axis]
                for key, spec in specs.items()
                for axis, size in enumerate(spec.shape)
            ):
                continue  # the file itself has one of the sizes
            # caches are pairs in a list
            results = jax.tree.leaves(call(*(jnp.asarray(inputs[name]) for name in checks.program.input_names)))
            largest = max(largest, *map(relative_difference, results, expected))
    except Exception as error:  # noqa: BLE001  what fails is what is looked for
        return source, f"not run: {_told(error)}"
    return source, largest


def _has_sizes(checks: Checks) -> bool:
    """Whether the runtime runs a file at the first set of sizes only."""
    try:
        checks.comparison.session.run(checks.sets[0])
    except jaxport.JaxportError:
        return False
    return True


def relative_difference(result: Any, expected: np.ndarray) -> float:
    """The largest difference relative to the largest element; infinite if shapes or what is not finite differ."""
    one, other = np.asarray(result, np.float64), np.asarray(expected, np.float64)
    if one.shape != other.shape or not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return float("inf")
    finite = np.isfinite(other)
    scale = float(np.abs(other[finite]).max(initial=0)) or 1.0
    return float(np.abs(one - other)[finite].max(initial=0)) / scale


def _told(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]} ({Path(place.filename).name}:{place.lineno})"


def _classes(code: str) -> str:
    return code.partition("\n\n\n")[2].partition("\n\n\ndef load(")[0]


def lines_of(code: str) -> int:
    """The lines of code, without blank ones, comments and docstrings."""
    tree = ast.parse(code)
    lines = {at for node in ast.walk(tree) if isinstance(node, ast.stmt) for at in _statement_lines(node)}
    return len(lines)


def _statement_lines(node: ast.stmt) -> Iterator[int]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    body = getattr(node, "body", None)
    end = body[0].lineno if body else node.end_lineno
    yield from range(node.lineno, max(end or node.lineno, node.lineno + 1) if body else (end or node.lineno) + 1)


def loops(code: str) -> tuple[int, int]:
    """The loops over modules, and the lists of which elements of one class that follow one another are called singly."""
    tree = ast.parse(code)
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    count = sum(isinstance(node, ast.For) for node in ast.walk(tree))
    unrolled = 0
    for kind in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        single: dict[str, set[int]] = {}
        for node in ast.walk(kind):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                attribute, index = node.func.value, node.func.slice
                if isinstance(attribute, ast.Attribute) and isinstance(index, ast.Constant):
                    single.setdefault(attribute.attr, set()).add(index.value)  # type: ignore[arg-type]
        for node in ast.walk(kind):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                called = single.get(node.targets[0].attr, set())
                elements = _elements(node.value)
                unrolled += any(
                    {at, at + 1} <= called and elements[at] == elements[at + 1] and elements[at] in own
                    for at in range(len(elements) - 1)
                )
    return count, unrolled


def _elements(value: ast.expr) -> list[str]:
    """The classes of the modules in a list."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    if isinstance(value, ast.ListComp) and isinstance(value.elt, ast.Call):
        return [ast.unparse(value.elt.func)] * 2
    if isinstance(value, ast.List):
        return [name for one in value.elts for name in _classes_of(one)]
    return []


def _classes_of(element: ast.expr) -> list[str]:
    """The class of an element of a list, as often as it is there: `*(Block(rngs=rngs) for _ in range(5))` is five."""
    count = 1
    if isinstance(element, ast.Starred) and isinstance(element.value, ast.GeneratorExp):
        made = element.value.generators[0].iter
        if isinstance(made, ast.Call) and isinstance(made.args[0], ast.Constant):
            count = made.args[0].value
        element = element.value.elt
    return [ast.unparse(element.func) if isinstance(element, ast.Call) else ""] * count


class Original(NamedTuple):
    """A model of PyTorch.

    Attributes:
      lines: the lines of the classes of its modules that are not PyTorch's own.
      weights: the part of the elements of its parameters that are in PyTorch's own modules: its classes keep the others.
    """

    lines: int
    weights: float


def _original(name: str) -> Original | None:
    try:
        import inspect
        import textwrap

        import torch

        from tests.torch.models import CASES
    except ImportError:
        return None
    cases = {each.replace(" ", "_"): case.make for each, case in CASES.items()}
    cases |= {f"graphs-{each}": partial(pair.network, "small") for each, pair in PAIRS.items()}
    if name not in cases:
        return None
    with torch.no_grad():
        modules = [*cases[name]().modules()]
    kinds = dict.fromkeys(map(type, modules))
    own = [kind for kind in kinds if not kind.__module__.startswith(("torch.", "tests.torch.models"))]
    lines = sum(lines_of(textwrap.dedent(inspect.getsource(kind))) for kind in own)
    elements = {True: 0, False: 0}
    for module in modules:
        for parameter in module.parameters(recurse=False):
            elements[type(module).__module__.startswith("torch.nn.")] += parameter.numel()
    return Original(lines, elements[True] / max(sum(elements.values()), 1))


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, and the figures over all files."""
    cells = [
        [
            row["file"], row.get("opset", ""), *(_cell(row.get(framework, row.get("failed"))) for framework in FRAMEWORKS),
            *(f"{100 * row[key]:.1f}" if key in row else "" for key in ("nodes", "placed", "weights", "original weights")),
            *(row.get(key, "") for key in ("nnx lines", "equinox lines", "original", "loops", "unrolled")),
            _cell(row.get("nameless", "")), row.get("nameless loops", ""),
        ]
        for row in rows
    ]  # fmt: skip
    text = rendered("Printed models", HEADER, cells)
    generated = [row for row in rows if all(not isinstance(row.get(framework, ""), str) for framework in FRAMEWORKS)]
    exact = [row for row in generated if _is_exact(row)]
    shares = [row["nnx lines"] / row["original"] for row in generated if row.get("original") and _is_plain(row)]
    facts = [
        f"{len(rows)} files; generated and run for both frameworks: {len(generated)}",
        f"in float32: {len(exact)}, of these within 1e-5: {sum(max(row[f] for f in FRAMEWORKS) <= 1e-5 for row in exact)}",
        f"at least 95 % of nodes: {sum(row['nodes'] >= 0.95 for row in rows if 'nodes' in row)}",
        f"at least 95 % of the nodes below the model: {sum(row.get('placed', 0) >= 0.95 for row in rows)}",
        f"at least 97 % of weights: {sum(row['weights'] >= 0.97 for row in rows if 'weights' in row)}",
        f"at least 97 % of weights, or as many as the original: {sum(_has_weights(row) for row in rows)}",
        f"lines over those of the original, median: {statistics.median(shares) if shares else float('nan'):.2f}",
        f"files with a stack that is no loop: {sum(bool(row.get('unrolled')) for row in rows)}",
        f"nameless, within 1e-5: {sum(_number(row.get('nameless')) <= 1e-5 for row in exact)} of {len(exact)}",
    ]
    return text + "\n\n" + "".join(f"- {fact}\n" for fact in facts)


def _has_weights(row: Mapping[str, Any]) -> bool:
    """Whether layers have 97 % of the weights, or the part that they have in the original."""
    return row.get("weights", 0) >= min(0.97, row.get("original weights", 1))


def _is_plain(row: Mapping[str, Any]) -> bool:
    return row["file"].count(".") == 1


def _is_exact(row: Mapping[str, Any]) -> bool:
    return row["file"].split(".")[2:] in ([], ["optimized"], ["fused"])


def _number(value: Any) -> float:
    return value if isinstance(value, float) else float("inf")


def _cell(value: Any) -> str:
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def main() -> None:
    command, *names = sys.argv[1:]
    if command == "--export":
        export(Path(names[0]))
        return
    if command == "--declared":
        strangers.measure(Path(names[0]), names[1:])
        return
    folder = Path(names[0]) if command == "--table" else Path(command)
    rows = folder / ROWS
    for path in [] if command == "--table" else sorted(folder.glob("*.onnx")):
        if names and not any(path.stem == name or path.name.partition(".")[0] == name for name in names):
            continue
        try:
            row = {"file": path.stem, **measured(path)}
        except Exception as error:  # noqa: BLE001  what fails is what is looked for
            row = {"file": path.stem, "failed": _told(error)}
        with rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        jax.clear_caches()
    newest = {row["file"]: row for row in map(json.loads, rows.read_text().splitlines())}
    print(page([newest[key] for key in sorted(newest)]))


if __name__ == "__main__":
    main()
