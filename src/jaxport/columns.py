"""Tables as plain text: the columns of errors, explanations, accounts and reports."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jaxport.printable import printable

WIDEST = 200
"""The largest width of a column: a longer cell is shown whole, and moves what follows it in its row."""


def aligned(rows: Sequence[Sequence[str]], gap: int = 2, right: Collection[int] = ()) -> Iterator[str]:
    """Yield each row as a line, its cells made `printable` and padded to the widths of their columns.

    Args:
      rows: the rows; all have the same number of cells.
      gap: the number of spaces between two columns.
      right: the columns that are aligned to the right.

    >>> list(aligned([("name", "size"), ("kernel", "8")], right={1}))
    ['name    size', 'kernel     8']

    One long cell does not move the others' columns away:

    >>> [len(line) for line in aligned([("x" * 300, "8"), ("kernel", "8")])]
    [303, 203]
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [min(max(map(len, column)), WIDEST) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        padded = [cell.rjust(width) if index in right else cell.ljust(width) for index, (cell, width) in cells]
        yield (" " * gap).join(padded).rstrip()


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> counted(1, "node"), counted(1200, "node"), counted(2, "match", "matches")
    ('1 node', '1,200 nodes', '2 matches')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def titled(title: str, rows: Sequence[Sequence[str]], gap: int = 2) -> str:
    """Return a title with the rows below it, indented.

    >>> print(titled("weights:", [("name", "size"), ("kernel", "8")]))
    weights:
      name    size
      kernel  8
    """
    return "\n".join([printable(title), *(f"  {line}" for line in aligned(rows, gap))])
