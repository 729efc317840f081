"""What Python writes otherwise in classes that are alike: activations that are arguments, and negative numbers that are
added.
"""

from __future__ import annotations

import ast

ACTIVATIONS = frozenset(
    "nn.relu nn.relu6 nn.sigmoid nn.silu nn.gelu nn.elu nn.selu nn.celu nn.leaky_relu nn.softplus nn.soft_sign nn.mish "
    "nn.hard_swish nn.hard_sigmoid nn.hard_tanh nn.log_sigmoid jnp.tanh".split()
)
"""Functions of one array that a module may take as an argument."""


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
