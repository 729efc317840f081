"""The helper functions in Rust: those that rules call are there, and those that are there are called."""

from __future__ import annotations

import re
from pathlib import Path

import jaxport.codegen.burn as package
from jaxport.codegen.burn.checks import CHECK_HELPERS
from jaxport.codegen.burn.helpers import names, source
from jaxport.codegen.burn.layers import CELL_HELPERS
from jaxport.codegen.burn.rules import elementwise

FOLDER = Path(next(iter(package.__path__)))
TEXT = "\n".join(path.read_text() for path in FOLDER.rglob("*.py"))
CALLED = {
    *re.findall(r'helper\(\s*"(\w+)"', TEXT),
    *re.findall(r'helpers\.add\("([a-z]\w*)"\)', TEXT),
    *elementwise.HELPERS,
    *(name + kind for name in re.findall(r'of_kind\("(\w+)"', TEXT) for kind in ("", "_int")),
    *("maximum", "minimum"),
    *CHECK_HELPERS,
    *CELL_HELPERS,
    *re.findall(r'_dynamic\(body, "(\w+)"', TEXT),
    *(name for pair in re.findall(r'called = "(\w+)" if .* else "(\w+)"', TEXT) for name in pair),
}
"""The names of the helpers that rules call."""


def test_each_helper_that_a_rule_calls_is_there() -> None:
    assert names() >= CALLED


def test_each_helper_is_called() -> None:
    text = source(CALLED)
    assert [name for name in sorted(names()) if f"fn {name}<" not in text and f"fn {name}(" not in text] == []


def test_helpers_bring_what_they_call_and_nothing_else() -> None:
    text = source(["argsort"])
    assert "fn nan_last(" in text
    assert "fn ordered<" in text
    assert "fn top_k<" not in text
