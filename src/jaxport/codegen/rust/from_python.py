"""The statements of Python that the printer of modules makes around expressions of Rust, as Rust.

    batch, _ = x.shape                         let [batch, _] = x.dims();
    for layer in self.layers[1:]: …      →     for layer in &self.layers[1..] { … }

The printer of modules is the one for Python: it puts the calls of a module in order, names their results and makes loops of them.
What it makes itself is listed here, and is all of Python that a tree of Rust is made of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from jaxport.codegen.rust.tree import (
    Array,
    Assert,
    Binary,
    ExpressionStatement,
    FieldAccess,
    For,
    Identifier,
    Index,
    Let,
    Literal,
    Number,
    Return,
    RustExpression,
    RustRange,
    RustStatement,
    Tuple,
    Zipped,
    method,
    path_call,
)

__all__ = ["expression_of", "parsed", "statements_of"]

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.FloorDiv: "/", ast.Mod: "%"}
_OPPOSITES = {ast.Lt: ">=", ast.Gt: "<=", ast.NotEq: "=="}
"""What holds where a comparison does not."""


def parsed(path: str) -> RustExpression:
    """Return a part of a module as an expression: `self.layers[0]`."""
    return expression_of(ast.parse(path, mode="eval").body)


def expression_of(node: ast.expr) -> RustExpression:
    """Return an expression or a pattern of Rust; one that is of Rust already stays as it is.

    >>> from jaxport.codegen.rust.text import expression_text
    >>> expression_text(parsed("self.layers[1:]")), expression_text(parsed("x.shape[0] // 2"))
    ('self.layers[1..]', 'x.dims()[0] / 2')
    """
    match node:
        case RustExpression():
            return node
        case ast.Name():
            return Identifier(node.id)
        case ast.Constant():
            assert isinstance(node.value, int | float)
            return Number(node.value)
        case ast.Attribute(value=ast.Name(id=owner), attr="shape") if owner != "self":  # of an array
            return method(Identifier(owner), "dims", borrows=True)
        case ast.Attribute():
            return FieldAccess(expression_of(node.value), node.attr)
        case ast.Subscript(slice=ast.Slice() as part):
            start, end = (None if bound is None else expression_of(bound) for bound in (part.lower, part.upper))
            return Index(expression_of(node.value), RustRange(start, end))
        case ast.Subscript():
            return Index(expression_of(node.value), expression_of(node.slice))
        case ast.Tuple():
            return Tuple([*map(expression_of, node.elts)])
        case ast.List(elts=[]):
            return path_call("Vec::new")
        case ast.BinOp():
            return Binary(expression_of(node.left), _OPERATORS[type(node.op)], expression_of(node.right))
        case ast.Call(func=ast.Name(id="range"), args=[count]):
            return RustRange(Literal("0"), expression_of(count))
        case ast.Call(func=ast.Name(id="zip")):
            return Zipped([*map(expression_of, node.args)])
    raise TypeError(f"{type(node).__name__} has no form in Rust")


def statements_of(statements: Iterable[ast.stmt]) -> list[RustStatement]:
    """Return statements of Rust; those that are of Rust already stay as they are."""
    return [*map(_statement, statements)]


def _statement(node: ast.stmt) -> RustStatement:
    match node:
        case RustStatement():
            return node
        case ast.Assign(targets=[ast.Tuple() as names], value=ast.Attribute(attr="shape")):
            return Let(Array([*map(expression_of, names.elts)]), expression_of(node.value))
        case ast.Assign(targets=[target]):
            return Let(expression_of(target), expression_of(node.value))
        case ast.Return(value=ast.expr() as value):
            return Return(expression_of(value))
        case ast.Expr():
            return ExpressionStatement(expression_of(node.value))
        case ast.For():
            return For(expression_of(node.target), expression_of(node.iter), statements_of(node.body))
        case ast.If(body=[ast.Raise(exc=ast.Call(args=[ast.Constant(value=str(message))]))]):  # a size that is refused
            return Assert(_refuted(node.test), message)
    raise TypeError(f"{type(node).__name__} has no form in Rust")


def _refuted(test: ast.expr) -> RustExpression:
    """Return what holds for the sizes that are not refused."""
    match test:
        case ast.Compare(ops=[comparison], comparators=[limit]):
            return Binary(expression_of(test.left), _OPPOSITES[type(comparison)], expression_of(limit))
        case ast.BinOp(op=ast.Mod()):
            return method(expression_of(test.left), "is_multiple_of", expression_of(test.right))
    raise TypeError(f"{type(test).__name__} is no condition of sizes")
