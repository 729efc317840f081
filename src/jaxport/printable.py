"""Text from elsewhere as it may be shown: names that come out of files reach terminals, tables, pages and documents."""

from __future__ import annotations

import html
import sys

_SPELLINGS = {
    "…": "...", "×": "x", "–": "-", "—": "-", "−": "-", "→": "->", "←": "<-", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~",
    "’": "'", "‘": "'", "“": '"', "”": '"', "·": ".", "•": "*", "µ": "u", "│": "|", "─": "-", "━": "-", "└": "`",
    "├": "|",
}  # fmt: skip


def printable(text: str) -> str:
    r"""Return a text with everything that has no glyph written as Python writes it in a string.

    That is what a terminal obeys (C0 and C1 controls, of which newlines are some), what changes the order of the text
    around it (bidirectional overrides), what is not seen (zero-width characters, spaces other than the plain one), and
    what no encoding or document can hold (halves of surrogate pairs, noncharacters). A backslash stays one, so that
    what is printable is never changed.

    >>> print(printable("layer\x1b[2J\u202e.0"))
    layer\x1b[2J\u202e.0
    """
    if text.isprintable():
        return text
    return "".join([character if character.isprintable() else ascii(character)[1:-1] for character in text])


def printable_lines(text: str) -> str:
    r"""Return a text of several lines, each `printable`.

    >>> print(printable_lines("one\x07\ntwo"))
    one\x07
    two
    """
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def spelled(text: str) -> str:
    r"""Return a text in ASCII: as it is usually spelled where there is such a spelling, otherwise as Python writes it.

    >>> print(spelled("2×3 → ≥1 é"))
    2x3 -> >=1 \xe9
    """
    return "".join(_SPELLINGS.get(each) or (each if each.isascii() else ascii(each)[1:-1]) for each in text)


def shown(text: str) -> str:
    """Return a text as the standard output can show it: a file on Windows, or a pipe under `LANG=C`, lacks
    characters.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(each if _has(encoding, each) else spelled(each) for each in text)
    return text


def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


class Shown:
    """What is shown as a text of tables: by `print`, at a prompt, and in a notebook."""

    def text(self) -> str:
        """Return the whole text."""
        raise NotImplementedError

    def __str__(self) -> str:
        return shown(self.text())

    def __repr__(self) -> str:
        return shown(self.text())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"
