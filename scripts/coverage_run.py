"""Runs cells of the crossing in processes that may die or hang, and keeps what becomes of each in a file.

A worker says which cells it is about to run. If it dies or does not come back, each of these cells is run again alone,
and the one that does it again has the outcome `crashed` or `timed out`; all others go on in a new worker.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import jax

from tests.export.sweeps.cases import Case
from tests.export.sweeps.crossing import Cell, Job, Outcome, cells, covering, first, jobs, run, run_all, shuffled
from tests.export.sweeps.namespaces import NAMESPACES

#: How often JAX's caches are emptied, in functions: they would fill the memory.
_FUNCTIONS_PER_CACHE = 20


def failed(result: Mapping[str, Any]) -> Iterator[str]:
    """The cells that are not what the tables say."""
    name = result["name"]
    namespace = next(n for n in NAMESPACES if n.name == result["namespace"])
    allowed = ("exported", "unaccepted")
    if name in namespace.refused:
        allowed = ("refused", "not run")
    elif name in namespace.elsewhere:
        allowed = ("unaccepted",)
    case = namespace.every[name]
    return (c for c, (status, _) in result["cells"].items() if status not in allowed and not case.leaves_out(c))


def failures(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cells that are not what the tables say, a line each."""
    lines = []
    for result in results:
        name = f"{result['namespace']}.{result['name']}"
        for cell in failed(result):
            status, why = result["cells"][cell]
            lines.append(f"{name} [{cell}] {status}: {why.splitlines()[0] if why else ''}")
        if not result["cells"]:
            lines.append(f"{name}: JAX accepts no cell")
    return lines


@dataclass(frozen=True)
class Task:
    """A function and what of its crossing is wanted.

    Attributes:
      namespace, name: the function.
      design: `all`, `covering`, or the number of sampled cells beside the one that always runs.
      skip: the cells that are known already.
      only: the cells to run, alone each; empty for what the design says.
    """

    namespace: str
    name: str
    design: str
    skip: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()


class Results:
    """What became of the cells, by the qualified names of the functions; appended to a file as it comes."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.functions: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                self._merge(json.loads(line))

    def keep(self, names: Iterable[str]) -> None:
        """Forget all functions but some."""
        left = {name: entry for name, entry in self.functions.items() if name in set(names)}
        if len(left) == len(self.functions):
            return
        self.functions = left
        self.path.write_text("".join(f"{json.dumps(entry)}\n" for entry in self.functions.values()))

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keep what became of some cells of a function."""
        self._merge(entry)
        with self.path.open("ab", buffering=0) as file:  # in one piece: another run may write to the same file
            file.write(f"{json.dumps(entry)}\n".encode())

    def _merge(self, entry: Mapping[str, Any]) -> None:
        name = f"{entry['namespace']}.{entry['name']}"
        known = self.functions.setdefault(
            name, {**entry, "cells": {}, "primitives": [], "operators": [], "designs": [], "seconds": 0}
        )
        known["cells"].update(entry["cells"])
        known["seconds"] += entry["seconds"]
        for what in ("primitives", "operators", "designs"):
            known[what] = sorted({*known[what], *entry[what]})

    def task(self, namespace: str, name: str, design: str) -> Task | None:
        """What is left of a design; None where nothing is."""
        known = self.functions.get(f"{namespace}.{name}")
        if known is None:
            return Task(namespace, name, design)
        enough = {"all"} if design == "all" else {"all", "covering", design}
        if enough & set(known["designs"]):
            return None
        return Task(namespace, name, design, frozenset(known["cells"]))


def run_tasks(tasks: Iterable[Task], results: Results, processes: int, limit: float) -> Iterator[str]:
    """Run the tasks and keep their results.

    Args:
      tasks: what to run.
      results: filled.
      processes: how many workers.
      limit: the seconds that the cells which are exported together may take.

    Yields:
      The qualified name of each function when its task, or what was left of it by a worker that died, is done.
    """
    queue = deque(tasks)
    workers = [_Worker() for _ in range(min(processes, len(queue)))]
    try:
        while queue or any(worker.task for worker in workers):
            for worker in workers:
                if worker.task is None and queue:
                    worker.begin(queue.popleft())
            wait([worker.connection for worker in workers if worker.task], timeout=1)
            for worker in workers:
                task = worker.task
                if task is None:
                    continue
                problem = worker.listen(limit)
                if problem is None and worker.task is not None:
                    continue
                if problem:
                    queue.extendleft(worker.rest(task, problem))
                results.add(worker.entry(task))
                if problem:
                    worker.start()
                yield f"{task.namespace}.{task.name}"
    finally:
        for worker in workers:
            worker.stop()


