"""A plugin of pytest: the tests run once, to see which functions each enters; then, with each mutant, those that enter it.

A mutant's code takes the place of the function's in memory, and leaves it afterwards: no file is changed.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import importlib.abc
import importlib.machinery
import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, ClassVar, NamedTuple

import jax
import pytest
from _pytest.runner import runtestprotocol

from tests.mutants import changes

ROOT = Path(__file__).parents[2]
SECONDS = 20
"""CPU seconds that a test may take with a mutant, beyond four times what it takes otherwise."""


class TooLong(BaseException):
    """A mutant loops: no `except Exception` of the package may keep that."""


class Place(NamedTuple):
    """A function: its file, its name, and the first line of its code."""

    file: str
    name: str
    first: int


def places(folder: str) -> list[Place]:
    """The functions and numbers in a file, or below a folder; of lambdas that begin in one line none, which nothing tells apart."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]:
        tree = ast.parse(path.read_text())
        own = [(name, changes.begins(node)) for name, node in changes.functions(tree)]
        own += [(name, node.lineno) for name, node in changes.constants(tree)]
        found += [Place(path.relative_to(ROOT).as_posix(), *key) for key, times in Counter(own).items() if times == 1]
    return found


@functools.cache
def uses(place: Place) -> frozenset[str]:
    """The names that a function mentions."""
    tree = ast.parse((ROOT / place.file).read_text())
    own = [node for name, node in changes.functions(tree) if (name, changes.begins(node)) == place[1:]]
    return frozenset(node.id for each in own for node in ast.walk(each) if isinstance(node, ast.Name))


