"""Three ways to write a document down: JSON, YSON and XML. All of them are read without running anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NoReturn

from jaxport.errors import InvalidArgument, ModelError
from jaxport.mox.serialize.json_values import JsonValue
from jaxport.mox.serialize.yson import parse_yson, yson_text

__all__ = ["Format", "parsed", "printed"]

Format = Literal["json", "yson", "xml"]

# Documents of real models are some dozen levels deep.
DEEPEST = 400


def printed(document: Mapping[str, JsonValue], form: str) -> str:
    """Return a document as text.

    Raises:
      InvalidArgument: there is no such format.

    >>> printed({"a": [1, None, "x"]}, "yson")
    '{"a"=[1;#;"x"]}'
    """
    match form:
        case "json":
            return json.dumps(document, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        case "yson":
            return yson_text(document)
        case "xml":
            from jaxport.mox.serialize.xml import xml_text

            return xml_text(document)
    raise InvalidArgument(f"`{form}` is not a format", where="serializing a Mox", instead='"json", "yson" or "xml"')


def parsed(text: str, form: str | None = None) -> JsonValue:
    """Return the document of a text; the format is told by its beginning if it is not given.

    Raises:
      ModelError: the text is malformed, truncated, or nested too deep.
      InvalidArgument: there is no such format.

    >>> parsed('{"a": [1, null]}') == parsed('{"a"=[1;#]}', "yson")
    True
    """
    form = form or _told(text)
    match form:
        case "json":
            return _json(text)
        case "yson":
            return parse_yson(text, DEEPEST)
        case "xml":
            from jaxport.mox.serialize.xml import parse_xml

            return parse_xml(text)
    raise InvalidArgument(f"`{form}` is not a format", where="reading a Mox", instead='"json", "yson" or "xml"')


def _told(text: str) -> str:
    start = text.lstrip()[:200]
    if start.startswith("<"):
        return "xml"
    key_end = start.find('"', 2)
    return "yson" if start.startswith('{"') and start[key_end + 1 :].lstrip().startswith("=") else "json"


def _json(text: str) -> JsonValue:
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
