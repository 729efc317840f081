"""Which files a piece of code opens, seen by Python itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_watching: list[list[str]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watching and isinstance(arguments[0], str | bytes | os.PathLike):
        _watching[-1].append(os.path.realpath(os.fsdecode(arguments[0])))


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Collects the paths of the files that are opened inside."""
    if not getattr(sys, "_jaxport_hook", False):  # a hook stays for ever: one is enough
        sys.addaudithook(_hook)
        sys._jaxport_hook = True  # type: ignore[attr-defined]
    _watching.append([])
    try:
        yield _watching[-1]
    finally:
        _watching.pop()
