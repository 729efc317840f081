"""Functions of Rust that Burn lacks, or has with other values than JAX: a printed crate gets a copy of those that it
calls.

A file has functions with their documentation, and types that they take; no imports, which are found by name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from importlib.resources import files

from jaxport.codegen.burn.imports import imports, used

__all__ = ["names", "source"]

_ITEM = re.compile(r"^(?:pub )?(?:fn|struct|const|trait|enum|impl(?: \w+ for)?) (\w+)", re.MULTILINE)


def names() -> frozenset[str]:
    """Return the names of all helper functions.

    >>> "maximum" in names()
    True
    """
    return frozenset(name for name, text in _items().items() if f"pub fn {name}" in text)


def source(wanted: Collection[str]) -> str:
    """Return the text of `helpers.rs`: these functions and what they use; nothing if there are none.

    Raises:
      KeyError: there is no function of such a name.

    >>> print(source(["window_start"]))
    //! What Burn has no function for.
    <BLANKLINE>
    /// Where a window of this size begins in an axis: `lax.dynamic_slice` moves it inside.
    pub fn window_start(start: i64, window: usize, size: usize) -> usize {
        start.clamp(0, size as i64 - window as i64) as usize
    }
    <BLANKLINE>
    """
    items = _items()
    chosen: set[str] = set()
    pending = [*wanted]
    while pending:
        name = pending.pop()
        if name not in chosen:
            chosen.add(name)
            pending += used(items[name]) & items.keys()
    if not chosen:
        return ""
    body = "\n\n".join(text for name, text in items.items() if name in chosen)
    lines = "\n".join(imports(body))
    return "\n\n".join(["//! What Burn has no function for.", *([lines] if lines else []), f"{body}\n"])


@functools.cache
def _items() -> dict[str, str]:
    """Return the text of each function, with its documentation, by name; what is implemented for a type goes with
    it.
    """
    items: dict[str, str] = {}
    for file in sorted(files(__name__).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".rs"):
            continue
        for text in re.split(r"\n\n(?=///|#\[|pub |fn |impl |const )", file.read_text(encoding="utf-8").strip()):
            named = _ITEM.search(text)
            if named is None:
                raise ValueError(f"{file.name} has text that is no item: {text[:80]}")
            items[named[1]] = f"{items[named[1]]}\n\n{text}" if named[1] in items else text
    return items
