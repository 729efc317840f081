"""The site has four parts, and pages that are made: notebooks, and files of the project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")  # rows of the matrix have no tools for documentation

from scripts import site_hooks

ROOT = Path(__file__).parents[2]
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\nhooks:")[0]


def test_the_navigation_has_four_parts():
    assert re.findall(r"^  - (.+?):", NAVIGATION, re.MULTILINE) == [
        "Home",
        "Tutorials",
        "How-to guides",
        "Reference",
        "Explanation",
    ]


def test_the_navigation_has_every_page():
    listed = set(re.findall(r"[\w/.-]+\.md", NAVIGATION))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
    assert listed == pages | notebooks | set(site_hooks.PAGES)


@pytest.mark.parametrize("name", site_hooks.PAGES.values())
def test_a_page_of_the_project_has_links_that_lead_somewhere(name: str):
    text = site_hooks.project_page(ROOT / name)
    for link in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text):
        if link.startswith("http"):
            continue
        made = link in site_hooks.PAGES or (ROOT / "docs" / link).is_file()
        assert made, f"{name}: {link}"


def test_a_notebook_is_a_page_with_its_file():
    page = site_hooks.notebook_page(ROOT / "docs" / "notebooks" / "lora.ipynb")
    assert page.startswith("# LoRA\n")
    assert "[Download this notebook](lora.ipynb)" in page
    assert "import jaxport" in page


def test_the_home_page_links_to_others():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for name in ("ONNX", "ONNX Runtime", "JAX", "Flax", "Equinox", "Burn", "Netron", "jax2onnx", "torch.onnx"):
        assert re.search(rf"\[{re.escape(name)}\]\(https://", text), name


def test_the_figures_of_the_home_page_are_those_of_the_pages():
    measured = (
        (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("## Measurements")[2].partition("\n## ")[0]
    )
    rows = [row for row in measured.splitlines() if re.search(r"\w\.md\)", row)]
    assert len(rows) > 5
    for row in rows:
        (page,) = re.findall(r"\((\w+\.md)\)", row)
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        medians = re.search(r"## Median.*", text)  # the row is about these alone, if there are some
        text = medians[0] if medians else text
        figures = re.findall(r"\b\d+(?:[.,]\d+)+|\b\d{3,}\b", row.split("|")[2])
        assert [figure for figure in figures if not re.search(rf"\b{re.escape(figure)}\b", text)] == [], page


def test_the_search_prefers_guides_to_signatures_and_tables():
    from types import SimpleNamespace

    from scripts.site_hooks import BOOSTS, on_page_markdown

    def boost(file: str, *sections: str) -> float:
        page = SimpleNamespace(
            meta={}, file=SimpleNamespace(src_uri=file), ancestors=[SimpleNamespace(title=title) for title in sections]
        )
        assert on_page_markdown("text", page) == "text"  # type: ignore[arg-type]
        return page.meta["search"]["boost"]

    guide = boost("export.md", "Models", "How-to guides")
    assert guide > boost("faq.md", "Explanation") > boost("reference/exporting.md", "Python", "Reference")
    assert boost("changelog.md", "Explanation") < boost("reference/exporting.md", "Python", "Reference")
    assert {
        line.strip("- :") for line in NAVIGATION.splitlines() if line.startswith("  - ") and line.endswith(":")
    } == {*BOOSTS}
