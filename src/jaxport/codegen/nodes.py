"""Trees of any language, as far as the printer of modules looks into them: it walks and compares them, and replaces
nodes.

    Linear(32, 64), nn.relu(x)    and    Linear(64, 64), nn.gelu(x)

have one key, `Linear(int, int), activation(x)`: what differs becomes an argument of a constructor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import ClassVar, Protocol, TypeGuard, TypeVar, cast


class TreeNode(Protocol):
    """A node of a tree: `_fields` are the names of its parts, as those of nodes of `ast` are."""

    _fields: ClassVar[tuple[str, ...]]


class TreeNumber(TreeNode, Protocol):
    """A number that is written as it is."""

    @property
    def value(self) -> object:
        """The number, or a boolean."""


Tree = TypeVar("Tree", bound=TreeNode)


def _is_node(part: object) -> TypeGuard[TreeNode]:
    return hasattr(part, "_fields")


def _is_number(node: TreeNode) -> TypeGuard[TreeNumber]:
    value = getattr(node, "value", None)
    return type(value) in (int, float) or (isinstance(value, bool) and bool(getattr(node, "role", "")))


def walk(trees: Iterable[TreeNode]) -> Iterator[TreeNode]:
    """Yield the nodes of trees, outer ones first, level by level."""
    pending = deque(trees)
    while pending:
        node = pending.popleft()
        for field in node._fields:
            value = getattr(node, field, None)
            pending.extend(filter(_is_node, value if isinstance(value, list) else (value,)))
        yield node


def numbers_in(trees: Iterable[TreeNode]) -> list[TreeNumber]:
    """Return the numbers in trees that may become arguments of a constructor; of booleans those that have a role."""
    return [node for node in walk(trees) if _is_number(node)]


def key_of_trees(trees: Iterable[TreeNode], said: Mapping[TreeNode, str] | None = None) -> Hashable:
    """Return a key that trees of equal parts share; `said` has what stands for some nodes."""
    known = said or {}

    def key(part: object) -> Hashable:
        if isinstance(part, list):
            return tuple(map(key, part))
        if not _is_node(part):
            return repr(part)
        return known.get(part) or (type(part).__name__, *(key(getattr(part, field, None)) for field in part._fields))

    return tuple(map(key, trees))


def key_without(trees: Collection[TreeNode], others: Iterable[TreeNode], free: Collection[str]) -> Hashable:
    """Return a key that trees share which are alike but for numbers, for `others`, and for which of the names `free`
    they use.
    """
    nodes = [*walk(trees)]
    said: dict[TreeNode, str] = dict.fromkeys(others, "other")
    said |= {node: "float" if isinstance(node.value, float) else "int" for node in nodes if _is_number(node)}
    named = [(node, chosen) for node in nodes if (chosen := _name_in(node)) in free]
    order = {chosen: place for place, chosen in enumerate(dict.fromkeys(chosen for _, chosen in named))}
    return key_of_trees(trees, said | {node: f"name {order[chosen]}" for node, chosen in named})


def _name_in(node: TreeNode) -> str:
    """Return the name that a node is, or that it gives to a parameter."""
    return getattr(node, "id", "") or (getattr(node, "arg", "") if "annotation" in node._fields else "")


def replaced(tree: Tree, expressions: Mapping[TreeNode, TreeNode]) -> Tree:
    """Return a tree with expressions in place of some of its nodes; it is changed."""
    for field in tree._fields:
        value = getattr(tree, field, None)
        if isinstance(value, list):
            value[:] = [replaced(part, expressions) if _is_node(part) else part for part in value]
        elif _is_node(value):
            setattr(tree, field, replaced(value, expressions))
    return cast(Tree, expressions.get(tree, tree))
