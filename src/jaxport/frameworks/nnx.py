"""Flax NNX: modules are mutable graphs of objects; a trace works on a copy and compares its state afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import jax
from flax import nnx

from jaxport.blocks.framework import Framework, Leaf, Lifted, Snapshot, static_items
from jaxport.blocks.places import joined
from jaxport.blocks.targets import subclasses
from jaxport.blocks.values import is_array

__all__ = ["framework"]


def _dotted(path: Sequence[object]) -> str:
    return ".".join(str(key) for key in path)


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
        seen: set[int] = set()
        waiting = [("", module)]
        while waiting:
            path, node = waiting.pop()
            if isinstance(node, nnx.Pytree):
                if id(node) in seen:
                    continue
                seen.add(id(node))
                if isinstance(node, nnx.Module):
                    yield path, node
                children = sorted(vars(node).items())
            elif isinstance(node, list | tuple):
                children = list(enumerate(node))
            elif isinstance(node, dict):
                children = list(node.items())
            else:
                continue
            waiting += [
                (joined(path, str(key)), child)
                for key, child in reversed(children)
                if isinstance(child, nnx.Pytree) or type(child) in (list, tuple, dict)
            ]

    def leaves(self, module: object) -> list[Leaf]:
        """One leaf per array of a Variable, and those that are attributes themselves."""
        return [leaf for path, node in _flat(module)[1] for leaf in _leaves_of(path, node)]

    def config(self, module: object) -> dict[str, object]:
        """The attributes that hold no arrays, Variables or modules."""
        return static_items(vars(module), self.is_opaque)

    def lift(self, module: object) -> Lifted:
        """Split outside, merge inside the trace: counts and statistics never leak into the user's module."""
        graphdef, flat = _flat(module)
        leaves = tuple(leaf for path, node in flat for leaf in _leaves_of(path, node))

        def rebuild(values: Sequence[object]) -> object:
            waiting = iter(values)
            nodes = [jax.tree.map(lambda leaf: next(waiting) if is_array(leaf) else leaf, node) for _, node in flat]
            return nnx.merge(graphdef, nnx.from_flat_state(zip((path for path, _ in flat), nodes, strict=True)))

        return Lifted(module, leaves, graphdef, rebuild, self._snapshot, self._attributes)

    def _snapshot(self, copy: object) -> Snapshot:
        graphdef, flat = _flat(copy)
        return Snapshot({leaf.path: leaf for path, node in flat for leaf in _leaves_of(path, node)}, graphdef)

    def _attributes(self, copy: object) -> Mapping[str, object]:
        return {
            joined(path, name): value
            for path, module in self.submodules(copy)
            for name, value in self.config(module).items()
        }


def _flat(module: object) -> tuple[nnx.GraphDef, list[tuple[tuple, object]]]:
    graphdef, state = nnx.split(module, graph=True)
    return graphdef, list(nnx.to_flat_state(state))


def _leaves_of(path: tuple, node: object) -> Iterator[Leaf]:
    trainable, counter = isinstance(node, nnx.Param), isinstance(node, nnx.RngCount)
    is_variable = isinstance(node, nnx.Variable)
    value = node.get_raw_value() if is_variable else node
    for keys, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        if is_array(leaf):
            below = jax.tree_util.keystr(keys, simple=True, separator=".")
            yield Leaf(".".join(filter(None, [_dotted(path), below])), leaf, trainable, counter)


framework = Nnx()
