"""Flax NNX: modules are mutable graphs of objects; a trace works on a copy and compares its state afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
from flax import nnx
from flax.nnx import graphlib

from jaxport.blocks.framework import Framework, Leaf, Lifted, Snapshot, static_items
from jaxport.blocks.places import joined
from jaxport.blocks.targets import subclasses
from jaxport.blocks.values import is_array

__all__ = ["framework"]


class Nnx(Framework):
    """`flax.nnx`."""

    namespaces = ("flax.nnx",)
    bases = (nnx.Module, nnx.Pytree)

    def is_module(self, value: object) -> bool:
        """An `nnx.Module`."""
        return isinstance(value, nnx.Module)

    def is_opaque(self, value: object) -> bool:
        """All of NNX's graph objects have identity."""
        return isinstance(value, nnx.Pytree | nnx.Variable | nnx.GraphDef | nnx.State)

    def is_root(self, value: object) -> bool:
        """Random number streams and single Variables are state too."""
        return isinstance(value, nnx.Pytree | nnx.Variable)

    def is_variable(self, value: object) -> bool:
        """An `nnx.Variable`."""
        return isinstance(value, nnx.Variable)

    def module_classes(self) -> Iterator[type]:
        """All subclasses of `nnx.Module`."""
        return subclasses(nnx.Module)

    def submodules(self, module: object) -> Iterator[tuple[str, object]]:
        """Parents come first; a shared module is at the first of its paths in the order of their names."""
        return (
            (path, node) for path, node in _walk(module) if _category(node) == "node" and isinstance(node, nnx.Module)
        )

    def leaves(self, module: object) -> list[Leaf]:
        """One leaf per array of a Variable, and those that are attributes themselves."""
        return [leaf for path, node in _walk(module) for leaf in _leaves_of(path, node)]

    def config(self, module: object) -> dict[str, object]:
        """The attributes that hold no arrays, Variables or modules."""
        return static_items(vars(module), self.is_opaque)

    def lift(self, module: object) -> Lifted:
        """Split outside, merge inside the trace: counts and statistics never leak into the user's module."""
        graphdef, flat = graphlib.flatten(module, graph=True)
        nodes = list(flat)
        leaves = tuple(leaf for path, node in nodes for leaf in _leaves_of(".".join(map(str, path)), node))

        def rebuild(values: Sequence[object]) -> object:
            waiting = iter(values)
            new = [
                (path, jax.tree.map(lambda leaf: next(waiting) if is_array(leaf) else leaf, node))
                for path, node in nodes
            ]
            return nnx.merge(graphdef, nnx.from_flat_state(new))

        return Lifted(leaves, _attributes(_walk(module)), rebuild, self._snapshot)

    def _snapshot(self, copy: object) -> Snapshot:
        visited = list(_walk(copy))
        leaves = {leaf.path: leaf for path, node in visited for leaf in _leaves_of(path, node)}
        return Snapshot(leaves, _attributes(visited))


# What a value is in a module's graph goes by its type, and NNX's own checks of it are slow.
_categories: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _category(value: object) -> str:
    """What a value is: a "node" of the graph, a "variable", an "array", a "container" of them, or "" for the rest."""
    known = _categories.get(type(value))
    if known is None:
        tests = {"node": nnx.Pytree, "variable": nnx.Variable, "container": list | tuple | dict}
        known = (
            "array" if is_array(value) else next((name for name, cls in tests.items() if isinstance(value, cls)), "")
        )
        _categories[type(value)] = known
    return known


def _walk(module: object) -> Iterator[tuple[str, object]]:
    """All graph nodes, Variables and arrays of a module, each once, with their paths; parents come first."""
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", module)]
    while waiting:
        path, node = waiting.pop()
        category = _category(node)
        if category in ("node", "variable"):
            if id(node) in seen:
                continue
            seen.add(id(node))
        if category != "container":
            yield path, node
        prefix = f"{path}." if path else ""
        waiting += [(f"{prefix}{key}", child) for key, child in reversed(_children(node, category)) if _category(child)]


def _children(node: object, category: str) -> list[tuple[object, object]]:
    if category == "node":
        return sorted(vars(node).items())
    if category == "container":
        return list(node.items() if isinstance(node, dict) else enumerate(node))
    return []


def _attributes(visited: Iterable[tuple[str, object]]) -> dict[str, object]:
    """What modules hold beside arrays and each other, by path."""
    return {
        joined(path, name): value
        for path, node in visited
        if _category(node) == "node"
        for name, value in vars(node).items()
        if not _category(value) and not name.startswith("_pytree__")
    }


def _leaves_of(path: str, node: object) -> Iterator[Leaf]:
    if is_array(node):
        yield Leaf(path, node, trainable=False)
    elif isinstance(node, nnx.Variable):
        trainable, counter = isinstance(node, nnx.Param), isinstance(node, nnx.RngCount)
        value = node.get_raw_value()
        if is_array(value):
            yield Leaf(path, value, trainable, counter)
            return
        for keys, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if is_array(leaf):
                below = jax.tree_util.keystr(keys, simple=True, separator=".")
                yield Leaf(joined(path, below), leaf, trainable, counter)


framework = Nnx()
