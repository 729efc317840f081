"""The generated pages are those of the tables, of the registry and of what was measured."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from jaxport.export import schema
from scripts.coverage import failures
from scripts.coverage_pages import coverage, operators
from scripts.rule_lines import lengths
from tests.export.sweeps.namespaces import NAMESPACES

DOCS = Path(__file__).parents[3] / "docs"
MEASURED = {
    "namespace": "jax.nn", "name": "relu", "listed as refused": False, "primitives": ["max"], "operators": ["Relu"],
    "cells": {"float32, static, plain": ["exported", ""], "int8, static, plain": ["wrong", "1 differs\nexpected …"]},
}  # fmt: skip


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.name)
def test_the_page_has_what_the_table_has(namespace):
    """`make sweeps` writes the page anew."""
    page = (DOCS / "coverage.md").read_text()
    (row,) = re.findall(
        rf"^\| `{re.escape(namespace.name)}` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", page, re.MULTILINE
    )
    functions = len(namespace.cases) + len(namespace.refused)
    assert [int(n) for n in row] == [len(namespace.names), functions, len(namespace.cases), len(namespace.refused)]
    section = page.split(f"## `{namespace.name}`\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) >= set(namespace.names)


def test_the_versions_of_operators():
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| \d+ \|$", (DOCS / "emitted.md").read_text(), re.MULTILINE)
    assert len(rows) > 80
    assert all(schema.first_opset("", name) == int(since) for name, since in rows)


def test_the_pages_of_some_results():
    assert "| `jax.nn` |" in coverage([MEASURED])
    assert "the sweeps reach 1." in coverage([MEASURED])
    assert "| `Relu` | 1 | 1 |" in operators([MEASURED])


def test_what_is_not_as_listed_is_a_failure():
    assert failures([MEASURED]) == ["jax.nn.relu [int8, static, plain] wrong: 1 differs"]
    assert failures([{**MEASURED, "cells": {}}]) == ["jax.nn.relu: JAX accepts no cell"]
    assert len(failures([{**MEASURED, "listed as refused": True}])) == 2


def test_rules_are_short():
    assert statistics.median(lengths().values()) <= 6
