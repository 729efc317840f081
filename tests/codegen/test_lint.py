"""Printed source passes the linter and the formatter; and, where that takes long, the type checker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxport
from examples.models import build
from tests.codegen.test_checkpoint import STATE, exported
from tests.codegen.test_loops import LOOPS, REPEATED
from tests.codegen.test_structured import FRAMEWORKS

BIN = Path(sys.executable).parent
RUFF, PYRIGHT = BIN / "ruff", BIN / "pyright"


def written(framework: str, folder: Path) -> list[Path]:
    """A handful of models as source."""
    models = {
        "checkpoint": exported(STATE),
        "caches": LOOPS["separate caches"][0],
        "states": LOOPS["every state"][0],
        "stack": REPEATED["a stack"][0],
    }
    for name in ("mlp", "cnn", "lstm", "llama"):
        example = build(name, "nnx", "small")
        models[name] = jaxport.to_onnx(example.fn, example.inputs, **example.options).model
    return [
        jaxport.from_onnx(model).to_source(folder / name, framework=framework).save(folder / name)
        for name, model in models.items()
    ]


@pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_source_is_clean(framework: str, tmp_path: Path) -> None:
    files = written(framework, tmp_path)
    for command in (["check", "--isolated"], ["format", "--isolated", "--line-length", "100", "--check"]):
        done = subprocess.run([RUFF, *command, *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


PADDING = re.compile(r'to parameter "padding" of type "str"(.|\n)* in function "(avg|max)_pool"')


@pytest.mark.slow
@pytest.mark.skipif(not PYRIGHT.exists(), reason="pyright is not installed")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_types_are_sound(framework: str, tmp_path: Path) -> None:
    files = written(framework, tmp_path)
    command = [PYRIGHT, "--pythonpath", sys.executable, *files]
    done = subprocess.run([*command, "--outputjson"], capture_output=True, text=True, check=False, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(files)
    # Flax does not annotate the padding of its pools, and pyright takes the type of the default for that of all.
    assert [each for each in found["generalDiagnostics"] if not PADDING.search(each["message"])] == []
