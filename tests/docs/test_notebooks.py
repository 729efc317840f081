"""The notebooks of the documentation run from top to bottom, and are stored without outputs, which would grow old: the site runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.notebook_outputs import outputs, sources
from scripts.site_hooks import notebook_page

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert cell["cell_type"] == "markdown" or (not cell["outputs"] and cell["execution_count"] is None)
    printed = outputs(path)
    assert len(printed) == len(sources(path))
    assert all(f"```text\n{text}\n```" in notebook_page(path, printed) for text in printed if text)
    assert any(printed)


def test_the_page_names_every_notebook():
    page = (DOCS / "notebooks.md").read_text()
    assert all(f"(notebooks/{path.name})" in page for path in NOTEBOOKS)
    assert len(NOTEBOOKS) == 4
