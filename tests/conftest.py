"""What JAX keeps of tests is dropped now and then; a part of the tests can be run; what the sweeps found is counted."""

from __future__ import annotations

import gc
import itertools
import random
import re
import resource
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

#: After so many tests what JAX compiled is dropped: all of it would be gigabytes, and slow down each further compilation.
KEPT = 100
#: A test with fewer cases than this many times the step of `sampled` runs with all of them.
FEW = 3
#: A test with as many cases runs with every second of them.
MANY = 4
#: Tests whose cases take long run every third of these; `make test ARGS="--draw 1"` runs others.
LONG = 3
#: The tests whose cases take at least so many seconds of CPU each, and where they are noted.
SECONDS = 0.3
NOTED = Path(__file__).with_name("long.txt")
#: One of so many tests prints what it exports.
PRINTED = 16
#: One of so many tests exports its cases at the oldest opset, too.
OLDEST = 4
#: Tests of the source run with all of their cases: they are quick, and the others are not theirs.
WHOLE = "tests/architecture/"
#: Marks of tests that targets of their own run, one process for all of them or in another environment.
OF_OTHER_TARGETS = ("burn", "clients", "real", "torch")
OUT_OF_TIME = "no time left"
_tests = itertools.count(1)
#: Which half of the variants of `check` a test runs; nothing if all.
_halves = pytest.StashKey[int]()
_begun = pytest.StashKey[float]()
#: Whether a test is one of those that run whatever the time.
_named = pytest.StashKey[bool]()
#: So many of them are.
MOST_NAMED = 120


@pytest.fixture(autouse=True)
def _every_second_variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `check` run every second variant of a case, and the others of the next case of the same test.

    Few tests print what they export, which takes longest, and few export at the oldest opset.
    """
    if request.config.getoption("--all-variants") or request.node.nodeid.startswith(WHOLE):
        return
    from jaxport.testing import checking

    left_out = {}
    if request.node.stash.get(_halves, None) is not None:
        halved = ("float64", "empty") if request.node.stash[_halves] % 2 else ("static", "imported")
        left_out = dict.fromkeys(halved, "every second case runs it")
    if zlib.crc32(request.node.nodeid.encode()) % PRINTED:
        left_out["printed"] = f"one of {PRINTED} tests runs it"
    if zlib.crc32(request.node.nodeid.encode()) % OLDEST:
        left_out["oldest"] = f"one of {OLDEST} tests runs it"
    monkeypatch.setattr(checking, "LEFT_OUT", left_out)


@pytest.fixture(autouse=True)
def _drop_what_was_compiled() -> Any:
    yield
    if next(_tests) % KEPT == 0 and "jax" in sys.modules:  # tests that only read files do not import it
        import jax

        jax.clear_caches()
        gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every", type=int, default=1, metavar="N", help="run every N-th case of each test that has more than N"
    )
    parser.addoption("--all-cases", action="store_true", help="run all cases of each test, not every second of many")
    parser.addoption("--all-variants", action="store_true", help="have `check` run all variants of each case")
    parser.addoption(
        "--draw", type=int, default=0, metavar="N", help="which half of cases and variants, which third of long tests"
    )
    parser.addoption("--note-long", action="store_true", help=f"write in {NOTED.name} which of the tests take long")
    parser.addoption("--order", type=int, metavar="SEED", help="run the tests in the order that a seed draws")
    parser.addoption("--first", default="", metavar="WORDS", help="first the tests that name these, whatever the time")
    parser.addoption("--hints", default="", metavar="WORDS", help="of those, first the tests that name these, too")
    parser.addoption(
        "--within",
        type=float,
        metavar="SECONDS",
        help="begin no test after so much CPU time, from when tests are collected, and say how many",
    )


def _seconds() -> float:
    """The CPU time of this process and of those that it has run."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_begun] = _seconds()


def pytest_runtest_setup(item: pytest.Item) -> None:
    within = item.config.getoption("--within")
    if within is not None and _seconds() - item.config.stash[_begun] > within and not item.stash.get(_named, False):
        pytest.skip(OUT_OF_TIME)


def _words(value: object) -> Iterator[str]:
    """The words of a case: of texts, and of the functions that compute it, with those inside."""
    if isinstance(value, str):
        yield from re.findall(r"[^\W_]+(?:_[^\W_]+)*", value)
    elif isinstance(value, tuple | list | frozenset):
        yield from itertools.chain.from_iterable(map(_words, value))
    code = value if isinstance(value, CodeType) else getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        yield from code.co_names
        yield from _words(code.co_consts)


