"""XPath 1.0 as users write it: checked against its grammar, so that an error has a position, and made to fit the tree.

A block has one element, named by the short name of its type. The other names that match it are rewritten:
``module_call`` and full type names become tests of attributes, older spellings of primitives become today's. So are
booleans, which attributes have as text: ``[@use_bias]``, ``[@use_bias=true()]`` and ``[@use_bias=True]`` ask for what
is true. ``ends-with`` and ``matches`` are those of XPath 2.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jaxport.errors import QueryError
from jaxport.mox.programs.tree import SPELLINGS
from jaxport.mox.querying.regex import matches
from jaxport.printable import printable

if TYPE_CHECKING:
    from lxml.etree import _Element

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>\d+(?:\.\d*)?|\.\d+)
      | (?P<string>"[^"]*"|'[^']*')
      | (?P<symbol>\.\.|::|//|!=|<=|>=|[()\[\].@,/|+\-=<>*$:])
      | (?P<name>[^\W\d][\w.\-]*)""",
    re.VERBOSE,
)

_AXES = frozenset({
    "ancestor", "ancestor-or-self", "attribute", "child", "descendant", "descendant-or-self", "following",
    "following-sibling", "parent", "preceding", "preceding-sibling", "self",
})  # fmt: skip
_NODE_TYPES = frozenset({"comment", "node", "processing-instruction", "text"})
# From the weakest to the strongest.
_OPERATORS = (("or",), ("and",), ("=", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "div", "mod"))

#: Names of blocks in general.
_GENERIC = {"module_call": "@method!=''", "function_call": "@method=''"}

_NAME = re.compile(r"[A-Za-z_]\w*")

# Deeper expressions are not written by hand.
_DEEPEST = 50


@dataclass(frozen=True)
class Name:
    """A name in a query: of an element, of the full type of one, or of an attribute; or a string, which may be one."""

    text: str
    position: int
    kind: str


@dataclass(frozen=True)
class Compiled:
    """A query as a function of an element, and the names in it."""

    evaluate: Callable[[_Element], Any]
    names: tuple[Name, ...]


@lru_cache(maxsize=512)
def compiled(query: str) -> Compiled:
    """Return the query as a function of an element.

    Raises:
      QueryError: the query is no XPath 1.0 expression.

    >>> compiled("count(//Linear")
    Traceback (most recent call last):
    jaxport.QueryError: `count(//Linear` is not a valid XPath expression
      where:   position 14
               count(//Linear
                             ^
      why:     `)` is missing
    """
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    parser = _QueryParser(query)
    text = parser.rewritten()
    try:
        return Compiled(etree.XPath(text, namespaces=_NAMESPACES, extensions=_EXTENSIONS), tuple(parser.names))
    except etree.XPathSyntaxError as error:
        raise QueryError(f"`{query}` is not a valid XPath expression", why=str(error)) from error


