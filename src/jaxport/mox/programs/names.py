"""Names that are almost those that were given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: str, known: Iterable[str], most: int = 3) -> str:
    """Return the known names that are most like a word, as part of a message.

    >>> near("Liner", ["Linear", "LayerNorm"])
    'there is `Linear`'
    """
    similar = {name.lower(): name for name in sorted(known, reverse=True)}
    nearest = difflib.get_close_matches(word.lower(), similar, n=most)
    return (
        f"there {'is' if len(nearest) == 1 else 'are'} {', '.join(f'`{similar[name]}`' for name in nearest)}"
        if nearest
        else ""
    )
