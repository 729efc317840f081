"""Measures what is exported, and writes it down: the full crossing of the sweeps, `docs/coverage.md`, `docs/emitted.md`.

    python -m scripts.coverage                 every cell of every function (hours of one core), then the pages
    python -m scripts.coverage --cells 2       the cell that always runs and a seeded sample of two more, per function
    python -m scripts.coverage --pages         the pages alone, from the results in out/coverage.json

Results are kept as they come, so that an interrupted run goes on where it was (`--fresh` begins again).
The exit status is 1 where a cell is wrong, fails, or is refused without being listed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from scripts import coverage_pages
from tests.export.sweeps.crossing import Outcome, first, jobs, run_all, shuffled
from tests.export.sweeps.namespaces import NAMESPACES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "out" / "coverage.json"


def measure(namespace_name: str, name: str, count: int | None) -> dict[str, Any]:
    """What became of a function, as plain data: the outcome of each of its cells.

    Args:
      namespace_name, name: the function.
      count: how many cells beside the one that always runs; None for all.
    """
    warnings.simplefilter("ignore")
    namespace = next(n for n in NAMESPACES if n.name == namespace_name)
    case = {**namespace.cases, **namespace.refused}[name]
    subject = getattr(namespace.module, name)
    always = first(name, case, subject)
    if count is None:
        chosen = list(jobs(name, case, subject))
    else:
        chosen = [] if always is None else [always, *itertools.islice(shuffled(name, case, subject), count)]
    outcomes = run_all(chosen)
    return {
        "namespace": namespace_name,
        "name": name,
        "listed as refused": name in namespace.refused,
        "cells": {str(j.cell): [o.status, o.why] for j, o in zip(chosen, outcomes, strict=True)},
        "primitives": sorted(_all(outcomes, "primitives")),
        "operators": sorted(_all(outcomes, "operators")),
    }


def _all(outcomes: Sequence[Outcome], what: str) -> set[str]:
    return set().union(*(getattr(outcome, what) for outcome in outcomes))


def failures(results: Sequence[dict[str, Any]]) -> list[str]:
    """The cells that are not what the tables say, a line each."""
    lines = []
    for result in results:
        for cell, (status, why) in result["cells"].items():
            if status not in (("refused", "not run") if result["listed as refused"] else ("exported", "unaccepted")):
                reason = why.splitlines()[0] if why else ""
                lines.append(f"{result['namespace']}.{result['name']} [{cell}] {status}: {reason}")
        if not result["cells"] and not result["listed as refused"]:
            lines.append(f"{result['namespace']}.{result['name']}: JAX accepts no cell")
    return lines


def main() -> int:
    """Run the command; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, help="a sample of so many cells per function instead of all")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="a namespace")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--pages", action="store_true", help="write the pages alone")
    options = parser.parse_args()
    results = {} if options.fresh or not RESULTS.exists() else json.loads(RESULTS.read_text())
    if not options.pages:
        todo = [
            (n.name, name)
            for n in NAMESPACES
            for name in (*n.cases, *n.refused)
            if f"{n.name}.{name}" not in results and n.name.startswith(options.only)
        ]
        RESULTS.parent.mkdir(exist_ok=True)
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
            running = {pool.submit(measure, *subject, options.cells): subject for subject in todo}
            for done, future in enumerate(as_completed(running), 1):
                subject = running[future]
                try:
                    result = future.result()
                except BrokenProcessPool:
                    sys.stderr.write(f"a process died, perhaps at {'.'.join(subject)}; what is done is kept\n")
                    return 2
                except Exception as error:  # noqa: BLE001  a case that raises is a failure of the case, shown with the others
                    result = {
                        "namespace": subject[0], "name": subject[1], "listed as refused": False, "primitives": [],
                        "operators": [], "cells": {"all": ["raised", f"{type(error).__name__}: {error}"]},
                    }  # fmt: skip
                results[".".join(subject)] = result
                for line in failures([result]):
                    sys.stdout.write(f"{line}\n")
                if done % 20 == 0 or done == len(todo):
                    RESULTS.write_text(json.dumps(results))
                    sys.stderr.write(f"{done} of {len(todo)}\n")
    coverage_pages.write(ROOT / "docs", list(results.values()))
    return 1 if failures(list(results.values())) else 0


if __name__ == "__main__":
    sys.exit(main())
