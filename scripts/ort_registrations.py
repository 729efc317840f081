"""Regenerate `src/jaxport/onnx_facts/registered_kernels.json`: the kernels of operators that imported models may have.

`ort_kernels.py` runs what the rules emit. The other operators that the importer knows are many, and have several type
parameters: for these the kernels are listed that each supported release has registered. Run
`python -m scripts.ort_registrations` where there is a new release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from jaxport.importer.resolving.registry import operators
from jaxport.onnx_facts import releases, schema
from jaxport.onnx_facts.kernels import MISSING
from scripts.kernel_tables import write
from scripts.ort_kernels import PORTABLE, RELEASES

TARGET = Path(__file__).parents[1] / "src" / "jaxport" / "onnx_facts" / "registered_kernels.json"
DOMAINS = ("", "ai.onnx.ml")
ASKED = """import json, onnxruntime.capi.onnxruntime_pybind11_state as state
print(json.dumps([[k.domain, k.op_name, *k.version_range, k.type_constraints] for k in state.get_all_opkernel_def()
                  if k.provider == "CPUExecutionProvider"]))"""
NAMES = {"float": "float32", "double": "float64", "float8e8m0": "float8_e8m0fnu"}
NAMES |= {f"float8{kind}": f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}

Kernel = tuple[tuple[str, ...], ...]
"""The dtypes that a kernel takes, by type parameter."""
Kernels = dict[tuple[str, str], dict[int, tuple[tuple[str, ...], frozenset[Kernel]]]]
"""By operator and version, the type parameters, and the kernels that have them in this order."""


def registered(release: str, folder: Path) -> list[tuple[str, str, int, int, dict[str, list[str]]]]:
    """The kernels of a release: the domain, the operator, its first and last version, and the types of each
    parameter.
    """
    place = folder / release
    install = ["install", "--quiet", "--no-deps", "--target", str(place), f"onnxruntime=={release}"]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    answer = subprocess.run([sys.executable, "-c", ASKED], env=environment, check=True, stdout=subprocess.PIPE)
    return [tuple(row) for row in json.loads(answer.stdout)]


def kernels(release: str, folder: Path) -> Kernels:
    """The kernels of a release for the operators that the importer knows and that no rule emits."""
    wanted = {(each.domain, each.name) for each in operators() if each.domain in DOMAINS and not each.plain}
    rows = defaultdict(list)
    for domain, name, first, last, types in registered(release, folder):
        if (domain, name) in wanted and not (domain == "" and name in {*MISSING, *releases.ANY_DTYPE}):
            rows[domain, name].append((first, last, types))
    found: Kernels = {}
    for (domain, name), entries in rows.items():
        for version in versions(domain, name):
            serving = [types for first, last, types in entries if first <= version <= last]
            if any("(" in dtype(kind) for types in serving for kinds in types.values() for kind in kinds):
                continue  # sequences, maps and optional values are never written again
            facts = schema.find(domain, name, version)
            assert facts is not None
            formals = list(dict.fromkeys(formal.type for formal in (*facts.inputs, *facts.outputs)))
            parameters = tuple(p for p in formals if serving and all(p in types for types in serving))
            combinations = frozenset(tuple(tuple(map(dtype, types[p])) for p in parameters) for types in serving)
            if parameters and not _takes_all(facts, parameters, combinations):
                found.setdefault((domain, name), {})[version] = parameters, combinations
    return found


def _takes_all(facts: schema.Schema, parameters: tuple[str, ...], combinations: frozenset[Kernel]) -> bool:
    """Whether one kernel takes all types that an operator has."""
    wanted = [
        {kind.name for formal in (*facts.inputs, *facts.outputs) if formal.type == p for kind in formal.dtypes}
        for p in parameters
    ]
    return any(all(kinds >= need for kinds, need in zip(map(set, each), wanted, strict=True)) for each in combinations)


def versions(domain: str, name: str) -> list[int]:
    """The versions of an operator that exports may write."""
    newest = schema.NEWEST if not domain else 5
    schemas = (schema.find(domain, name, opset) for opset in range(PORTABLE if not domain else 1, newest + 1))
    return sorted({facts.since for facts in schemas if facts is not None})


def dtype(kind: str) -> str:
    """The name of a type of ONNX."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    return NAMES.get(name, name)


def main() -> None:
    """Write the table: what all supported releases have."""
    supported = [each for each in RELEASES if not _before(each, releases.OLDEST)]
    with tempfile.TemporaryDirectory() as name:
        tables = [kernels(release, Path(name)) for release in supported]
    rows = {}
    for operator, entries in sorted(tables[-1].items()):
        for version, (parameters, newest) in entries.items():
            others = [table.get(operator, {}).get(version, entries.get(version)) for table in tables]
            common = newest.intersection(
                *(entry[1] for entry in others if entry is not None and entry[0] == parameters)
            )
            words = sorted(" ".join("/".join(kinds) for kinds in kernel) for kernel in common)
            rows[f"{operator[1]} {version}"] = [" ".join(parameters), ", ".join(words)]
    write(TARGET, "scripts/ort_registrations.py", kernels=rows)


def _before(one: str, other: str) -> bool:
    return tuple(map(int, one.split(".")[:2])) < tuple(map(int, other.split(".")[:2]))


if __name__ == "__main__":
    main()
