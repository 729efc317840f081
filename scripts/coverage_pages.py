"""The pages that are generated from the results of the sweeps, from their tables, and from the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax._src.interpreters import mlir  # noqa: TID251  the table of what JAX can lower has no public name

from jaxport.export import opsets, schema
from jaxport.export.rules import RULES
from jaxport.export.rules.refused import REASONS
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
        "Every public function of the namespaces below is exported, run in ONNX Runtime, and compared with JAX: in every",
        "dtype that JAX accepts, with static and symbolic dims, plain, under `jit`, under `vmap`, and as a gradient. This",
        "page is written by `make sweeps` from what it measured; the last column says how many of these combinations the",
        'last run compared, which may have been a sample (`make sweeps ARGS="--cells 2"`).',
        "",
        "| namespace | public names | functions | exported | refused | share | cells compared |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for namespace in NAMESPACES:
        own = [r for r in results if r["namespace"] == namespace.name]
        cells = sum(status == "exported" for r in own for status, _ in r["cells"].values())
        functions = len(namespace.cases) + len(namespace.refused)
        lines.append(
            f"| `{namespace.name}` | {len(namespace.names)} | {functions} | {len(namespace.cases)} | "
            f"{len(namespace.refused)} | {100 * namespace.share:.1f} % | {cells} |"
        )
    lines += [
        "",
        "A name counts in the first column alone where it is no function of arrays (a type, a file, text), or where JAX",
        "itself has it for other devices than a CPU alone, so that there is nothing to compare with.",
        "",
    ]
    for namespace in NAMESPACES:
        lines += _section(namespace, [r for r in results if r["namespace"] == namespace.name])
    return "\n".join([*lines, *_primitives(results)])


def _section(namespace: Namespace, results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"## `{namespace.name}`", "", ", ".join(f"`{name}`" for name in sorted(namespace.cases)) + ".", ""]
    why = {r["name"]: reason for r in results for _, reason in r["cells"].values() if r["listed as refused"]}
    if namespace.refused:
        lines += ["Refused:", ""]
        lines += [f"* `{n}`: {_one_line(why.get(n, ''))}" for n in sorted(namespace.refused)]
        lines += [""]
    if namespace.elsewhere:
        names = ", ".join(f"`{name}`" for name in sorted(namespace.elsewhere))
        lines += [f"JAX itself has no CPU implementation of {names}.", ""]
    by_reason: dict[str, list[str]] = {}
    for name, reason in namespace.reasons.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    if by_reason:
        lines += ["No functions of arrays:", ""]
        lines += [f"* {', '.join(sorted(names))}: {reason}" for reason, names in by_reason.items()]
        lines += [""]
    return lines


def _one_line(reason: str) -> str:
    return reason.splitlines()[0] if reason else "JAX itself cannot trace it on one device"


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