@dataclass
class _Worker:
    """A process, and what it said of its task."""

    task: Task | None = None
    chosen: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    since: float = 0
    cells: dict[str, list[str]] = field(default_factory=dict)
    primitives: set[str] = field(default_factory=set)
    operators: set[str] = field(default_factory=set)
    seconds: float = 0
    finished: bool = False

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.task = None

    def stop(self) -> None:
        self.process.kill()
        self.process.join()

    def begin(self, task: Task) -> None:
        self.task, self.since, self.finished, self.seconds = task, time.monotonic(), False, 0
        self.chosen, self.running, self.cells, self.primitives, self.operators = [], [], {}, set(), set()
        self.connection.send(task)

    def listen(self, limit: float) -> str | None:
        """Take what the process says; return what is wrong with it."""
        try:
            while self.connection.poll():
                what, *rest = self.connection.recv()
                self.since = time.monotonic()
                if what == "chosen":
                    (self.chosen,) = rest
                elif what == "running":
                    (self.running,) = rest
                elif what == "outcome":
                    cell, status, why, primitives, operators = rest
                    self.cells[cell] = [status, why]
                    self.primitives.update(primitives)
                    self.operators.update(operators)
                else:
                    (self.seconds,) = rest
                    self.task, self.finished = None, True
                    return None
        except (EOFError, ConnectionResetError):
            self.stop()
            return "crashed"
        if time.monotonic() - self.since > limit:
            self.stop()
            return "timed out"
        return None

    def rest(self, task: Task, problem: str) -> Iterator[Task]:
        """What is to be run again; a cell that was run alone is at fault."""
        known = frozenset((*self.cells, *self.running))
        if not self.chosen:
            self.cells["all"] = [problem, "while JAX was asked what it accepts"]
            return
        left = [cell for cell in self.chosen if cell not in known]
        if task.only:
            yield from [Task(task.namespace, task.name, task.design, only=tuple(left))] if left else []
        else:
            yield Task(task.namespace, task.name, task.design, task.skip | known)
        again = [cell for cell in self.running if cell not in self.cells]
        if len(again) == 1:
            self.cells[again[0]] = [problem, ""]
        elif again:
            yield Task(task.namespace, task.name, task.design, only=tuple(again))

    def entry(self, task: Task) -> dict[str, Any]:
        """What is kept of the task."""
        return {
            "namespace": task.namespace,
            "name": task.name,
            "cells": self.cells,
            "primitives": sorted(self.primitives),
            "operators": sorted(self.operators),
            "designs": [task.design] if self.finished and not task.only else [],
            "seconds": self.seconds,
        }


def _work(connection: Connection) -> None:
    """What a worker does: task after task, until it is killed."""
    warnings.simplefilter("ignore")
    for count in itertools.count(1):
        task = connection.recv()
        start = time.process_time()
        _perform(task, connection.send)
        connection.send(("finished", time.process_time() - start))
        if count % _FUNCTIONS_PER_CACHE == 0:
            jax.clear_caches()


def _perform(task: Task, say: Callable[[tuple[Any, ...]], None]) -> None:
    namespace = next(n for n in NAMESPACES if n.name == task.namespace)
    case, subject = namespace.every[task.name], getattr(namespace.module, task.name)

    def attempt(group: Sequence[Job]) -> Outcome:
        say(("running", [str(job.cell) for job in group]))
        try:
            return run(group)
        except Exception as error:  # noqa: BLE001  whatever a cell raises is its outcome, shown with the others
            return Outcome("raised", f"{type(error).__name__}: {error}")

    chosen = list(_chosen(task, case, subject))
    say(("chosen", [str(job.cell) for job in chosen]))
    for group in [[job] for job in chosen] if task.only else [chosen]:
        for job, outcome in run_all(group, attempt):
            reached = sorted(outcome.primitives), sorted(outcome.operators)
            say(("outcome", str(job.cell), outcome.status, outcome.why, *reached))


def _chosen(task: Task, case: Case, subject: Any) -> Iterator[Job]:
    def wanted(every: Iterable[Cell]) -> list[Cell]:
        return [c for c in every if (str(c) in task.only if task.only else str(c) not in task.skip)]

    if task.only or task.design == "all":
        yield from jobs(task.name, case, subject, wanted(cells(case)))
    elif task.design == "covering":
        yield from jobs(task.name, case, subject, wanted(covering(case)))
    elif always := first(task.name, case, subject):
        sampled = (job for job in shuffled(task.name, case, subject) if job.cell != always.cell)
        yield from [always, *itertools.islice(sampled, int(task.design))]
