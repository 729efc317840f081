"""The numbers in a class, and what classes have in common but for them.

    self.dense = nnx.Linear(32, 64)    and    self.dense = nnx.Linear(64, 64)

are the same but for a number, which becomes an argument of the constructor; so does an activation, `nn.relu`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

__all__ = ["Replacements", "activations_of", "class_key", "numbers_of", "text_of", "with_differences"]

ACTIVATIONS = frozenset(
    "nn.relu nn.relu6 nn.sigmoid nn.silu nn.gelu nn.elu nn.selu nn.celu nn.leaky_relu nn.softplus nn.soft_sign nn.mish "
    "nn.hard_swish nn.hard_sigmoid nn.hard_tanh nn.log_sigmoid jnp.tanh".split()
)
"""Functions of one array that a module may take as an argument."""


def numbers_of(tree: ast.AST) -> list[ast.Constant]:
    """Return the numbers in a class that may become arguments."""
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [
        node
        for node in constants
        if type(node.value) in (int, float) or (isinstance(node.value, bool) and getattr(node, "role", ""))
    ]


def activations_of(tree: ast.AST) -> list[ast.Attribute]:
    """Return the activations of one value that are called in a class, and that may become arguments.

    >>> [
    ...     ast.unparse(one)
    ...     for one in activations_of(ast.parse("nn.relu(x) + jnp.tanh(y) + nn.gelu(x, approximate=False)"))
    ... ]
    ['nn.relu', 'jnp.tanh']
    """
    called = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
    ]
    return [node.func for node in called if isinstance(node.func, ast.Attribute) and text_of(node.func) in ACTIVATIONS]


def text_of(function: ast.Attribute) -> str:
    """Return a function of a module as it is written: `nn.relu`; empty for any other attribute."""
    return f"{function.value.id}.{function.attr}" if isinstance(function.value, ast.Name) else ""


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
    """Return a key that classes share if they are alike but for numbers and activations, and for which of these names they use."""
    activations = [(node, node.value, node.attr) for node in activations_of(tree)]
    numbers = numbers_of(tree)
    values = [node.value for node in numbers]
    places: list[tuple[ast.AST, str]] = [(node, "id") for node in ast.walk(tree) if isinstance(node, ast.Name)]
    places += [(node, "arg") for node in ast.walk(tree) if isinstance(node, ast.arg)]
    named = [(node, field, getattr(node, field)) for node, field in places if getattr(node, field) in free]
    for node in numbers:
        node.value = 0 if isinstance(node.value, int) else 0.0
    for node, *_ in activations:
        node.value, node.attr = ast.Name("activation", ast.Load()), ""
    order = {name: place for place, name in enumerate(dict.fromkeys(name for *_, name in named))}
    for node, field, name in named:
        setattr(node, field, f"name {order[name]}")
    try:
        return ast.dump(tree)
    finally:
        for function, module, called in activations:
            function.value, function.attr = module, called
        for node, value in zip(numbers, values, strict=True):
            node.value = value
        for node, field, name in named:
            setattr(node, field, name)


class Replacements(ast.NodeTransformer):
    """Expressions in place of numbers and functions, by the identity of these."""

    def __init__(self) -> None:
        self.expressions: dict[ast.expr, ast.expr] = {}

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self.expressions.get(node, node)

    def visit_Number(self, node: ast.Constant) -> ast.expr:
        """As a constant of Python: this is one of Rust."""
        return self.visit_Constant(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return self.expressions.get(node, node)