def _plainness(items: list[pytest.Item], words: frozenset[str]) -> dict[pytest.Item, float]:
    """How plainly each test names some words: one that few of them name says more, one in the case's name and code twice."""
    parts = re.compile(rf"(?<![^\W_])(?:{'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})(?![^\W_])")
    named = {
        item: Counter({*parts.findall(item.nodeid.rpartition("::")[2])})
        + Counter({*_words([getattr(item, "function", None), *_parameters(item)])} & words)
        for item in items
    }
    common = Counter(word for found in named.values() for word in found)
    return {item: sum(count / common[word] for word, count in found.items()) for item, found in named.items()}


def _parameters(item: pytest.Item) -> Iterable[object]:
    return item.callspec.params.values() if hasattr(item, "callspec") else ()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    begun = _seconds()
    yield
    item.user_properties.append(("seconds", _seconds() - begun))


def _note_long(reports: Iterable[Any]) -> None:
    """Write which tests take long, of those that have run; what is noted of others stays."""
    seconds: dict[str, list[float]] = {}
    for report in reports:
        for key, value in getattr(report, "user_properties", ()):
            if key == "seconds" and report.when == "call":
                seconds.setdefault(report.nodeid.partition("[")[0], []).append(value)
    noted = {name for name in NOTED.read_text().split() if name not in seconds}
    noted |= {name for name, each in seconds.items() if sum(each) >= SECONDS * len(each)}
    NOTED.write_text("".join(f"{name}\n" for name in sorted(noted)))


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow the cases that `sampled` leaves out, every second of many and two of three that take long.

    Variants are halved, and `--every N` is heeded.

    With `--every N`, every N-th case of each test is kept. The first case always is, and so are all tests with no more
    than N cases, or `FEW` times as many if `sampled`.
    """
    cases = Counter(item.nodeid.partition("[")[0] for item in items)
    words, hints = (frozenset(filter(None, config.getoption(name).split(","))) for name in ("--first", "--hints"))
    if words:
        naming, plainness = _plainness(items, words), _plainness(items, words | hints)
        items.sort(key=lambda item: (not naming[item], -plainness[item]))
        for item in itertools.takewhile(naming.get, items[:MOST_NAMED]):
            item.stash[_named] = True
    sampled: Counter[str] = Counter()
    draw = config.getoption("--draw")
    turns: Counter[str] = Counter(dict.fromkeys(cases, draw))
    numbers: Counter[str] = Counter(dict.fromkeys(cases, draw))
    long, long_turns = {*NOTED.read_text().split()}, itertools.count(draw)
    for item in items:
        if item.stash.get(_named, False):
            continue
        mark = item.get_closest_marker("sampled")
        name = item.nodeid.partition("[")[0]
        if mark is not None and cases[name] >= FEW * mark.args[0]:
            if sampled[name] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            sampled[name] += 1
        is_apart = item.nodeid.startswith(WHOLE) or any(map(item.get_closest_marker, OF_OTHER_TARGETS))
        if cases[name] >= MANY and not item.get_closest_marker("slow") and not is_apart:
            if turns[name] % 2 and not config.getoption("--all-cases"):
                item.add_marker(pytest.mark.slow)
            turns[name] += 1
        runs_in_turn = name in long and not item.get_closest_marker("slow") and not is_apart
        if runs_in_turn and next(long_turns) % LONG and not config.getoption("--all-cases"):
            item.add_marker(pytest.mark.slow)
        if cases[name] > 1 and not config.getoption("--all-variants"):
            item.stash[_halves] = numbers[name]
            numbers[name] += not item.get_closest_marker("slow")
    if config.getoption("--order") is not None:
        random.Random(config.getoption("--order")).shuffle(items)
    every = config.getoption("--every")
    if every == 1:
        return
    seen: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        (kept if cases[name] <= every or seen[name] % every == 0 else left).append(item)
        seen[name] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many tests there was no time for, and of each namespace how many cells were exported and compared."""
    late = sum(OUT_OF_TIME in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if late:
        terminalreporter.write_line(f"{late} more tests were chosen, for which no time was left")
    if terminalreporter.config.getoption("--note-long"):
        _note_long(itertools.chain.from_iterable(terminalreporter.stats.values()))
    found: dict[str, Counter] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, value in getattr(report, "user_properties", ()):
                if key == "sweep" and report.when == "call":
                    namespace, what, count = value
                    found.setdefault(namespace, Counter())[what] += count
    if found:
        terminalreporter.section("sweeps")
    for namespace in sorted(found):
        counts = ", ".join(f"{count} {what}" for what, count in sorted(found[namespace].items()))
        terminalreporter.write_line(f"{namespace}: {counts}")
