"""Mappings and sets of objects that are told apart by identity, whatever their `==` and hash are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, MutableSet
from typing import TypeVar

__all__ = ["IdentityMap", "IdentitySet"]

K = TypeVar("K")
V = TypeVar("V")


class IdentityMap(MutableMapping[K, V]):
    """A mapping from objects to values, in the order of insertion, for keys without a hash, or whose `==` is no identity.

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
