"""The numbers in a class, and what classes have in common but for them."""

from __future__ import annotations

import ast
from collections.abc import Collection

__all__ = ["class_key", "numbers_of", "with_differences"]


def numbers_of(tree: ast.AST) -> list[ast.Constant]:
    """Return the numbers in a class that may become arguments."""
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [
        node
        for node in constants
        if type(node.value) in (int, float) or (isinstance(node.value, bool) and hasattr(node, "role"))
    ]


class _Differences(ast.NodeTransformer):
    """Writes `x + -0.5` as `x - 0.5`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        added = node.right.value if isinstance(node.op, ast.Add) and isinstance(node.right, ast.Constant) else 0
        return ast.BinOp(node.left, ast.Sub(), ast.Constant(-added)) if isinstance(added, float) and added < 0 else node


def with_differences(tree: ast.AST) -> ast.AST:
    """Return a tree with differences in place of sums with negative numbers; it is changed.

    >>> ast.unparse(with_differences(ast.BinOp(ast.Name("x"), ast.Add(), ast.Constant(-0.5))))
    'x - 0.5'
    """
    return _Differences().visit(tree)


def class_key(tree: ast.AST, free: Collection[str] = ()) -> str:
    """Return a key that classes share if they are alike but for numbers, and for which of these names they use."""
    numbers = numbers_of(tree)
    values = [node.value for node in numbers]
    places: list[tuple[ast.AST, str]] = [(node, "id") for node in ast.walk(tree) if isinstance(node, ast.Name)]
    places += [(node, "arg") for node in ast.walk(tree) if isinstance(node, ast.arg)]
    named = [(node, field, getattr(node, field)) for node, field in places if getattr(node, field) in free]
    for node in numbers:
        node.value = 0 if isinstance(node.value, int) else 0.0
    order = {name: place for place, name in enumerate(dict.fromkeys(name for *_, name in named))}
    for node, field, name in named:
        setattr(node, field, f"name {order[name]}")
    try:
        return ast.dump(tree)
    finally:
        for node, value in zip(numbers, values, strict=True):
            node.value = value
        for node, field, name in named:
            setattr(node, field, name)
