"""What mkdocs runs while it builds the site: addresses, pages of the project, and notebooks as pages.

The address of the repository is that of `pyproject.toml`. Pages that lie outside `docs` (the changelog, how to
contribute) are shown as they are, with their links turned; a notebook runs, and is shown as text, code and what that
prints, with a link to its file.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "changelog.md": "CHANGELOG.md",
    "citation.md": "CITATION.cff",
    "conduct.md": "CODE_OF_CONDUCT.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""The pages of the site that are files of the repository."""


BOOSTS = {"Tutorials": 3.0, "How-to guides": 3.0, "Reference": 0.5, "Explanation": 1.0}
"""How much the search prefers the pages of a section: whoever looks for `opset` wants the guide before a signature."""
LAST = {"changelog.md": 0.2, "coverage.md": 0.2, "emitted.md": 0.2, "operators.md": 0.2, "command.md": 2.0}
"""Pages whose tables have all words, and one of the reference that is a guide."""


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Say how much the search prefers a page, unless the page says so itself."""
    section = page.ancestors[-1].title if page.ancestors else ""
    page.meta.setdefault("search", {"boost": LAST.get(page.file.src_uri, BOOSTS.get(section, 1.0))})
    return markdown


def repository() -> str:
    """Return the address of the repository."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the addresses of the repository and of the link for editing a page."""
    config.repo_url = repository()
    config.repo_name = "jaxport"
    config.edit_uri = "edit/main/docs/"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs`."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=project_page(ROOT / source)))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        page = notebook_page(notebook, outputs_of(notebook))
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=page))
    return files


def project_page(path: Path) -> str:
    """Return a file of the repository as a page: links into `docs` stay on the site, others lead to the repository."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cff":
        return f"# Citation\n\nIf you use jaxport in your work, please cite it:\n\n```yaml\n{text}```\n"
    known = {source: page for page, source in PAGES.items()}

    def turned(link: re.Match[str]) -> str:
        target = link[1]
        if re.match(r"https?://|#|mailto:", target):
            return link[0]
        if target.startswith("docs/"):
            return f"]({target.removeprefix('docs/')})"
        return f"]({known.get(target, f'{repository()}/blob/main/{target}')})"

    return re.sub(r"\]\(([^)\s]+)\)", turned, text)


def notebook_page(path: Path, outputs: Sequence[str] = ()) -> str:
    """Return a notebook as a page: text, code and what the code printed, with a link to its file."""
    cells, left = json.loads(path.read_text(encoding="utf-8"))["cells"], iter(outputs)
    texts = [_cell(cell, next(left, "") if cell["cell_type"] == "code" else "") for cell in cells]
    note = f"[Download this notebook]({path.name}){{ .md-button download }}"
    return "\n\n".join([texts[0], note, *texts[1:]]) + "\n"


def _cell(cell: dict[str, Any], output: str) -> str:
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        return source
    return f"```python\n{source}\n```" + (f"\n\n```text\n{output}\n```" if output else "")


@functools.cache
def outputs_of(path: Path) -> list[str]:
    """Run a notebook in a process of its own, and return what each cell of code printed."""
    command = [sys.executable, "-W", "ignore", "-m", "scripts.notebook_outputs", str(path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
