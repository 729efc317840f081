"""Arrays that nobody else writes to: what is immutable holds no buffer of its user."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["is_lent", "owned"]


def owned(value: Any) -> Any:
    """Return an array whose elements stay what they are: a copy of a NumPy array that can be written to.

    An array of JAX, a buffer that nobody can write to, and what is mapped from a file stay where they are; no result
    can be written to.

    >>> weights = np.ones(2)
    >>> kept = owned(weights)
    >>> weights[:] = 0
    >>> kept, owned(kept) is kept
    (array([1., 1.]), True)
    """
    if not is_lent(value):
        return value
    kept = value.view() if _is_mapped(value) else np.array(value)
    kept.flags.writeable = False
    return kept


def is_lent(value: object) -> bool:
    """Whether it is an array whose user may still write to its elements."""
    if not isinstance(value, np.ndarray) or (_is_mapped(value) and not value.flags.writeable):
        return False
    return any(array.flags.writeable for array in _bases(value) if isinstance(array, np.ndarray))


def _is_mapped(array: np.ndarray) -> bool:
    return any(isinstance(base, mmap.mmap) for base in _bases(array))


def _bases(array: np.ndarray) -> Iterator[object]:
    """Yield an array and what it is a view of."""
    base: object = array
    while isinstance(base, np.ndarray):
        yield base
        base = base.base
    yield base
