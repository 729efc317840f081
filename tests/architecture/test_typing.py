"""Type checkers see what the package is: a client passes, and its mistakes are found (`typed_client.py`)."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxport.codegen.printing import FRAMEWORKS
from jaxport.export.api import Checks, Fold
from jaxport.export.delivery.targets import TARGETS, TargetName
from jaxport.export.precision.names import PRECISIONS, PrecisionName
from jaxport.importer.names import Framework
from tests.architecture.sources import SOURCE

ROOT = SOURCE.parent
CLIENT = Path(__file__).with_name("typed_client.py")


def refused_lines() -> set[int]:
    lines = CLIENT.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if "# error:" in line}


def lines_with_errors(*command: str) -> set[int]:
    done = subprocess.run([sys.executable, "-m", *command], check=False, cwd=ROOT, capture_output=True, text=True)
    found = re.findall(rf"{CLIENT.name}:(\d+)(?::\d+)?(?: -|:) error", done.stdout)
    assert found, done.stdout + done.stderr
    return {int(number) for number in found}


def test_pyright_finds_the_mistakes_of_a_client_and_no_others():
    pytest.importorskip("pyright", reason="a tool of developers, in the extra `dev`")
    assert lines_with_errors("pyright", "--pythonpath", sys.executable, str(CLIENT)) == refused_lines()


@pytest.mark.slow
def test_mypy_finds_the_mistakes_of_a_client_and_no_others(tmp_path: Path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is a tool of developers, in the extra `dev`")
    options = ["--ignore-missing-imports", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    assert lines_with_errors("mypy", *options, str(CLIENT)) == refused_lines()


@pytest.mark.parametrize(
    ("literal", "names"),
    [
        (TargetName, TARGETS),
        (PrecisionName, PRECISIONS),
        (Framework, FRAMEWORKS),
        (Checks, ("discard", "refuse")),
        (Fold, ("constants", "weights")),
    ],
)
def test_the_literals_are_the_names_that_are_taken(literal, names):
    assert set(literal.__args__) == set(names)
