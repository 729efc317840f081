"""Flax NNX: modules are mutable graphs of objects; a trace works on a copy and compares its state afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import jax
from flax import nnx

from jaxport.blocks.framework import Framework, Leaf, Lifted, static_items
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
        """Parents come first."""
        if isinstance(module, nnx.Variable):
            return iter(())
        found = [(path, node) for path, node in nnx.iter_graph(module, graph=True) if isinstance(node, nnx.Module)]
        return ((_dotted(path), node) for path, node in reversed(found))

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

        return Lifted(leaves, rebuild, self._state, self._static)

    def _state(self, copy: object) -> Mapping[str, Leaf]:
        return {leaf.path: leaf for leaf in self.leaves(copy)}

    def _static(self, copy: object) -> Mapping[str, object]:
        return {
            f"{path}.{name}" if path else name: value
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
