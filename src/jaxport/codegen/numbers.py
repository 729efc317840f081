"""The numbers in a class, and what classes have in common but for them."""

from __future__ import annotations

import ast
from collections.abc import Collection

__all__ = ["class_key", "numbers_of"]


def numbers_of(tree: ast.AST) -> list[ast.Constant]:
    """Return the numbers in a class that may become arguments."""
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [
        node
        for node in constants
        if type(node.value) in (int, float) or (isinstance(node.value, bool) and hasattr(node, "role"))
    ]


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