class _QueryParser:
    """A recursive-descent parser that copies the query, with name tests rewritten."""

    def __init__(self, query: str):
        self.query = query
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(query):
            match = _TOKEN.match(query, position)
            if match is None:
                unclosed = query[position] in "\"'"
                raise self.error(position, "the string is not closed" if unclosed else "no such character here")
            kind = str(match.lastgroup)
            if kind != "space":
                # A name that ends in a dot or hyphen, as `a-` does, is still one name.
                # The values of attributes are printable.
                self.tokens.append((kind, printable(match.group()), position))
            position = match.end()
        self.index = 0
        self.depth = 0
        self.out: list[str] = []
        self.names: list[Name] = []

    def error(self, position: int, why: str) -> QueryError:
        return QueryError(
            f"`{self.query}` is not a valid XPath expression",
            where=f"position {position}\n{printable(self.query)}\n{' ' * len(printable(self.query[:position]))}^",
            why=why,
        )

    def rewritten(self) -> str:
        if not self.tokens:
            raise self.error(0, "it is empty")
        self.expression()
        if self.index < len(self.tokens):
            raise self.error(self.position, f"`{self.tokens[self.index][1]}` is not expected here")
        return "".join(self.out)

    # -- tokens ----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return self.tokens[self.index][2] if self.index < len(self.tokens) else len(self.query)

    def peek(self, ahead: int = 0) -> str:
        index = self.index + ahead
        return self.tokens[index][1] if index < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        index = self.index + ahead
        return self.tokens[index][0] if index < len(self.tokens) else ""

    def take(self, written: str | None = None) -> None:
        text = self.peek() if written is None else written
        # Names and operators that are names must not run together.
        self.out.append(f" {text} " if text in ("or", "and", "div", "mod", "-") else text)
        self.index += 1

    def accept(self, symbol: str) -> bool:
        if self.peek() == symbol and self.kind() != "string":
            self.take()
            return True
        return False

    def expect(self, symbol: str) -> None:
        if not self.accept(symbol):
            raise self.error(self.position, f"`{symbol}` is missing")

    # -- grammar ---------------------------------------------------------------------------------------------------

    def expression(self, level: int = 0) -> str:
        """Copy an expression; return its kind: an "attribute", a "boolean" or a "string" as written, or ""."""
        if level == 0:
            self.depth += 1
            if self.depth > _DEEPEST:
                raise self.error(self.position, f"it is nested more than {_DEEPEST} deep")
        kind = self.operation(level) if level < len(_OPERATORS) else self.union()
        if level == 0:
            self.depth -= 1
        return kind

    def operation(self, level: int) -> str:
        start, operators = len(self.out), _OPERATORS[level]
        kind = self.expression(level + 1)
        while self.peek() in operators and self.kind() != "string":
            operator = self.peek()
            if operator in ("or", "and"):
                self.as_condition(start, kind)
            self.take()
            middle = len(self.out)
            right = self.expression(level + 1)
            if operator in ("or", "and"):
                self.as_condition(middle, right)
            elif operator in ("=", "!="):
                self.compare(start, middle, {kind, right}, operator)
            kind = ""
        return kind

    def as_condition(self, start: int, kind: str) -> None:
        """Make an attribute by itself ask whether it is there, and not false."""
        if kind == "attribute":
            path = "".join(self.out[start:])
            self.out[start:] = [f"({path} and not({path}='False'))"]

    def compare(self, start: int, middle: int, kinds: set[str], operator: str) -> None:
        """Compare an attribute with a boolean as the text that it has."""
        left, right = "".join(self.out[start : middle - 1]), "".join(self.out[middle:])
        if kinds == {"attribute", "boolean"}:
            left, right = _BOOLEANS.get(left, left), _BOOLEANS.get(right, right)
            self.out[start:] = [left, operator, right]
        elif kinds == {"attribute", "string"} and operator == "=":
            text = next((side for side in (left, right) if side[1:-1] in ("true", "false") and side[0] in "\"'"), "")
            if text:
                path = right if text is left else left
                self.out[start:] = [f"({path}={text} or {path}='{text[1:-1].capitalize()}')"]

    def union(self) -> str:
        kind = None
        while self.accept("-"):
            kind = ""
        first = self.path()
        while self.accept("|"):
            self.path()
            kind = ""
        return first if kind is None else kind

    def path(self) -> str:
        if self.is_primary():
            kind = self.primary()
            while self.peek() == "[":
                self.predicate()
                kind = ""
            if self.peek() not in ("/", "//"):
                return kind
            self.take()
            return self.steps()
        if self.accept("/"):
            if not self.begins_step():
                return ""
            # The model itself is below the element of the whole program.
            if self.kind() == "name" and self.peek() != "mox" and self.peek(1) not in ("::", "("):
                self.out.append("mox/")
            return self.steps()
        self.accept("//")
        return self.steps()

    def steps(self) -> str:
        kind = self.step()
        while self.peek() in ("/", "//") and self.kind() == "symbol":
            self.take()
            kind = self.step()
        return kind

    def is_primary(self) -> bool:
        if self.kind() in ("string", "number") or self.peek() in ("$", "(") or self.is_boolean():
            return True
        return self.kind() == "name" and self.peek(1) == "(" and self.peek() not in _NODE_TYPES

    def is_boolean(self) -> bool:
        """Whether `True` or `False` is next: no element has such a name."""
        return self.kind() == "name" and self.peek() in ("True", "False") and self.peek(1) != "::"

    def begins_step(self) -> bool:
        return self.kind() == "name" or self.peek() in (".", "..", "@", "*")

    def primary(self) -> str:
        kind = self.kind()
        if self.peek() == "$":
            raise self.error(self.position, "variables have no values here")
        if self.is_boolean():
            self.take(f"{self.peek().lower()}()")
            return "boolean"
        if self.accept("("):
            self.expression()
            self.expect(")")
        elif kind == "name":
            return self.call()
        else:
            if kind == "string":
                self.names.append(Name(self.peek()[1:-1], self.position, kind))
            self.take()
        return kind if kind == "string" else ""

    def call(self) -> str:
        name, start = self.peek(), len(self.out)
        if name not in _FUNCTIONS:
            raise self.error(self.position, f"XPath 1.0 has no function `{name}`")
        self.take()
        self.expect("(")
        arguments = []
        while not self.accept(")"):
            if arguments and not self.accept(","):
                raise self.error(self.position, "`)` is missing")
            begin = len(self.out)
            kind = self.expression()
            if name in ("not", "boolean"):
                self.as_condition(begin, kind)
            arguments.append("".join(self.out[begin:]))
        if name in _NEWER:
            if len(arguments) != 2:
                raise self.error(self.position, f"`{name}` takes two arguments, a text and what it is compared with")
            self.out[start:] = [_NEWER[name].format(*arguments)]
        return "boolean" if name in ("true", "false") else ""

    def predicate(self) -> None:
        self.expect("[")
        start = len(self.out)
        self.as_condition(start, self.expression())
        self.expect("]")

    def step(self) -> str:
        if self.accept("..") or self.accept("."):
            return ""
        of_elements = True
        if self.accept("@"):
            of_elements = False
        elif self.kind() == "name" and self.peek(1) == "::":
            if self.peek() not in _AXES:
                raise self.error(self.position, f"`{self.peek()}` is not an axis")
            of_elements = self.peek() != "attribute"
            self.take()
            self.take()
        self.node_test(of_elements)
        while self.peek() == "[":
            self.predicate()
        return "" if of_elements else "attribute"

    def node_test(self, of_elements: bool) -> None:
        if self.accept("*"):
            return
        if self.kind() != "name":
            next_token = f"`{self.peek()}`" if self.peek() else "the end"
            raise self.error(self.position, f"a name is expected here, not {next_token}")
        if self.peek(1) == ":":
            raise self.error(self.position, "elements have no namespaces")
        name = self.peek()
        if self.peek(1) == "(":
            self.take()
            self.expect("(")
            if self.kind() == "string":
                self.take()
            self.expect(")")
        elif not of_elements:
            self.names.append(Name(name, self.position, "attribute"))
            self.take()
        elif name in _GENERIC:
            # The tag of a block is its type: asked for first, it need not be looked for among all elements.
            asked = [self.peek(ahead) for ahead in range(1, 5)] == ["[", "@", "type", "="] and self.peek(6) == "]"
            kind = self.peek(5)[1:-1] if asked and self.kind(5) == "string" else ""
            self.take(f"{kind if _NAME.fullmatch(kind) else '*'}[{_GENERIC[name]}]")
        elif "." in name:
            self.names.append(Name(name, self.position, "target"))
            self.take(f"*[@target='{name}']")
        else:
            name = SPELLINGS.get(name, name)
            self.names.append(Name(name, self.position, "tag"))
            self.take(name)


_FUNCTIONS = frozenset({
    "boolean", "ceiling", "concat", "contains", "count", "ends-with", "false", "floor", "id", "lang", "last",
    "local-name",
    "matches", "name", "namespace-uri", "normalize-space", "not", "number", "position", "round", "starts-with",
    "string",
    "string-length", "substring", "substring-after", "substring-before", "sum", "translate", "true",
})  # fmt: skip

_BOOLEANS = {"true()": "'True'", "false()": "'False'"}

# Functions of XPath 2.0, in terms of those that there are.
_NEWER = {
    "ends-with": "(substring({0}, string-length({0}) - string-length({1}) + 1) = {1})",
    "matches": "jaxport:matches(string({0}), string({1}))",
}
_NAMESPACES = {"jaxport": "https://jaxport"}
_EXTENSIONS = {(_NAMESPACES["jaxport"], "matches"): lambda _, text, pattern: matches(text, str(pattern))}
