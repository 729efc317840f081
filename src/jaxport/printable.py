"""Text from elsewhere as it may be shown: names that come out of files reach terminals, tables, pages and documents."""

from __future__ import annotations

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    r"""Return a text with everything that has no glyph written as Python writes it in a string.

    That is what a terminal obeys (C0 and C1 controls, of which newlines are some), what changes the order of the text
    around it (bidirectional overrides), what is not seen (zero-width characters, spaces other than the plain one), and
    what no encoding or document can hold (halves of surrogate pairs, noncharacters). A backslash stays one, so that what
    is printable is never changed.

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
