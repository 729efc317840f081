"""The pages that are generated from the results of the sweeps, from their tables, and from the registry."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxport.columns import counted
from jaxport.export.delivery import opsets
from jaxport.export.rules.refused import REASONS
from jaxport.onnx_facts import schema
from scripts.coverage_run import failures
from tests.export.rules.test_every_primitive import UNREACHABLE, lowered
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
        "Look up whether a JAX function can be exported. Every public function of the namespaces below is exported, run in",
        "ONNX Runtime, and compared with JAX: in the dtypes that JAX accepts, with static and symbolic dims, plain, under",
        "`jit`, under `vmap`, and as a gradient. One such combination is called a cell. `make sweeps` writes this page from",
        "its measurements and from the tables that the tests run.",
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
        "Names that are not functions of arrays (types, files, text) count only as public names. Refused functions count as",
        "not exported. Functions that JAX itself cannot run on a CPU, which leaves nothing to compare with, count as not",
        "exported in the first share only.",
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
    minutes = sum(r["seconds"] for r in results) / 60
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "equinox", "onnx", "onnxruntime"))
    covering = "every dtype, every gradient, and, in one dtype of each kind, every pair of dims and transform"
    ways = [
        (full, "in every cell"),
        (covered, f"in a covering set of cells: {covering}"),
        (every - full - covered, "in a sample of cells, or not yet"),
    ]
    tested = "; ".join(f"{count} {'was' if count == 1 else 'were'} tested {how}" for count, how in ways if count)
    said = f"""Of these {every} functions, {tested}. The last run compared {counted(statuses["exported"], "cell")} in {minutes:.0f} minutes
    on one core; another {statuses["unaccepted"]} cells are combinations that JAX can trace but not compile for a CPU. Measured
    with {versions}."""
    return textwrap.wrap(" ".join(said.split()), 118)


def _differences(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = failures(results)
    return ["## Cells that contradict the tables", "", *(f"* {line}" for line in lines), ""] if lines else []


def _section(namespace: Namespace, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = [f"## `{namespace.name}`", "", ", ".join(f"`{name}`" for name in sorted(namespace.cases)) + ".", ""]
    for title, cases in (
        ("Refused:", namespace.refused),
        ("JAX itself cannot run these on a CPU; its errors are:", namespace.elsewhere),
    ):
        if cases:
            lines += [title, "", *(f"* `{n}`: {_reason(results.get(n))}" for n in sorted(cases)), ""]
    left_out = [(n, part, why) for n, case in namespace.every.items() for part, why in case.without.items()]
    if left_out:
        lines += ["Cells left out:", "", *(f"* `{n}`, {part}: {why}" for n, part, why in left_out), ""]
    if namespace.reasons:
        lines += ["Not functions of arrays:", "", *_by_reason(namespace.reasons), ""]
    return lines


def _reason(result: Mapping[str, Any] | None) -> str:
    """The first line of the reason of the first cell that has one."""
    reasons = [why for _, why in result["cells"].values() if why] if result else []
    return reasons[0].splitlines()[0] if reasons else "JAX itself cannot trace it on one device"


def _primitives(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What JAX can lower, and what of it the sweeps reach."""
    table = lowered()
    reached = set().union(*(r["primitives"] for r in results)) if results else set()
    missing = [name for name in table if name not in reached]
    unreachable = {name: why for why, names in UNREACHABLE.items() for name in names.split()}
    ruled = [f"`{name}`" for name in missing if name not in REASONS and name not in unreachable]
    return [
        "## Primitives",
        "",
        f"Of the {len(table)} primitives that JAX can lower, on any platform, the sweeps reach {len(table) - len(missing)}.",
        "",
        "Not reached, but with a rule that has its own tests:",
        "",
        (", ".join(ruled) or "none") + ".",
        "",
        "Refused:",
        "",
        *_by_reason({name: REASONS[name] for name in missing if name in REASONS}),
        "",
        "These occur in no exported program:",
        "",
        *_by_reason({name: unreachable[name] for name in missing if name in unreachable}),
        "",
    ]


def _by_reason(reasons: Mapping[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(f"`{name}`")
    return [f"* {', '.join(sorted(group))}: {reason}" for reason, group in names.items()]


def operators(results: Sequence[Mapping[str, Any]]) -> str:
    """The operators that are emitted."""
    used: dict[str, int] = {}
    for result in results:
        for name in result["operators"]:
            used[name] = used.get(name, 0) + 1
    lines = [
        "# Operators in exported models",
        "",
        "Look up which ONNX operators an exported model may contain, for example to see whether a runtime supports them all.",
        "The table lists the operators in the models that the [sweeps](coverage.md) export, the opset that introduced each,",
        f"and the number of functions whose models contain it. Opsets {opsets.OLDEST} to {opsets.NEWEST} can be written; if an",
        "operator is newer than the requested opset, its rule writes it out in older operators or refuses by name.",
        "",
        "| operator | since opset | functions |",
        "|---|---:|---:|",
    ]
    lines += [f"| `{name}` | {schema.first_opset('', name)} | {used[name]} |" for name in sorted(used)]
    return "\n".join([*lines, ""])
