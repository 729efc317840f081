"""The readers on mutated files, in processes of their own: they neither crash nor hang, and refuse in their own words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KINDS = ("onnx", "json", "yson", "xml", "stablehlo")

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux does it"
)


def fuzz(kind: str, seed: int, count: int, seconds: int) -> None:
    command = [sys.executable, "-m", "tests.fuzzing", kind, str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("kind", KINDS)
def test_some_mutated_files(kind: str):
    fuzz(kind, 0, 30, 240)


def test_some_operations_with_other_parameters():
    fuzz("operations-programs", 0, 60, 600)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_operations_with_other_parameters(seed: int):
    fuzz("operations", seed, 1000, 3600)


def test_some_programs():
    fuzz("programs", 0, 3, 600)


@pytest.mark.slow
def test_many_programs():
    fuzz("programs", 3, 300, 3600)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutated_files(kind: str, seed: int):
    fuzz(kind, seed, 400, 1800)
