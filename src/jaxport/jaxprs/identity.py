"""What an object is, whatever its `==` and hash are: mappings and sets by identity; arrays that nobody else writes
to.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, MutableMapping, MutableSet
from typing import Any, TypeVar

import numpy as np

K = TypeVar("K")
V = TypeVar("V")


class IdentityMap(MutableMapping[K, V]):
    """A mapping from objects to values, in the order of insertion, for keys without a hash, or whose `==` is no
    identity.

    It keeps its keys alive: an object that is freed may leave its `id` to another one.

    >>> row = [1, 2]
    >>> names = IdentityMap([(row, "row")])
    >>> names[row], names.get([1, 2], "another list")
    ('row', 'another list')
    """

    __slots__ = ("_entries",)

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        self._entries: dict[int, tuple[K, V]] = {id(key): (key, value) for key, value in items}

    def __getitem__(self, key: K) -> V:
        return self._entries[id(key)][1]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[id(key)] = key, value

    def __delitem__(self, key: K) -> None:
        del self._entries[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._entries

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"IdentityMap({list(self._entries.values())!r})"


class IdentitySet(MutableSet[K]):
    """A set of objects, in the order of insertion, that are told apart by identity; it keeps them alive.

    >>> row = [1, 2]
    >>> seen = IdentitySet([row, row])
    >>> row in seen, [1, 2] in seen, len(seen)
    (True, False, 1)
    """

    __slots__ = ("_elements",)

    def __init__(self, elements: Iterable[K] = ()) -> None:
        self._elements: dict[int, K] = {id(element): element for element in elements}

    def __contains__(self, element: object) -> bool:
        return id(element) in self._elements

    def __iter__(self) -> Iterator[K]:
        return iter(self._elements.values())

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, value: K) -> None:
        """Add an object."""
        self._elements[id(value)] = value

    def discard(self, value: K) -> None:
        """Remove an object, if it is there."""
        self._elements.pop(id(value), None)

    def __repr__(self) -> str:
        return f"IdentitySet({list(self._elements.values())!r})"


def owned(value: Any, copies: dict[str, np.ndarray] | None = None) -> Any:
    """Return an array whose elements stay what they are: a copy of a NumPy array that can be written to.

    An array of JAX, a buffer that nobody can write to, and what is mapped from a file stay where they are; no result
    can be written to. Equal views of one array are one copy, and views of all its elements stay views of one, which
    `copies` remembers for as long as the arrays live.

    >>> weights, copies = np.ones((2, 3)), {}
    >>> kept, turned = owned(weights, copies), owned(weights.T, copies)
    >>> weights[:] = 0
    >>> kept.sum(), owned(kept) is kept, np.shares_memory(kept, turned)
    (np.float64(6.0), True, True)
    """
    if not is_lent(value):
        return value
    if _is_mapped(value):
        kept = value.view()
    elif copies is None or value.dtype.hasobject:
        kept = np.array(value)
    else:
        *_, whole = (base for base in _bases(value) if isinstance(base, np.ndarray))
        if whole.nbytes != value.nbytes or not whole.flags.c_contiguous:
            whole = value
        begins = value.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        place = str(whole.__array_interface__)
        if place not in copies:
            copies[place] = np.array(whole)
            copies[place].flags.writeable = False
        copy = copies[place]
        if whole is value:
            kept = copy.view()
        else:
            kept = np.ndarray(value.shape, value.dtype, copy, begins, value.strides)
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
