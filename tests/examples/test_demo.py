from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from examples import demo


def test_the_demo_exports_verifies_shows_and_imports_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    demo.main("small", tmp_path / "out")
    shown = capsys.readouterr().out
    path = tmp_path / "out" / "resnet50.onnx"
    onnx.checker.check_model(path, full_check=True)
    assert path.name in shown
    assert "\\n" not in shown  # the table of modules has lines
    assert re.search(r"Conv\s*│\s*\d+", shown)
    errors = [float(error) for error in re.findall(r"relative error (\S+),", shown)]
    assert len(errors) == len(demo.BATCHES) + 1
    assert (path.with_suffix("") / "model.py").exists()
    assert "imported back" in shown
    assert "flax.nnx.Linear" in shown  # the head, one of the outermost modules
    assert max(errors) < 1e-4
