"""Flax NNX: modules are mutable graphs of objects; a trace works on a copy and compares its state afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np
from flax import nnx
from flax.nnx import graphlib

from jaxport.blocks.framework import Framework, Leaf, Lifted, Look, Prepare, Snapshot, static_items
from jaxport.blocks.naming import dotted
from jaxport.blocks.places import joined
from jaxport.blocks.targets import public_methods, subclasses
from jaxport.blocks.values import children, is_array
from jaxport.jaxprs import Module, PyTree

__all__ = ["framework"]


class Nnx(Framework):
    """`flax.nnx`."""

    namespaces = ("flax.nnx", "flax.nnx.bridge")
    bases = (nnx.Module, nnx.Pytree)

    def is_module(self, value: object) -> bool:
        """Whether it is an `nnx.Module`."""
        return isinstance(value, nnx.Module)

    def is_opaque(self, value: object) -> bool:
        """Whether it is one of NNX's graph objects, all of which have identity."""
        return isinstance(value, nnx.Pytree | nnx.Variable | nnx.GraphDef | nnx.State)

    def is_root(self, value: object) -> bool:
        """Whether it is a module, a random number stream or a Variable; the latter are state too."""
        return isinstance(value, nnx.Pytree | nnx.Variable)

    def is_variable(self, value: object) -> bool:
        """Whether it is an `nnx.Variable`."""
        return isinstance(value, nnx.Variable)

    def module_classes(self) -> Iterator[type]:
        """Yield all subclasses of `nnx.Module`."""
        return subclasses(nnx.Module)

    def state_methods(self) -> Iterator[tuple[type, str, Prepare | None]]:
        """Yield the methods of streams, optimizers and metrics, and the accessors of Variables and attributes."""
        for cls in subclasses(nnx.Pytree):
            if not issubclass(cls, nnx.Module):
                yield from ((cls, name, None) for name in public_methods(cls))
        for base, names in _ACCESS.items():
            for cls in (base, *subclasses(base)):
                yield from ((cls, name, _PREPARED.get(name)) for name in names if name in vars(cls))

    def submodules(self, module: Module) -> Iterator[tuple[str, Module]]:
        """Yield parents first; a shared module is at the first of its paths in the order of their names."""
        return iter(_modules_of(_visited(module)[0]))

    def leaves(self, module: Module) -> list[Leaf]:
        """Return one leaf per array of a Variable, and the arrays that are attributes themselves."""
        return [leaf for path, node in _visited(module)[0] for leaf in _leaves_of(path, node)]

    def config(self, module: Module) -> dict[str, PyTree]:
        """Return the attributes that hold no arrays, Variables or modules."""
        return static_items(vars(module), self.is_opaque)

    lifts_together = True

    def lift(self, module: Module) -> Lifted:
        """Split outside and merge inside the trace, so that counts and statistics never leak into the user's module."""
        graphdef, flat = graphlib.flatten(module, graph=True)
        nodes = list(flat)
        leaves = tuple(leaf for path, node in nodes for leaf in _leaves_of(".".join(map(str, path)), node))

        def rebuild(values: Sequence[PyTree]) -> PyTree:
            waiting = iter(values)
            # A Variable may hold a tree of arrays; most hold one, and are recreated from it.
            return nnx.merge(
                graphdef,
                [
                    next(waiting)
                    if is_array(_raw(node))
                    else jax.tree.map(lambda leaf: next(waiting) if is_array(leaf) else leaf, node)
                    for _, node in nodes
                ],
            )

        visited, attributes = _visited(module)
        held = [(vars(node), dict(vars(node))) for _, node in visited if _category(node) == "node"]

        def restore() -> None:
            # A transformation refills a module in place, which would leave it at the level of the trace.
            for current, before in held:
                if any(current.get(name) is not value for name, value in before.items()) or len(current) > len(before):
                    current.clear()
                    current.update(before)

        return Lifted(leaves, attributes, rebuild, self._snapshot, restore, _nodes_of(visited))

    def nodes(self, module: Module) -> Iterator[PyTree]:
        """Yield all graph nodes and Variables, each once."""
        return iter(_nodes_of(_visited(module)[0]))

    def look(self, module: Module) -> Look:
        """Return all of it from one walk."""
        visited = _visited(module)[0]
        leaves = [leaf for path, node in visited for leaf in _leaves_of(path, node)]
        return Look(_nodes_of(visited), leaves, _modules_of(visited))

    def with_part(self, model: Module, old: Module, part: Module) -> PyTree | None:
        """The model, which is a copy, with a field changed; a module that is shared changes in all of its places."""
        if not isinstance(old, nnx.Module) or not isinstance(part, nnx.Module):
            return None
        changed = False
        for node in self.nodes(model):
            if isinstance(node, nnx.Variable):
                continue
            for name, value in list(vars(node).items()):
                if value is old:
                    is_item = name.isdecimal()
                    node.__setitem__(int(name), part) if is_item else setattr(node, name, part)
                    changed = True
        return model if changed else None

    def is_outside(self, module: Module, known: Sequence[bool]) -> bool:
        """NNX only lets objects be changed at the level of the transformation that made them, and so records it.

        A Variable of a state that the callable holds is read in place.
        """
        if isinstance(module, nnx.Variable) and all(known):
            return False
        state = module if isinstance(module, nnx.Variable) else module._pytree__state
        return not state._trace_state.is_valid()

    def _snapshot(self, copy: Module) -> Snapshot:
        visited, attributes = _visited(copy)
        return Snapshot({leaf.path: leaf for path, node in visited for leaf in _leaves_of(path, node)}, attributes)


