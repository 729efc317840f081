"""The text of a dimension, read by one parser for all writers.

JAX prints `2*B + 1`, `floordiv(T, 2)`, `mod(T, 4)`, `max(B, 2)`, `B^2`; PyTorch writes `2*(N + 1)`, `N*(N+1)`,
`(s0//2)` and `s0 % 4` into ONNX files. Any identifier is a name: `mod` and `max` are functions if a parenthesis
follows, and `lambda` is an ordinary name. The size of an expression is bounded, so that a hostile text costs nothing.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from jaxport.errors import InvalidArgument

FUNCTIONS = frozenset({"floordiv", "mod", "max", "min"})

LONGEST, DEEPEST, LARGEST_DEGREE, MOST_TERMS, MOST_DIGITS = 20_000, 50, 64, 500, 19


@dataclass(frozen=True, slots=True)
class Expression:
    """A part of the text of a dimension.

    Attributes:
      form: "number", "name", "neg", "+", "-", "*", "^", or a function; `//` and `%` are `floordiv` and `mod`.
      parts: the operands; of "^" the second one is a number.
      value: the value of a number.
      name: the name of a symbol.
    """

    form: str
    parts: tuple[Expression, ...] = ()
    value: int = 0
    name: str = ""


def split_sizes(text: str) -> list[str]:
    """Split a list of sizes, or of the arguments of a function, at the commas outside of parentheses.

    A comma at the end is Python's spelling of a list of one.

    >>> split_sizes("B,max(T, 4)"), split_sizes("B,"), split_sizes("")
    (['B', 'max(T, 4)'], ['B'], [''])
    """
    pieces, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    pieces = [piece.strip() for piece in pieces]
    return pieces[:-1] if len(pieces) > 1 and not pieces[-1] else pieces


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Return the expression of a text.

    Raises:
      InvalidArgument: it is not an expression, or a hostile one: deeply nested, of high degree, or with very many
        terms.

    >>> parse("2*(N + 1)").form
    '*'
    """
    if len(text) > LONGEST:
        raise InvalidArgument(f"a dimension of {len(text):,} characters is refused", where=f"`{text[:40]}…`")
    parser = _DimParser(text)
    made = parser.sum()
    if parser.token:
        raise parser.error(f"`{parser.token}` is not expected")
    _check_size(made, parser)
    return made


@functools.lru_cache(maxsize=4096)
def symbols(text: str) -> frozenset[str]:
    """Return the names in the text of an expression.

    >>> sorted(symbols("2*B + floordiv(T, 2)"))
    ['B', 'T']
    """
    return frozenset(_names(parse(text)))


def _names(expression: Expression) -> set[str]:
    names = {expression.name} if expression.form == "name" else set()
    return names.union(*map(_names, expression.parts))


_TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<name>[^\W\d]\w*)|(?P<symbol>//|\*\*|[-+*^%(),]))")
_SYMBOLS = {"**": "^"}


class _DimParser:
    def __init__(self, text: str):
        self.text, self.position, self.depth = text, 0, 0
        self.next()

    def next(self) -> None:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            if self.text[self.position :].strip():
                raise self.error(f"`{self.text[self.position :].strip()[:12]}` is not expected")
            self.kind, self.token = "end", ""
            return
        self.kind = str(match.lastgroup)
        self.token = _SYMBOLS.get(match[self.kind], match[self.kind])
        self.position = match.end()

    def error(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"`{self.text[:100]}` is not a dimension", where=f"character {self.position}", why=why)

    def taken(self, *tokens: str) -> str:
        """Consume the token if it is one of these, and return it; else return an empty text."""
        token = self.token if self.kind == "symbol" and self.token in tokens else ""
        if token:
            self.next()
        return token

    def expect(self, token: str) -> None:
        if not self.taken(token):
            raise self.error(f"`{token}` is missing")

    def sum(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"it is nested more than {DEEPEST} deep")
        sign = self.taken("-", "+")
        made = self.product()
        made = Expression("neg", (made,)) if sign == "-" else made
        while operator := self.taken("+", "-"):
            made = Expression(operator, (made, self.product()))
        self.depth -= 1
        return made

    def product(self) -> Expression:
        made = self.power()
        while operator := self.taken("*", "//", "%"):
            form = {"*": "*", "//": "floordiv", "%": "mod"}[operator]
            made = Expression(form, (made, self.power()))
        return made

    def power(self) -> Expression:
        made = self.factor()
        if self.taken("^"):
            if self.kind != "number":
                raise self.error("an exponent is a number")
            made = Expression("^", (made, self.number()))
        return made

    def number(self) -> Expression:
        if len(self.token) > MOST_DIGITS:
            raise self.error(f"a number has more than {MOST_DIGITS} digits")
        made = Expression("number", value=int(self.token))
        self.next()
        return made

    def factor(self) -> Expression:
        if self.taken("("):
            made = self.sum()
            self.expect(")")
            return made
        if self.kind == "number":
            return self.number()
        if self.kind == "name":
            name = self.token
            self.next()
            return self.call(name) if self.taken("(") else Expression("name", name=name)
        if self.taken("-"):
            if self.kind == "symbol" and self.token == "-":
                raise self.error("`-` is not expected")
            return Expression("neg", (self.factor(),))
        raise self.error(f"`{self.token}` is not expected" if self.token else "it ends too early")

    def call(self, name: str) -> Expression:
        if name not in FUNCTIONS:
            raise self.error(f"there is no function `{name}`; there are {', '.join(sorted(FUNCTIONS))}")
        parts = [self.sum()]
        while self.taken(","):
            parts.append(self.sum())
        self.expect(")")
        if len(parts) < 2 or (name in ("floordiv", "mod") and len(parts) > 2):
            raise self.error(f"`{name}` has {len(parts)} operands")
        return Expression(name, tuple(parts))


def _check_size(expression: Expression, parser: _DimParser) -> None:
    """Refuse expressions that would expand to a great length: powers of powers, products of sums."""

    def size(part: Expression) -> tuple[int, int]:
        """Return the number of terms after expansion, and the highest degree."""
        sizes = [size(inner) for inner in part.parts]
        match part.form:
            case "number" | "name":
                made = (1, 1)
            case "+" | "-" | "neg":
                made = (sum(terms for terms, _ in sizes), max(degree for _, degree in sizes))
            case "*":
                made = (math.prod(terms for terms, _ in sizes), sum(degree for _, degree in sizes))
            case "^":
                exponent = part.parts[1].value
                if exponent > LARGEST_DEGREE:
                    raise parser.error(f"the exponent {exponent} is above {LARGEST_DEGREE}")
                made = (sizes[0][0] ** exponent, sizes[0][1] * exponent)
            case _:
                made = (1, max(degree for _, degree in sizes))
        if made[0] > MOST_TERMS or made[1] > LARGEST_DEGREE:
            raise parser.error(f"multiplied out it has more than {MOST_TERMS} terms or a degree above {LARGEST_DEGREE}")
        return made

    size(expression)
