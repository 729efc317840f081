"""JSON, read strictly: no duplicate keys, no NaN, and no nesting that would exhaust the stack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

from jaxport.errors import ModelError
from jaxport.mox.serialize.json_values import JsonValue

DEEPEST = 400
"""The most levels of a document: those of real models have some dozens."""


def parse_json(text: str) -> JsonValue:
    """Return the value of a text.

    Raises:
      ModelError: it is malformed, nested too deep, or has an object with duplicate keys.

    >>> parse_json('{"a": [1, null]}')
    {'a': [1, None]}
    """
    _check_depth(text)
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ModelError(
            "the text is not JSON", where=f"line {error.lineno}, column {error.colno}", why=error.msg
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ModelError(f"the number `{name}` is not JSON")


def _unique(pairs: list[tuple[str, JsonValue]]) -> Mapping[str, JsonValue]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ModelError("an object has duplicate keys", why=", ".join(key for key, _ in pairs[:5]))
    return made


def _check_depth(text: str) -> None:
    """Refuse documents so deep that a recursive parser would run out of stack."""
    depth = position = 0
    size = len(text)
    while position < size:
        character = text[position]
        if character == '"':
            position += 1
            while position < size and text[position] != '"':
                position += 2 if text[position] == "\\" else 1
        elif character in "[{":
            depth += 1
            if depth > DEEPEST:
                raise ModelError(f"the text is nested more than {DEEPEST} deep", where=f"position {position}")
        elif character in "]}":
            depth -= 1
        position += 1
