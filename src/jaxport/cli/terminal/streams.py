"""Output streams that cannot show every character: pipes on Windows, `LANG=C`.

What a stream's encoding lacks is written in ASCII: as a spelling that is usual where there is one, otherwise as Python
writes it in a string.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections.abc import Iterator

__all__ = ["readable"]

_NAME = "jaxport-readable"
_SPELLINGS = {
    "…": "...", "×": "x", "–": "-", "—": "-", "−": "-", "→": "->", "←": "<-", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~",
    "’": "'", "‘": "'", "“": '"', "”": '"', "·": ".", "•": "*", "µ": "u", "│": "|", "─": "-", "━": "-", "└": "`", "├": "|",
}  # fmt: skip


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_SPELLINGS.get(character) or ascii(character)[1:-1] for character in text), error.end


codecs.register_error(_NAME, _spelled)


@contextlib.contextmanager
def readable() -> Iterator[None]:
    r"""Let the standard streams spell what they cannot encode, inside the context.

    >>> "2×3 → ≥1 é".encode("ascii", "jaxport-readable")
    b'2x3 -> >=1 \\xe9'
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors=_NAME)
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            if not stream.closed:
                stream.reconfigure(errors=errors)
