"""Values of JSON, and what a reader expects of them: anything else is refused as malformed.

A document may come from anywhere. Its parts get their types here, where they are read; the code behind works with
lists, texts and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jaxport.errors import ModelError

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
"""A number, a string, a boolean, None, or a list or dict of such values: what the files of a Mox consist of."""


def object_of(value: JsonValue) -> Mapping[str, JsonValue]:
    """Return a value that has to be an object.

    Raises:
      ModelError: it is something else.

    >>> object_of({"a": 1})
    {'a': 1}
    """
    if not isinstance(value, Mapping):
        raise _malformed(value, "an object")
    return value


def list_of(value: JsonValue) -> Sequence[JsonValue]:
    """Return a value that has to be a list.

    Raises:
      ModelError: it is something else.

    >>> list_of([1, None])
    [1, None]
    """
    if not isinstance(value, list | tuple):
        raise _malformed(value, "a list")
    return value


def pair_of(value: JsonValue) -> tuple[JsonValue, JsonValue]:
    """Return a value that has to be a list of two.

    Raises:
      ModelError: it is something else.
    """
    items = list_of(value)
    if len(items) != 2:
        raise _malformed(value, "a pair")
    return items[0], items[1]


def text_of(value: JsonValue) -> str:
    """Return a value that has to be a string.

    Raises:
      ModelError: it is something else.
    """
    if not isinstance(value, str):
        raise _malformed(value, "a string")
    return value


def size_of(value: JsonValue) -> int:
    """Return a value that has to be the size of an axis, or a position: an integer that is not negative.

    Raises:
      ModelError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ModelError(f"{_shown(value)} is not a valid array size")
    return value


def objects_of(value: JsonValue) -> list[Mapping[str, JsonValue]]:
    """Return a value that has to be a list of objects.

    Raises:
      ModelError: it is something else.
    """
    return [object_of(item) for item in list_of(value)]


def texts_of(value: JsonValue) -> tuple[str, ...]:
    """Return a value that has to be a list of strings.

    Raises:
      ModelError: it is something else.

    >>> texts_of(["x", "y"])
    ('x', 'y')
    """
    return tuple(text_of(item) for item in list_of(value))


def _malformed(value: JsonValue, wanted: str) -> ModelError:
    return ModelError(f"{_shown(value)} is not {wanted}", why="the document is malformed")


def _shown(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