class Watched(importlib.machinery.SourceFileLoader):
    """Loads a file of the package so that each of the functions first says that it is entered."""

    entered: ClassVar[set[Place]] = set()
    of: ClassVar[list[Place]] = []

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        file = Path(path).relative_to(ROOT).as_posix()
        tree = ast.parse(self.get_data(path))
        wanted = {place[1:]: place for place in self.of if place.file == file}
        for name, node in changes.functions(tree):
            if place := wanted.get((name, changes.begins(node))):
                call = ast.parse(f"__entered__({self.of.index(place)})", mode="eval").body
                for part in ast.walk(call):
                    ast.copy_location(part, node.body if isinstance(node, ast.Lambda) else node.body[0])
                if isinstance(node, ast.Lambda):
                    node.body = ast.fix_missing_locations(
                        ast.copy_location(ast.BoolOp(ast.Or(), [call, node.body]), node.body)
                    )
                else:
                    documented = ast.get_docstring(node) is not None
                    node.body.insert(documented, ast.copy_location(ast.Expr(call), node.body[0]))
        return compile(tree, path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name.startswith("jaxport.") else None
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Watched(spec.loader.name, spec.loader.path)
        return spec


class Runner:
    """Runs what `JAXPORT_MUTANTS` says: folder of the sources, count, seed, where to write."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.count, self.seed, self.out = given["count"], given["seed"], Path(given["out"])
        self.crashed = given["crashed"]
        self.items: dict[Place, list[pytest.Item]] = defaultdict(list)
        self.seconds: dict[str, float] = {}
        Watched.of = places(given["folder"])
        builtins.__entered__ = lambda index: Watched.entered.add(Watched.of[index])  # type: ignore[attr-defined]
        sys.meta_path.insert(0, Finder())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()  # what is frozen is not found
        self.look(session)
        self.try_all()
        return True

    def look(self, session: pytest.Session) -> None:
        """Run each test once, and keep which of the functions it enters."""
        for item in session.items:
            Watched.entered.clear()
            start = time.process_time()
            passed = self.passes(item)
            self.seconds[item.nodeid] = time.process_time() - start
            for place in self.reached() if passed else ():
                self.items[place].append(item)

    def reached(self) -> set[Place]:
        """The functions that were entered, and the numbers that these name."""
        naming = {place: uses(place) for place in Watched.entered}
        numbers = {place for place in Watched.of if place.name.isupper()}
        return Watched.entered | {
            number for number in numbers for place, names in naming.items() if number.name in names
        }

    def passes(self, item: pytest.Item) -> bool:
        reports = runtestprotocol(item, log=False, nextitem=item)
        return not any(report.failed for report in reports)

    def try_all(self) -> None:
        """Try the mutant of each function that was entered, and write a line for each."""
        chosen = sorted(self.items, key=lambda place: random.Random(f"{self.seed} {tuple(place)}").random())
        unseen = [f"{place.file}:{place.first} {place.name}" for place in Watched.of if place not in self.items]
        rows: list[dict[str, Any]] = [{"functions": len(Watched.of), "entered": len(self.items), "unseen": unseen}]
        self.write(rows)
        for place in chosen:
            made = changes.mutant(ROOT, *place, self.seed)
            if made is None:
                continue
            start, items = time.process_time(), self.items[place]
            if str(made) in self.crashed:
                rows.append({"mutant": str(made), "killed": "crash"})
                continue
            self.write([*rows, {"mutant": str(made), "killed": "", "begun": True}])
            by = self.killed_by(place, made, items)
            if by is None:
                continue
            rows.append(
                {"mutant": str(made), "killed": by, "tests": len(items), "seconds": time.process_time() - start}
            )
            self.write(rows)
            if len(rows) > self.count:
                break

    def write(self, rows: list[dict[str, Any]]) -> None:
        self.out.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def killed_by(self, place: Place, made: changes.Mutant, items: list[pytest.Item]) -> str | None:
        """The test that fails with the mutant; an empty text if none does, None if no function has this code now."""
        if made.code is None:
            return self.killed_without(place, items)
        code = (f"{ROOT}/{place.file}", place.first, place.name.rpartition(".")[2])
        of = lambda found: (found.__code__.co_filename, found.__code__.co_firstlineno, found.__code__.co_name)
        alive = [found for found in gc.get_objects() if isinstance(found, FunctionType) and of(found) == code]
        if not alive:
            return None
        before = [function.__code__ for function in alive]
        for function in alive:
            function.__code__ = made.code
        try:
            return self.failing(items)
        finally:
            for function, old in zip(alive, before, strict=True):
                function.__code__ = old
            forget()

    def killed_without(self, place: Place, items: list[pytest.Item]) -> str | None:
        """The test that fails if a number is twice as large wherever it is imported."""
        own = sys.modules.get(place.file.removeprefix("src/").removesuffix(".py").replace("/", "."))
        if own is None:
            return None
        value = getattr(own, place.name)
        holders = [
            module
            for name, module in sys.modules.items()
            if name.startswith("jaxport") and getattr(module, place.name, None) is value
        ]
        for module in holders:
            setattr(module, place.name, 2 * value or 1)
        try:
            return self.failing(items)
        finally:
            for module in holders:
                setattr(module, place.name, value)
            forget()

    def failing(self, items: list[pytest.Item]) -> str:
        """The test that fails now, the quickest first; an empty text if none does."""
        forget()
        try:
            for item in sorted(items, key=lambda item: self.seconds[item.nodeid]):
                with limited(SECONDS + 4 * self.seconds[item.nodeid]):
                    if not self.passes(item):
                        return item.nodeid
        except TooLong:
            return "no end"
        return ""


def forget() -> None:
    """Drop what was computed by another code: all caches of the package, and JAX's."""
    for cached in gc.get_objects():
        if isinstance(cached, functools._lru_cache_wrapper) and str(getattr(cached, "__module__", "")).startswith(
            "jaxport"
        ):
            cached.cache_clear()
    jax.clear_caches()


class limited:  # noqa: N801  used like a function
    """Raise `TooLong` inside after so many CPU seconds."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __enter__(self) -> None:
        def too_long(*_: object) -> None:
            raise TooLong

        signal.signal(signal.SIGPROF, too_long)
        signal.setitimer(signal.ITIMER_PROF, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if "JAXPORT_MUTANTS" in os.environ:  # before the package is imported
    _runner = Runner(json.loads(os.environ["JAXPORT_MUTANTS"]))

    def pytest_configure(config: pytest.Config) -> None:
        config.pluginmanager.register(_runner, "mutants")
