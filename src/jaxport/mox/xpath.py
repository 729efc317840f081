"""XPath 1.0 as users write it: checked against its grammar, so that an error has a position, and made to fit the tree.

A block has one element, named by the short name of its type. The other names that hit it are rewritten:
``module_call`` and full type names become tests of attributes, older spellings of primitives become today's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jaxport.errors import QueryError
from jaxport.mox.tree import SPELLINGS

__all__ = ["compiled"]

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


@lru_cache(maxsize=512)
def compiled(query: str) -> Callable[[Any], Any]:
    """The query as a function of an element.

    Raises:
      QueryError: the query is no XPath 1.0 expression.

    >>> compiled("count(//Linear")
    Traceback (most recent call last):
    jaxport.QueryError: `count(//Linear` is no XPath expression
      where:   position 14
               count(//Linear
                             ^
      why:     `)` is missing
    """
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    text = _Parser(query).rewritten()
    try:
        return etree.XPath(text)
    except etree.XPathSyntaxError as error:
        raise QueryError(f"`{query}` is no XPath expression", why=str(error)) from error


class _Parser:
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
                self.tokens.append((kind, match.group(), position))
            position = match.end()
        self.index = 0
        self.depth = 0
        self.out: list[str] = []

    def error(self, position: int, why: str) -> QueryError:
        return QueryError(
            f"`{self.query}` is no XPath expression",
            where=f"position {position}\n{self.query}\n{' ' * position}^",
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

    def expression(self, level: int = 0) -> None:
        if level == 0:
            self.depth += 1
            if self.depth > _DEEPEST:
                raise self.error(self.position, f"it is nested more than {_DEEPEST} deep")
        if level < len(_OPERATORS):
            self.expression(level + 1)
            while self.peek() in _OPERATORS[level] and self.kind() != "string":
                self.take()
                self.expression(level + 1)
        else:
            while self.accept("-"):
                pass
            self.path()
            while self.accept("|"):
                self.path()
        if level == 0:
            self.depth -= 1

    def path(self) -> None:
        if self.is_primary():
            self.primary()
            while self.peek() == "[":
                self.predicate()
            if self.peek() not in ("/", "//"):
                return
            self.take()
            self.steps()
            return
        if self.accept("/"):
            if self.begins_step():
                self.steps()
            return
        self.accept("//")
        self.steps()

    def steps(self) -> None:
        self.step()
        while self.peek() in ("/", "//") and self.kind() == "symbol":
            self.take()
            self.step()

    def is_primary(self) -> bool:
        if self.kind() in ("string", "number") or self.peek() in ("$", "("):
            return True
        return self.kind() == "name" and self.peek(1) == "(" and self.peek() not in _NODE_TYPES

    def begins_step(self) -> bool:
        return self.kind() == "name" or self.peek() in (".", "..", "@", "*")

    def primary(self) -> None:
        if self.peek() == "$":
            raise self.error(self.position, "variables have no values here")
        if self.accept("("):
            self.expression()
            self.expect(")")
        elif self.kind() == "name":
            if self.peek() not in _FUNCTIONS:
                raise self.error(self.position, f"XPath 1.0 has no function `{self.peek()}`")
            self.take()
            self.expect("(")
            if not self.accept(")"):
                self.expression()
                while self.accept(","):
                    self.expression()
                self.expect(")")
        else:
            self.take()

    def predicate(self) -> None:
        self.expect("[")
        self.expression()
        self.expect("]")

    def step(self) -> None:
        if self.accept("..") or self.accept("."):
            return
        of_elements = True
        if self.accept("@"):
            of_elements = False
        elif self.kind() == "name" and self.peek(1) == "::":
            if self.peek() not in _AXES:
                raise self.error(self.position, f"`{self.peek()}` is no axis")
            of_elements = self.peek() != "attribute"
            self.take()
            self.take()
        self.node_test(of_elements)
        while self.peek() == "[":
            self.predicate()

    def node_test(self, of_elements: bool) -> None:
        if self.accept("*"):
            return
        if self.kind() != "name":
            found = f"`{self.peek()}`" if self.peek() else "the end"
            raise self.error(self.position, f"a name is expected here, not {found}")
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
            self.take()
        elif name in _GENERIC:
            # The tag of a block is its type: asked for first, it need not be looked for among all elements.
            asked = [self.peek(ahead) for ahead in range(1, 5)] == ["[", "@", "type", "="] and self.peek(6) == "]"
            kind = self.peek(5)[1:-1] if asked and self.kind(5) == "string" else ""
            self.take(f"{kind if _NAME.fullmatch(kind) else '*'}[{_GENERIC[name]}]")
        elif "." in name:
            self.take(f"*[@target='{name}']")
        else:
            self.take(SPELLINGS.get(name, name))


_FUNCTIONS = frozenset({
    "boolean", "ceiling", "concat", "contains", "count", "false", "floor", "id", "lang", "last", "local-name", "name",
    "namespace-uri", "normalize-space", "not", "number", "position", "round", "starts-with", "string",
    "string-length", "substring", "substring-after", "substring-before", "sum", "translate", "true",
})  # fmt: skip
