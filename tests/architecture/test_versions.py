"""The bounds in `pyproject.toml` are those that the tests were run with."""

from __future__ import annotations

import re
import tomllib

from jaxport import jaxprs
from tests.architecture.sources import SOURCE

ROOT = SOURCE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stated() -> dict[str, str]:
    """The lower bound of each library that a user installs with the package."""
    extras = PROJECT["optional-dependencies"]
    wanted = [
        *PROJECT["dependencies"],
        *(item for name in ("runtime", "flax", "equinox", "images") for item in extras[name]),
    ]
    return dict(item.split(">=") for item in wanted)


def test_the_lower_bounds_are_the_tested_ones():
    lines = (ROOT / "tests" / "matrix" / "lower-bounds.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert tested == stated()


def test_no_library_has_an_upper_bound():
    assert [item for item in PROJECT["dependencies"] if "<" in item] == []


def test_the_lowest_jax_is_the_first_tested_release():
    assert stated()["jax"] == str(jaxprs.TESTED[0])


def test_the_makefile_runs_every_tested_release():
    run = re.findall(r"^matrix_(?:\S+) := .*jax==(\d+\.\d+\.\d+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert run == [str(release) for release in jaxprs.TESTED]


def test_each_supported_python_is_named():
    named = [item.split(" :: ")[-1] for item in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", item)]
    assert named == ["3.11", "3.12", "3.13"]


def test_the_tested_releases_are_in_order():
    assert list(jaxprs.TESTED) == sorted(jaxprs.TESTED)
