"""Mutants: one function in each of many is changed a little, and a test of `make test` has to fail.

`python -m tests.mutants [--seed 1] [--count 40] [--jobs 2] [FAMILY…]` takes so many functions of each family, runs the
family's tests once to see which functions each enters, and then, for each mutant, the tests that enter it. It prints the
mutants that no test kills, and leaves with status 1 if more than one in twenty lives.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.running import ROOT, rows

#: Where the functions of a family are, and which tests are about them.
FAMILIES: dict[str, tuple[str, list[str]]] = {
    "rules": ("src/jaxport/export/rules", ["tests/export/rules", "tests/programs"]),
    "operators": ("src/jaxport/importer/ops", ["tests/importer"]),
    "passes": ("src/jaxport/export/passes", ["tests/export/passes", "tests/export/test_precision.py"]),
    "fusions": ("src/jaxport/graph/fusions", ["tests/graph"]),
    "edits": ("src/jaxport/mox/edits", ["tests/mox"]),
    # The algebras below the rules, each with the tests that are about it alone.
    "sizes": ("src/jaxport/sizes", ["tests/sizes"]),
    "facts": ("src/jaxport/graph/facts", ["tests/graph/test_facts.py", "tests/export/passes/test_positions.py"]),
    "affine": ("src/jaxport/graph/affine.py", ["tests/graph/test_caches.py", "tests/graph/test_cached_rows.py"]),
    "axes": ("src/jaxport/mox/querying/axes.py", ["tests/mox/test_axes.py", "tests/mox/test_kernels.py"]),
    "targets": ("src/jaxport/export/delivery", ["tests/export/test_targets.py", "tests/export/test_unsigned.py"]),
}
ENOUGH = 0.95


def run(family: str, seed: str, count: int, tests: list[str], options: list[str], out: Path) -> None:
    """Run a family's mutants, again from the start if one takes the process with it: that one is killed, too."""
    folder, own = FAMILIES[family]
    crashed: list[str] = []
    while True:
        settings = {"folder": folder, "count": count, "seed": seed, "out": str(out), "crashed": crashed}
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutants.running", "-q", "-p", "no:cacheprovider"]
        with open(out.with_suffix(".txt"), "w") as log:
            subprocess.run(
                [*command, *options, *(tests or own)],
                cwd=ROOT, env={**os.environ, "JAXPORT_MUTANTS": json.dumps(settings)}, stdout=log, stderr=log, check=False,
            )  # fmt: skip
        last = rows(out)[-1]
        if "begun" not in last or last["mutant"] in crashed:
            return
        crashed.append(last["mutant"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES])
    parser.add_argument("--seed", default="1")
    parser.add_argument("--count", type=int, default=40, help="functions of each family")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests", nargs="*", default=[], help="the tests to run, instead of the family's")
    parser.add_argument("--every", default="1", help="run every N-th case of each test")
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    out = Path(given.out or tempfile.mkdtemp(prefix="jaxport-mutants-"))
    out.mkdir(parents=True, exist_ok=True)
    families = given.families or list(FAMILIES)
    with ThreadPoolExecutor(given.jobs) as pool:
        list(
            pool.map(
                lambda family: run(
                    family, given.seed, given.count, given.tests, ["--every", given.every], out / f"{family}.jsonl"
                ),
                families,
            )
        )
    total = alive = 0
    for family in families:
        first, *results = rows(out / f"{family}.jsonl")
        living = [row["mutant"] for row in results if not row["killed"]]
        total, alive = total + len(results), alive + len(living)
        print(
            f"{family}: {len(results) - len(living)} of {len(results)} mutants are killed; its tests enter {first['entered']} of {first['functions']} functions"
        )
        print("".join(f"  alive: {mutant}\n" for mutant in living), end="")
    print(f"seed {given.seed}: {total - alive} of {total} mutants are killed; details in {out}")
    return int(alive > (1 - ENOUGH) * total)


if __name__ == "__main__":
    sys.exit(main())
