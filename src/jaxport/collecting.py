"""Pause Python's garbage collector while modules load, and while a model is traced to a Mox or exported.

These create many objects and hardly any garbage. The objects trigger full collections, each of which traverses all that
JAX has loaded: half of the time of a trace, a quarter of a second of an export of two.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause automatic collections, unless they are paused already.

    >>> with paused():
    ...     gc.isenabled()
    False
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
