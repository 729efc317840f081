"""Expressions and items of Rust that Python's syntax trees have no node for.

Trees of Rust are trees of `ast`: names, numbers, assignments, loops and functions are Python's own nodes, and what only
Rust has are the classes below. So everything that works on trees of Python (`ast.walk`, `ast.dump`, the names of values,
classes that differ in numbers only) works on Rust, too; `jaxport.codegen.rust.text` writes them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

__all__ = [
    "Array",
    "Binary",
    "Borrow",
    "Braces",
    "Closure",
    "IfElse",
    "Invocation",
    "Literal",
    "Method",
    "RustFunction",
    "RustRange",
    "Slices",
    "Structure",
    "Try",
    "Unary",
    "Vector",
    "While",
    "clone",
    "method",
    "path_call",
    "returned_at_once",
]


class RustExpression(ast.expr):
    """An expression of Rust; it is made of its fields, in their order."""

    if TYPE_CHECKING:

        def __init__(self, *fields: object) -> None: ...


class Literal(RustExpression):
    """Text that stays as it is: a number that is no argument, a constant, a type."""

    _fields = ("text",)
    text: str


class Method(RustExpression):
    """`receiver.name::<generics>(arguments)`; `borrows` says that the receiver is not moved."""

    _fields = ("receiver", "name", "arguments", "generics", "borrows")
    receiver: ast.expr
    name: str
    arguments: list[ast.expr]
    generics: str
    borrows: bool


class Invocation(RustExpression):
    """`path(arguments)`: a call of a function; the path may have generics."""

    _fields = ("path", "arguments")
    path: str
    arguments: list[ast.expr]


class Array(RustExpression):
    """`[a, b]`."""

    _fields = ("elements",)
    elements: list[ast.expr]


class Vector(RustExpression):
    """`vec![a, b]`."""

    _fields = ("elements",)
    elements: list[ast.expr]


class Borrow(RustExpression):
    """`&value`."""

    _fields = ("value",)
    value: ast.expr


class Try(RustExpression):
    """`value?`."""

    _fields = ("value",)
    value: ast.expr


class Binary(RustExpression):
    """`left + right`, of tensors or numbers; `as` is one, too."""

    _fields = ("left", "symbol", "right")
    left: ast.expr
    symbol: str
    right: ast.expr


class Unary(RustExpression):
    """`-value`, `!value`."""

    _fields = ("symbol", "value")
    symbol: str
    value: ast.expr


class RustRange(RustExpression):
    """`start..end` or `start..end;step`, each end of which may be missing."""

    _fields = ("start", "end", "step")
    start: ast.expr | None
    end: ast.expr | None
    step: int


class Slices(RustExpression):
    """`s![.., 0..3]`."""

    _fields = ("parts",)
    parts: list[ast.expr]


class Closure(RustExpression):
    """`|a, b| value`."""

    _fields = ("parameters", "value")
    parameters: list[str]
    value: ast.expr


class Structure(RustExpression):
    """`Name { field: value }`."""

    _fields = ("name", "fields", "values")
    name: str
    fields: list[str]
    values: list[ast.expr]


class Braces(RustExpression):
    """`{ statements; value }`."""

    _fields = ("statements", "value")
    statements: list[ast.stmt]
    value: ast.expr


class IfElse(RustExpression):
    """`if condition { … } else { … }`, with a value."""

    _fields = ("condition", "then", "otherwise")
    condition: ast.expr
    then: Braces
    otherwise: ast.expr


class RustStatement(ast.stmt):
    """A statement or an item of Rust; it is made of its fields, in their order."""

    if TYPE_CHECKING:

        def __init__(self, *fields: object) -> None: ...


class While(RustStatement):
    """`loop { statements; if !condition { break; } … }`: the condition is computed by statements of its own."""

    _fields = ("before", "condition", "body")
    before: list[ast.stmt]
    condition: ast.expr
    body: list[ast.stmt]


class RustFunction(RustStatement):
    """A function or method.

    `parameters` are names with their types; `returned` is a type. A method of a value has `&self` first.
    """

    _fields = ("name", "parameters", "types", "returned", "body", "generics", "is_method", "is_public", "documentation")
    name: str
    parameters: list[str]
    types: list[str]
    returned: str
    body: list[ast.stmt]
    generics: str
    is_method: bool
    is_public: bool
    documentation: str


def method(receiver: ast.expr, name: str, *arguments: ast.expr, generics: str = "", borrows: bool = False) -> Method:
    """Return the call of a method.

    >>> method(ast.Name("x", ast.Load()), "exp").name
    'exp'
    """
    return Method(receiver, name, list(arguments), generics, borrows)


def path_call(path: str, *arguments: ast.expr) -> Invocation:
    """Return the call of a function."""
    return Invocation(path, list(arguments))


def clone(value: ast.expr) -> Method:
    """Return `value.clone()`."""
    return Method(value, "clone", [], "", True)


def returned_at_once(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return statements of which the last returns a value that the one before only binds to a name, or to several."""
    *before, last = statements
    if before and isinstance(made := before[-1], ast.Assign):
        patterns = made.targets[0], getattr(last, "value", None)
        names = [[getattr(one, "id", "") for one in getattr(pattern, "elts", [pattern])] for pattern in patterns]
        if names[0] == names[1] and "" not in names[0]:
            return [*before[:-1], ast.Return(made.value)]
    return [*statements]
