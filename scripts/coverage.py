"""Measures what is exported, and writes it down: the crossing of the sweeps, `docs/coverage.md`, `docs/emitted.md`.

    python -m scripts.coverage                    the covering cells of every function (an hour of one core), then the
    pages python -m scripts.coverage --cells all        every cell (hours)
    python -m scripts.coverage --cells 2          the cell that always runs and a seeded sample of two more, per
    function python -m scripts.coverage --retry            the cells alone that were not what the tables say
    python -m scripts.coverage --pages            the pages alone, from the results in out/coverage.jsonl

Results are kept as they come, so that an interrupted run goes on where it was; `--fresh` forgets those of the functions
that `--only` names. The exit status is 1 where a cell is not what the tables say.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts import coverage_pages
from scripts.coverage_run import Results, Task, failed, failures, run_tasks
from tests.export.sweeps.namespaces import NAMESPACES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "out" / "coverage.jsonl"


def main() -> int:
    """Run the command; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="covering", help="covering, all, or how many sampled ones per function")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="*", help="a pattern of qualified names: `jax.numpy.fft.*`")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the cells that are exported together")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--retry", action="store_true", help="run the cells alone that were not what the tables say")
    parser.add_argument("--pages", action="store_true", help="write the pages alone")
    options = parser.parse_args()
    results = Results(RESULTS)
    known = {f"{n.name}.{name}": (n.name, name) for n in NAMESPACES for name in n.every}
    selected = {name: subject for name, subject in known.items() if fnmatch.fnmatchcase(name, options.only)}
    results.keep(known.keys() - selected.keys() if options.fresh else known)
    if not options.pages:
        tasks = list(_tasks(results, selected, options.cells, options.retry))
        for done, name in enumerate(run_tasks(tasks, results, options.jobs, options.limit), 1):
            for line in failures([results.functions[name]]):
                sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            if done % 20 == 0:
                sys.stderr.write(f"{done} of {len(tasks)}\n")
    measured = list(results.functions.values())
    coverage_pages.write(ROOT / "docs", measured)
    return 1 if failures(measured) else 0


def _tasks(results: Results, selected: Mapping[str, tuple[str, str]], design: str, retry: bool) -> Iterator[Task]:
    for name, subject in selected.items():
        if not retry:
            task = results.task(*subject, design)
        else:
            again = tuple(failed(results.functions[name])) if name in results.functions else ()
            task = Task(*subject, design, only=again) if again else None
        if task:
            yield task


if __name__ == "__main__":
    sys.exit(main())