# The methods that read and write state, also used by NNX itself, and those that check whether that is allowed.
_ACCESS: Mapping[type, Sequence[str]] = {
    nnx.Variable: (
        *("get_value", "set_value", "get_raw_value", "set_raw_value", "update_from_state", "copy_from"),
        *("__getattr__", "__setattr__", "__getitem__", "__setitem__", "_can_update", "_check_can_update"),
    ),
    nnx.Pytree: ("_setattr", "__delattr__", "_check_valid_context"),
}


def _whole(variable: PyTree, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Turn `variable[...] = value` into an assignment without the scatter that NNX needs for untraced values."""
    old, new = variable.get_raw_value(), args[0] if args else kwargs.get("value")
    what = lambda value: (value.shape, value.dtype) if is_array(value) else None
    is_same = what(old) is not None and what(old) == what(new)
    return args, {k: v for k, v in kwargs.items() if not (k == "index" and v is ... and is_same)}


_PREPARED = {"set_value": _whole}

# The category of a value in a module's graph depends on its type, and NNX's own checks of it are slow.
_categories: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _category(value: PyTree) -> str:
    """Return the category of a value: a graph "node", a "variable", an "array", a "container" (any pytree), or ""."""
    known = _categories.get(type(value))
    if known is None:
        tests = {"node": nnx.Pytree, "variable": nnx.Variable, "array": jax.Array | np.ndarray}
        known = next((name for name, cls in tests.items() if isinstance(value, cls)), "")
        if not known and not jax.tree_util.all_leaves([value]):
            known = "container"
        _categories[type(value)] = known
    return known


def _visited(module: Module) -> tuple[list[tuple[str, PyTree]], dict[str, PyTree]]:
    """Return all graph nodes, Variables and arrays of a module, each once, and its other attributes, by path.

    Parents come first, and a shared node is at the first of its paths in the order of their names.
    """
    seen: set[int] = set()
    nodes: list[tuple[str, PyTree]] = []
    attributes: dict[str, PyTree] = {}
    categories: dict[type, str] = {}  # a local cache of `_categories`, which is slower
    waiting: list[tuple[str, PyTree, str]] = [("", module, _category(module))]
    while waiting:
        path, node, category = waiting.pop()
        if category in ("node", "variable"):
            if id(node) in seen:
                continue
            seen.add(id(node))
        if category != "container":
            nodes.append((path, node))
        prefix = f"{path}." if path else ""
        below = []
        for key, child in _children(node, category):
            if child is None:  # a tree without leaves
                continue
            child_category = categories.get(type(child))
            if child_category is None:
                child_category = categories[type(child)] = _category(child)
            if child_category:
                below.append((f"{prefix}{key}", child, child_category))
            elif not str(key).startswith("_pytree__"):
                attributes[f"{prefix}{key}"] = child
        waiting += reversed(below)
    return nodes, attributes


def _children(node: PyTree, category: str) -> Iterable[tuple[PyTree, PyTree]]:
    if category == "node":
        return sorted(vars(node).items())
    if category == "container":
        return [(dotted(keys), child) for keys, child in children(node) or ()]
    return ()


def _nodes_of(visited: Sequence[tuple[str, PyTree]]) -> list[PyTree]:
    """The graph nodes and Variables among what a walk has found."""
    return [node for _, node in visited if _category(node) in ("node", "variable")]


def _modules_of(visited: Sequence[tuple[str, PyTree]]) -> list[tuple[str, Module]]:
    """The modules among what a walk has found, with their paths."""
    return [(path, node) for path, node in visited if _category(node) == "node" and isinstance(node, nnx.Module)]


def _raw(node: PyTree) -> PyTree:
    return node.get_raw_value() if isinstance(node, nnx.Variable) else node


def _leaves_of(path: str, node: PyTree) -> Iterator[Leaf]:
    if is_array(node):
        yield Leaf(path, node, trainable=False)
    elif isinstance(node, nnx.Variable):
        trainable, counter = isinstance(node, nnx.Param), isinstance(node, nnx.RngCount)
        value = _raw(node)
        if is_array(value):
            yield Leaf(path, value, trainable, counter)
            return
        for keys, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if is_array(leaf):
                below = jax.tree_util.keystr(keys, simple=True, separator=".")
                yield Leaf(joined(path, below), leaf, trainable, counter)


framework = Nnx()
