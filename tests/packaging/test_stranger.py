"""A stranger's package, `stranger/`: strict type checkers pass, and it runs without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxport

FOLDER = Path(__file__).parent
SOURCE = Path(jaxport.__file__).parents[1]
PROGRAM = """
import tempfile, pathlib
import jax.numpy as jnp
import stranger
from stranger.service import checked, edited, refused

served = stranger.deploy(pathlib.Path(tempfile.mkdtemp()))
assert served.answer(jnp.ones((3, 8)))[0].shape == served.program(jnp.ones((3, 8))).shape == (3, 4)
assert "Sin" in [node.op_type for node in edited().model.graph]
checked()
assert "opset" in refused() and "opset" in served.needs()
assert callable(stranger.gated) and stranger.gated.__name__ == "gated"
"""


def ran(*command: str, **options: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(FOLDER), str(SOURCE)]),
        "MYPYPATH": str(SOURCE),
        **options,
    }
    return subprocess.run(
        [sys.executable, *command], env=variables, cwd=FOLDER, capture_output=True, text=True, check=False
    )


def test_it_runs_where_warnings_are_errors():
    done = ran("-W", "error", "-c", PROGRAM, JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr[-3000:]


def test_pyright_has_nothing_to_say():
    pytest.importorskip("pyright", reason="a tool of developers, in the extra `dev`")
    done = ran("-m", "pyright", "--pythonpath", sys.executable, "stranger")
    assert not re.search(r" error: ", done.stdout), done.stdout


@pytest.mark.slow
def test_mypy_has_nothing_to_say(tmp_path: Path):
    pytest.importorskip("mypy", reason="a tool of developers, in the extra `dev`")
    options = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    done = ran("-m", "mypy", *options, "stranger")
    assert done.returncode == 0, done.stdout
