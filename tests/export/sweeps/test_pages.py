"""The generated pages are those of the tables, of the registry and of what was measured."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import flax
import jax
import pytest

from jaxport.onnx_facts import schema
from scripts.coverage_pages import coverage, operators
from scripts.coverage_run import Results, Task, failures, run_tasks
from scripts.rule_lines import lengths
from tests.export.sweeps.namespaces import NAMESPACES

DOCS = Path(__file__).parents[3] / "docs"
MEASURED = {
    "namespace": "jax.nn", "name": "relu", "primitives": ["max"], "operators": ["Relu"], "designs": ["covering"],
    "seconds": 3600, "cells": {"float32, static, plain": ["exported", ""], "int8, static, plain": ["wrong", "1 differs\nexpected …"]},
}  # fmt: skip


MEASURED_WITH = re.findall(r"Measured\s+with\s+jax\s+(\S+),\s+flax\s+(\S+),", (DOCS / "coverage.md").read_text())[0]


@pytest.mark.skipif(
    (jax.__version__, flax.__version__) != MEASURED_WITH, reason="the page is that of another release of JAX or Flax"
)
@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.name)
def test_the_page_has_what_the_table_has(namespace):
    """`make sweeps` writes the page anew."""
    page = (DOCS / "coverage.md").read_text()
    (row,) = re.findall(
        rf"^\| `{re.escape(namespace.name)}` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", page, re.MULTILINE
    )
    counted = (namespace.names, namespace.every, namespace.cases, namespace.refused, namespace.elsewhere)
    assert [int(n) for n in row] == [len(names) for names in counted]
    section = page.split(f"## `{namespace.name}`\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) >= set(namespace.names)


def test_the_versions_of_operators():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| \d+ \|$", (DOCS / "emitted.md").read_text(), re.MULTILINE)
    assert len(rows) > 80
    assert all(schema.first_opset("", name) == int(since) for name, since in rows)


def test_the_pages_of_some_results():
    page = coverage([MEASURED])
    said = " ".join(page.split())
    assert "1 was tested in a covering set of cells" in said
    assert "compared 1 cell in 60 minutes on one core; another 0 cells" in said
    assert "* jax.nn.relu [int8, static, plain] wrong: 1 differs\n" in page
    assert "the sweeps reach 1." in page
    assert "| `Relu` | 1 | 1 |" in operators([MEASURED])


def test_what_is_not_as_listed_is_a_failure():
    assert failures([MEASURED]) == ["jax.nn.relu [int8, static, plain] wrong: 1 differs"]
    assert failures([{**MEASURED, "cells": {}}]) == ["jax.nn.relu: JAX accepts no cell"]
    assert len(failures([{**MEASURED, "namespace": "jax.lax", "name": "rng_uniform"}])) == 2
    assert len(failures([{**MEASURED, "namespace": "jax.lax", "name": "ragged_all_to_all"}])) == 2


def test_results_are_kept_and_what_is_left_is_known(tmp_path):
    results = Results(tmp_path / "out" / "results.jsonl")
    results.add({**MEASURED, "designs": []})
    results = Results(results.path)
    left = Task("jax.nn", "relu", "covering", skip=frozenset(MEASURED["cells"]))
    assert results.task("jax.nn", "relu", "covering") == left
    results.add({**MEASURED, "cells": {"int8, static, plain": ["exported", ""]}, "operators": ["Max"]})
    assert results.task("jax.nn", "relu", "covering") is None
    assert results.task("jax.nn", "relu", "all") is not None
    assert failures(list(results.functions.values())) == []
    assert Results(results.path).functions["jax.nn.relu"]["operators"] == ["Max", "Relu"]
    results.keep([])
    assert Results(results.path).functions == {}


@pytest.mark.slow
def test_a_process_that_does_not_come_back_is_replaced(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    cell = "float32, static, plain"
    assert list(run_tasks([Task("jax.nn", "relu", "all", only=(cell,))], results, 1, limit=0.01)) == ["jax.nn.relu"]
    (outcome,) = results.functions["jax.nn.relu"]["cells"].values()
    assert outcome[0] == "timed out"
    assert list(run_tasks([Task("jax.nn", "relu", "all", only=(cell,))], results, 1, limit=300)) == ["jax.nn.relu"]
    assert results.functions["jax.nn.relu"]["cells"][cell] == ["exported", ""]


def test_rules_are_short():
    assert statistics.median(lengths().values()) <= 6
