"""The loader on mutated files, in processes of their own: it neither crashes nor hangs, and refuses in its own words."""

from __future__ import annotations

import subprocess
import sys

import pytest


def fuzz(seed: int, count: int, seconds: int) -> None:
    command = [sys.executable, "-m", "tests.importer.fuzzing", str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}"


def test_some_mutated_files():
    fuzz(0, 60, 120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_mutated_files(seed: int):
    fuzz(seed, 400, 1800)
