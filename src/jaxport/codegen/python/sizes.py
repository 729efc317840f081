"""What reads and refuses sizes, as statements of Python.

ReadShape(("batch", "_"), "x")                   →    batch, _ = x.shape
SolvedSize("height", AxisSize("x", 1, -1), 32)        height = (x.shape[1] - 1) // 32
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from jaxport.codegen.writing.literals import attribute, dim_expression
from jaxport.codegen.writing.size_names import AxisSize, ReadShape, SizeStatement, SolvedSize


def sizes_in_python(statements: Iterable[SizeStatement]) -> list[ast.stmt]:
    """Return statements of Python."""
    return [*map(_statement, statements)]


def _statement(statement: SizeStatement) -> ast.stmt:
    match statement:
        case ReadShape():
            targets: list[ast.expr] = [ast.Name(size, ast.Store()) for size in statement.names]
            return ast.Assign([ast.Tuple(targets, ast.Store())], attribute(f"{statement.argument}.shape"), lineno=0)
        case SolvedSize():
            divided = f" // {statement.factor}" if statement.factor > 1 else ""
            return ast.parse(f"{statement.name} = {_text(statement.size)}{divided}").body[0]
    refused = f"{_text(statement.size)} {statement.comparison} {_text(statement.other)}"
    found = "" if statement.comparison == "%" else f", not {{{_text(statement.size)}}}"
    return ast.parse(f"if {refused}:\n    raise ValueError({'f' * bool(found)}{statement.message + found!r})").body[0]


def _text(size: AxisSize | str | int) -> str:
    if not isinstance(size, AxisSize):
        return ast.unparse(dim_expression(size))
    text = f"{size.argument}.shape[{size.axis}]"
    return f"({text} {'-' if size.added < 0 else '+'} {abs(size.added)})" if size.added else text
