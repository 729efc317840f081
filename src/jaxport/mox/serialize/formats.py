"""Three ways to write a document down: JSON, YSON and XML. All of them are read without running anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from jaxport.errors import InvalidArgument
from jaxport.mox.serialize.json_text import DEEPEST, parse_json
from jaxport.mox.serialize.json_values import JsonValue
from jaxport.mox.serialize.yson import parse_yson, yson_text

Format = Literal["json", "yson", "xml"]


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
            return parse_json(text)
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
