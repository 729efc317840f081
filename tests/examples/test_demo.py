from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from examples import demo
from tests.cli.running import run


def test_the_demo_exports_verifies_shows_and_imports_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    demo.main("small", Path("out"))
    shown = capsys.readouterr().out
    path = Path("out/resnet50.onnx")
    onnx.checker.check_model(path, full_check=True)
    assert path.name in shown
    assert "\\n" not in shown  # the table of modules has lines
    assert re.search(r"Conv\s*│\s*\d+", shown)
    errors = [float(error) for error in re.findall(r"\d\.\de-\d+", shown)]
    assert len(errors) == 2 * len(demo.BATCHES)  # of each batch: there, and back
    assert (path.with_suffix("") / "model.py").exists()
    assert "imported back" in shown
    assert "flax.nnx.Linear" in shown  # the head, one of the outermost modules
    assert max(errors) < 1e-4
    assert not re.search(r"^[│ ]*(ms|s|B|kB|MB|elements|calls)\b", shown, re.MULTILINE), "a unit is on another line"
    code = (path.with_suffix("") / "model.py").read_text()
    told = shown.partition("lines:\n\n")[2].partition("\n\nNext:")[0].strip().splitlines()
    assert 10 < len(told) <= demo.LINES
    assert "\n".join(told) in code
    for command in re.findall(r"\.venv/bin/jaxport (.*)", shown.partition("Next:")[2]):
        assert run(*command.split()) == 0
