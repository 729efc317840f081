"""The pages that are generated from the results of the sweeps, from their tables, and from the registry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jax._src.interpreters import mlir  # noqa: TID251  the table of what JAX can lower has no public name

from jaxport.export import opsets, schema
from jaxport.export.rules import RULES
from jaxport.export.rules.refused import REASONS
from scripts.coverage_run import failures
from tests.export.sweeps.namespaces import NAMESPACES, Namespace


def write(folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Write both pages.

    Args:
      folder: where the documentation is.
      results: what `scripts.coverage` measured, one entry per function.
    """
    (folder / "coverage.md").write_text(coverage(results))
    (folder / "emitted.md").write_text(operators(results))


def coverage(results: Sequence[Mapping[str, Any]]) -> str:
    """The support tables."""
    lines = [
        "# Coverage",
        "",
        "Every public function of the namespaces below is exported, run in ONNX Runtime, and compared with JAX: in the",
        "dtypes that JAX accepts, with static and symbolic dims, plain, under `jit`, under `vmap`, and as a gradient; one",
        "such combination is a cell. This page is written by `make sweeps` from what it measured and from the tables that",
        "the tests run.",
        "",
        *_extent(results),
        "",
        "| namespace | public names | functions | exported | refused | JAX cannot | share | share of what JAX runs | cells |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for namespace in NAMESPACES:
        own = [r for r in results if r["namespace"] == namespace.name]
        cells = sum(status == "exported" for r in own for status, _ in r["cells"].values())
        exported, refused, elsewhere = map(len, (namespace.cases, namespace.refused, namespace.elsewhere))
        lines.append(
            f"| `{namespace.name}` | {len(namespace.names)} | {len(namespace.every)} | {exported} | {refused} | "
            f"{elsewhere} | {100 * exported / len(namespace.every):.1f} % | {100 * namespace.share:.1f} % | {cells} |"
        )
    lines += [
        "",
        "A name counts in the first column alone where it is no function of arrays (a type, a file, text). A refusal counts",
        "as not exported, and so does in the first share what JAX itself cannot run on a CPU, where there is nothing to",
        "compare with.",
        "",
        *_differences(results),
    ]
    for namespace in NAMESPACES:
        lines += _section(namespace, {r["name"]: r for r in results if r["namespace"] == namespace.name})
    return "\n".join([*lines, *_primitives(results)])


def _extent(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the last run was."""
    every = sum(len(namespace.every) for namespace in NAMESPACES)
    full = sum("all" in r["designs"] for r in results)
    covered = sum("covering" in r["designs"] and "all" not in r["designs"] for r in results)
    statuses = Counter(status for r in results for status, _ in r["cells"].values())
    hours = sum(r["seconds"] for r in results) / 3600
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "equinox", "onnx", "onnxruntime"))
    return [
        f"Of these {every} functions, the last run crossed {full} in all cells, {covered} in the covering cells (every dtype,",
        "every gradient, and in one dtype of each kind every pair of dims and transform), the others in a sample. It",
        f"compared {statuses['exported']} cells in {hours:.1f} hours of one core; {statuses['unaccepted']} more are",
        f"combinations that JAX traces and cannot compile for a CPU either. With {versions}.",
    ]


def _differences(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = failures(results)
    return ["## Cells that are not what the tables say", "", *(f"* {line}" for line in lines), ""] if lines else []


def _section(namespace: Namespace, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [f"## `{namespace.name}`", "", ", ".join(f"`{name}`" for name in sorted(namespace.cases)) + ".", ""]
    for title, cases in (
        ("Refused:", namespace.refused),
        ("What JAX itself cannot run on a CPU, with what it says:", namespace.elsewhere),
    ):
        if cases:
            lines += [title, "", *(f"* `{n}`: {_reason(results.get(n))}" for n in sorted(cases)), ""]
    by_reason: dict[str, list[str]] = {}
    for name, reason in namespace.reasons.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    if by_reason:
        lines += ["No functions of arrays:", ""]
        lines += [f"* {', '.join(sorted(names))}: {reason}" for reason, names in by_reason.items()]
        lines += [""]
    return lines


def _reason(result: Mapping[str, Any] | None) -> str:
    """The first line of the reason of the first cell that has one."""
    reasons = [why for _, why in result["cells"].values() if why] if result else []
    return reasons[0].splitlines()[0] if reasons else "JAX itself cannot trace it on one device"


def _primitives(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What JAX can lower, and what of it the sweeps reach."""
    table = sorted({primitive.name for primitive in mlir._lowerings})
    reached = set().union(*(r["primitives"] for r in results)) if results else set()
    missing = [name for name in table if name not in reached]
    ruled = [f"`{name}`" for name in missing if name in RULES and name not in REASONS]
    refused = [f"`{name}`: {REASONS[name]}" for name in missing if name in REASONS]
    unknown = [f"`{name}`" for name in missing if name not in RULES]
    lines = [
        "## Primitives",
        "",
        f"Of the {len(table)} primitives that JAX can lower, the sweeps reach {len(table) - len(missing)}.",
    ]
    lines += ["", "Not reached, with a rule:", "", (", ".join(ruled) or "none") + "."]
    lines += ["", "Refused:", "", *(f"* {line}" for line in refused)]
    lines += [
        "",
        "Not reached by a public function on one device, and without a rule:",
        "",
        (", ".join(unknown) or "none") + ".",
        "",
    ]
    return lines


def operators(results: Sequence[Mapping[str, Any]]) -> str:
    """The operators that are emitted."""
    used: dict[str, int] = {}
    for result in results:
        for name in result["operators"]:
            used[name] = used.get(name, 0) + 1
    lines = [
        "# Operators in exported models",
        "",
        "The ONNX operators in the models that the [sweeps](coverage.md) export, the opset that brought each, and in the",
        f"models of how many functions it stands. Opsets {opsets.OLDEST} to {opsets.NEWEST} can be written; where an",
        "operator is newer than the opset that is asked for, its rule writes it out in older ones or refuses by name.",
        "",
        "| operator | since opset | functions |",
        "|---|---:|---:|",
    ]
    lines += [f"| `{name}` | {schema.first_opset('', name)} | {used[name]} |" for name in sorted(used)]
    return "\n".join([*lines, ""])
