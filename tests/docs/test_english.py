"""Pages, errors, docstrings and help say things as a native engineer does: the worst patterns that were found stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A pattern, and what to write instead.
BANNED = {
    r"\bquer(?:y|ies) (?:that )?hits?\b": "match",
    r"\bthat come again\b": "repeated",
    r"\bof a type of its own\b": "a custom type",
    r"\bwherever they are shown\b": "in all output",
    r"\bdivides it, or makes\b": "duplicates or splits",
    r"\bas numbers that are known\b": "when constant-folded",
    r"\bin the order that\b.*\bdraws\b": "in random order",
    r"\bfor (?:WITHIN|SECONDS) seconds\b": "for up to … seconds",
    r"\bwant cross-origin\b": "need",
    r"\btested 0 in\b": "leave out what is zero",
    r"(?<![\d,.])1 (?:nodes|operations|operators|tensors|elements|parameters|matches|constants|modules|calls)\b": "the singular",
    r"(?<!here)(?<!here\s)\b(?:is|are)\sno\s(?:tensor|array|function|number|identifier|file|list|module|program|parameter)s?\b": "is not a",
    r"\bof which (?:one|some) (?:has|have) to\b": "one of which",
    r"\bwhich is why it is\b": "so it is",
    r"\binformations\b": "information",
    r"\badvices\b": "advice",
    r"\bdepends from\b": "depends on",
    r"\ballows to\b": "allows you to, or lets you",
    r"\bcontrary to\b.*\bin contrary\b": "unlike",
    r"\bhow it looks like\b": "what it looks like",
    r"\bsince \d+ (?:days|months|years)\b": "for",
    r"\bmake(?:s)? a difference between\b": "distinguish",
    r"\bby way of its own\b": "through its own",
    r"\blet (?:the|a) function take sizes\b": "say what the function takes",
    r"\bas far as possible\b": "where possible",
}
# Generated pages, and texts of others.
LEFT_OUT = {"docs/printed.md", "docs/examples.md"}


def files() -> list[Path]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile", ROOT / "mkdocs.yml"]
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    return [path for path in (*pages, *sources) if path.relative_to(ROOT).as_posix() not in LEFT_OUT]


def found(text: str) -> list[str]:
    """The places of banned patterns: the line, and what to write instead; a pattern may go over the end of a line."""
    return [
        f"{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())!r}: {instead}"
        for pattern, instead in BANNED.items()
        for match in re.finditer(pattern.replace(" ", r"\s+"), text)
    ]


def test_no_page_error_or_docstring_has_a_banned_pattern():
    wrong = {path.relative_to(ROOT).as_posix(): lines for path in files() if (lines := found(path.read_text("utf-8")))}
    assert not wrong


@pytest.mark.parametrize(
    "text",
    [
        "the modules that queries hit",
        "statements that come\nagain a function",
        "The dict is then of a type of its own.",
        "1 nodes of 1 operators",
        "in the order that SEED draws, for WITHIN seconds",
        "this allows to export it",
        "what is no\ntensor",
    ],
)
def test_a_banned_pattern_is_found(text: str):
    assert found(text)


def test_the_pattern_of_a_number_looks_at_the_whole_number():
    assert not found("11 nodes, 1,001 operations")


def test_what_is_not_there_may_be_no_tensor():
    assert not found("there is no tensor, and there are\nno files")
