"""The files of the package as syntax trees, each read and parsed once for all tests of the architecture."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@contextmanager
def _kept() -> Iterator[None]:
    """Keep the collector away from what is made here: it is never garbage, and looking at it takes longer than making it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    with _kept():
        return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file, outer ones first, as `ast.walk` yields them."""
    with _kept():
        return tuple(ast.walk(tree_of(path)))


def code_lines(source: str, nodes: Sequence[ast.AST] | None = None) -> int:
    """The lines with code: neither empty, nor comments or docstrings. `nodes` are those of the source, if it is parsed."""
    lines = {
        at for at, line in enumerate(source.splitlines(), 1) if (text := line.strip()) and not text.startswith("#")
    }
    texts = [
        node
        for node in nodes or ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr | ast.Constant | ast.JoinedStr)
    ]
    spans = lambda node: set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for node in texts:  # a text of several lines may have empty ones, and some that look like comments
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            lines |= spans(node)
    for node in texts:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= spans(node)
    return len(lines)
