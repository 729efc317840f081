"""The code blocks of the documentation and of the README run, in order, and print what the pages say.

A block with a title is also written to a file of that name. A `text` block after a Python block is what that block
prints, where `...` stands for anything. Of a console block, the lines `$ jaxport …` run. The files of `docs/files` are there.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from jaxport.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "reference").glob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    code: str
    line: int


def blocks_of(page: str) -> list[Block]:
    return [
        Block(
            match["language"],
            "".join(re.findall(r'title="([^"]+)"', match["options"])),
            textwrap.dedent(match["code"]),
            page.count("\n", 0, match.start()) + 1,
        )
        for match in FENCE.finditer(page)
    ]


def printed_by(block: Block, page: Path, namespace: dict[str, object]) -> str:
    """Runs a block so that errors point at the line of the page."""
    code = compile("\n" * block.line + block.code, str(page), "exec", dont_inherit=True)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, namespace)
    return output.getvalue()


def run_page(page: Path, text: str) -> None:
    namespace: dict[str, object] = {"__name__": "page"}
    printed: str | None = None
    for block in blocks_of(text):
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.code)
        if block.language == "python":
            printed = printed_by(block, page, namespace)
        elif block.language == "text" and printed is not None:
            matches = doctest.OutputChecker().check_output(block.code, printed, doctest.ELLIPSIS)
            assert matches, f"{page.name}:{block.line}: expected\n{block.code}\nbut it printed\n{printed}"
            printed = None
        elif block.language == "console":
            for command in re.findall(r"^\$ jaxport (.*)", block.code, re.MULTILINE):
                with pytest.raises(SystemExit) as stop:
                    main(shlex.split(command))
                assert stop.value.code == 0, f"{page.name}: jaxport {command}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pages write files and register rules and operators: in a folder of their own, and undone afterwards."""
    from jaxport.codegen.flax.layers import LAYERS  # the package registers operators of its own, which stay
    from jaxport.codegen.structure.recognition.recognisers import RECOGNISERS
    from jaxport.export import rules as registry
    from jaxport.importer.resolving import registry as importer_registry

    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "docs" / "files", tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    loaded = set(sys.modules)
    rules, block_rules = dict(registry.RULES), dict(registry.BLOCK_RULES)
    layers, recognisers = dict(LAYERS), list(RECOGNISERS)
    monkeypatch.setattr(importer_registry, "_registry", dict(importer_registry._registry))
    yield
    for name in set(sys.modules) - loaded:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
    for registered, before in ((registry.RULES, rules), (registry.BLOCK_RULES, block_rules)):
        registered.clear()
        registered.update(before)
    LAYERS.clear()
    LAYERS.update(layers)
    RECOGNISERS[:] = recognisers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_a_page_runs(page: Path):
    run_page(page, page.read_text())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```", ZeroDivisionError),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", AssertionError),
        ("    ```python\n    1 / 0\n    ```", ZeroDivisionError),
        ("```console\n$ jaxport inspect missing.onnx\n```", AssertionError),
    ],
)
def test_the_test_sees_a_wrong_page(text: str, error: type[BaseException]):
    with pytest.raises(error):
        run_page(ROOT / "page.md", text)


def test_a_right_page_passes():
    run_page(
        ROOT / "page.md",
        '```python title="m.py"\na = 1\n```\n```python\nimport m\nprint(m.a, 7)\n```\n```text\n1 ...\n```',
    )
