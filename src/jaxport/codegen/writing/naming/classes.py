"""Names of classes that are called alike in the file: after what differs between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal

from jaxport.codegen.nodes import TreeNode, walk
from jaxport.codegen.writing.drafts import Draft

Owner = Literal["model", "framework", "class"]
"""What has a name that is wanted again: the model, a layer of the framework, or another class."""
ORDINARY = frozenset(
    (
        "permute flip slice select take clone forward reshape transpose astype cast init new unsqueeze squeeze val "
        "dims device"
    ).split()
)
"""Functions that say nothing of a module."""


def distinct_names(
    base: str, draft: Draft, first: Draft | None, owner: Owner, called: Callable[[TreeNode], str]
) -> Iterator[str]:
    """Yield names for a class that cannot have its own, the most telling first.

    They tell the module around it (`DecoderLayer`), a part or a function that it has and the first class of the name
    has not, or the other way round (`LayerWithShortcut`, `LayerWithoutBias`), or that one of that name is around it
    (`InnerModel`).

    Args:
      base: the name that is taken.
      draft: the class.
      first: the class that has the name, or that was named after another difference; None if it is not made yet.
      owner: what has the name.
      called: returns the name of the function that a node is the call of; empty for others.
    """
    known = _around(first.module.path) if first is not None else []
    for word in _around(draft.module.path):
        if (
            word not in known
            and word.replace("_", "") not in base.lower()
            and (first is not None or owner == "framework")
        ):
            yield f"{_camel(word)}{base}"
    if first is not None:
        for more, preposition in (((draft, first), "With"), ((first, draft), "Without")):
            for word in _only_in(*more, called):
                yield f"{base}{preposition}{_camel(word)}"
        for suffix in _suffixes(draft):
            yield f"{base}{suffix}"
    if owner != "class":
        yield f"Inner{base}" if owner == "model" else f"{base}Layer"


def _around(path: str) -> list[str]:
    """Return the names of the modules around a path, the nearest first, without lists.

    >>> _around("model.decoder.layers.0.self_attn")
    ['decoder', 'model']
    """
    words = re.split(r"[./]", path)
    kept = [word for word, after in pairwise(words) if re.fullmatch("[A-Za-z_]+", word) and not after.isdigit()]
    return kept[::-1]


def _only_in(draft: Draft, other: Draft, called: Callable[[TreeNode], str]) -> list[str]:
    """Return the parts of a class, or else the functions that it calls, that another one has not."""
    parts = [
        key
        for key in draft.init
        if key not in other.init and f"{key}_0" not in other.init and not re.search(r"\d|^(table|size|factor)", key)
    ]
    others = _words(other, called)
    return parts or [word for word in _words(draft, called) if word not in others]


def _words(draft: Draft, called: Callable[[TreeNode], str]) -> dict[str, None]:
    """Return the names of the functions and methods that a class calls, in order."""
    found: dict[str, None] = {}
    for node in walk([draft.method]):
        word = re.sub(r"<.*", "", called(node)).rstrip(":").rpartition("::")[2]
        if (
            re.fullmatch(r"[a-z][a-z_]*", word)
            and word not in ORDINARY
            and not word.startswith(("reshape", "unsqueeze", "squeeze"))
        ):
            found[word] = None
    return found


def _suffixes(draft: Draft) -> Iterator[str]:
    """Yield what the classes of the parts of a class are named after."""
    for node in walk(draft.init.values()):
        text = getattr(node, "path", "") or getattr(node, "id", "")
        named = re.search(
            r"[a-z\d](With(?:out)?[A-Z]\w*?)(?:Config)?(?:::new)?$", text if isinstance(text, str) else ""
        )
        if named is not None:
            yield named[1]


def _camel(word: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in word.split("_"))
