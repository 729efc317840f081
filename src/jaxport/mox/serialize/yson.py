"""YSON: JSON's values with other punctuation, as YAX wrote its dumps.

A map is ``{"key"=value;"key"=value}``, a list ``[value;value]``, ``#`` is None, ``%true`` and ``%false`` are the
booleans; a double always has a point or an exponent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from jaxport.errors import ModelError
from jaxport.mox.serialize.json_values import JsonValue


def yson_text(value: JsonValue) -> str:
    """Return a value as YSON.

    >>> yson_text({"a": [1, 2.5, True, None]})
    '{"a"=[1;2.5;%true;#]}'
    """
    if value is None:
        return "#"
    if isinstance(value, bool):
        return "%true" if value else "%false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ";".join(f"{json.dumps(key)}={yson_text(item)}" for key, item in value.items()) + "}"
    return "[" + ";".join(map(yson_text, value)) + "]"


_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")
      | (?P<double>[-+]?\d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+))
      | (?P<integer>[-+]?\d+)u?
      | (?P<constant>%true|%false|\#)
      | (?P<name>[A-Za-z_][\w.\-]*)
      | (?P<symbol>[{}\[\];=]))""",
    re.VERBOSE,
)
_CONSTANTS = {"%true": True, "%false": False, "#": None}


def parse_yson(text: str, deepest: int) -> JsonValue:
    """Return the value of a text.

    Raises:
      ModelError: it is malformed, truncated, or nested deeper than `deepest`.

    >>> parse_yson('{a=[1;%true;#;"x"]}', 10)
    {'a': [1, True, None, 'x']}
    """
    return _YsonParser(text, deepest).document()


class _YsonParser:
    def __init__(self, text: str, deepest: int):
        self.text, self.deepest = text, deepest
        self.position = 0
        self.next()

    def next(self) -> None:
        match = _TOKEN.match(self.text, self.position)
        self.start = self.position
        if match is None:
            rest = self.text[self.position :].strip()
            if rest:
                raise self.error(f"`{rest[:12]}` is not expected")
            self.kind, self.token = "end", ""
            return
        self.kind, self.token = str(match.lastgroup), match[str(match.lastgroup)]
        self.position = match.end()

    def error(self, why: str) -> ModelError:
        line = self.text.count("\n", 0, self.start) + 1
        return ModelError("the text is not YSON", where=f"line {line}, position {self.start}", why=why)

    def document(self) -> JsonValue:
        value = self.value(0)
        if self.kind != "end":
            raise self.error(f"`{self.token}` follows the end")
        return value

    def value(self, depth: int) -> JsonValue:
        if depth > self.deepest:
            raise ModelError(f"the text is nested more than {self.deepest} deep", where=f"position {self.start}")
        kind, token = self.kind, self.token
        if kind == "symbol" and token in "{[":
            self.next()
            return self.map(depth) if token == "{" else self.list(depth)
        if kind in ("end", "symbol"):
            raise self.error("the text ends too early" if kind == "end" else f"`{token}` is not expected")
        self.next()
        match kind:
            case "string":
                return self.string(token)
            case "double":
                return float(token)
            case "integer":
                return int(token)
            case "constant":
                return _CONSTANTS[token]
        return token

    def string(self, token: str) -> str:
        try:
            return json.loads(token)
        except json.JSONDecodeError:
            raise self.error(f"the string {token[:20]} has an unknown escape") from None

    def list(self, depth: int) -> list[JsonValue]:
        made: list[JsonValue] = []
        while self.token != "]" or self.kind != "symbol":
            made.append(self.value(depth + 1))
            self.separator("]")
        self.next()
        return made

    def map(self, depth: int) -> dict[str, JsonValue]:
        made: dict[str, JsonValue] = {}
        while self.token != "}" or self.kind != "symbol":
            if self.kind not in ("string", "name"):
                raise self.error("the text ends too early" if self.kind == "end" else "a key is expected")
            key = self.string(self.token) if self.kind == "string" else self.token
            if key in made:
                raise self.error(f"the key `{key}` is there twice")
            self.next()
            if self.token != "=" or self.kind != "symbol":
                raise self.error("`=` is missing")
            self.next()
            made[key] = self.value(depth + 1)
            self.separator("}")
        self.next()
        return made

    def separator(self, end: str) -> None:
        if self.kind == "symbol" and self.token == ";":
            self.next()
        elif self.kind != "symbol" or self.token != end:
            raise self.error("the text ends too early" if self.kind == "end" else f"`;` or `{end}` is missing")
