"""The notebooks of the documentation run from top to bottom, and are stored without outputs, which would grow old."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DOCS / "files", tmp_path, dirs_exist_ok=True)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            assert cell["execution_count"] is None
            source = "".join(cell["source"])
            exec(compile(ast.parse(source), f"{path.name}, cell {number}", "exec", dont_inherit=True), namespace)


def test_the_page_names_every_notebook():
    page = (DOCS / "notebooks.md").read_text()
    assert all(f"(notebooks/{path.name})" in page for path in NOTEBOOKS)
    assert len(NOTEBOOKS) == 4
