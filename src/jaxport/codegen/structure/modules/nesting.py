"""Modules closed, so that each is one call: its operands are made before, its results are read after.

Exporters lose the scopes of some operators, and order operators as they like. At each level the leaves and the modules
inside are the nodes of a graph, and a cycle in it shows a part in the wrong place: an operator that needs a module and
that the same module needs belongs to it; modules that need each other cannot be calls, and one of them is dissolved:
its parts move to the level around.

    block.norm    y = norm(x)                      x = self.block(x)
    (no scope)    z = y * 2            →           with, in the class of `block`:
    block.dense   x = dense(z)                         return self.dense(self.norm(x) * 2)

`block` needs the product, and the product needs `block`: a cycle, so the product belongs into `block`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from jaxport.codegen.structure.sequences import rearranges, sequence_of
from jaxport.codegen.tree import Call, Item, Layer, Leaf, Module, Op, makers_of, readers_of
from jaxport.importer.calls import Chain, called
from jaxport.importer.names import is_made_up
from jaxport.importer.parts import cycles, in_order
from jaxport.importer.values.recording import Variable

MOST_AROUND = 3
"""Operators beside the layer of a module that is a layer."""

ROLES = frozenset({"", "kernel", "weight", "bias", "scale", "embedding"})
"""Names of weights that say nothing about their layer."""

Part = str | Leaf
"""A node of the graph of one level: a module inside, by its path, or a leaf."""


@dataclass(eq=False)
class Nesting:
    """Makes modules of leaves.

    Attributes:
      chains: the modules around each leaf; changed as modules are closed.
      order: where each leaf is in the file.
      weights: the variables that stand for tensors.
      shared: those of them that belong to several modules.
      types: the types of modules, by path.
      results: the values that the model returns.
      containers: the modules that only number others: each is a sequence of them, or no module.
      places: the modules that are of one layer each, by the layer's identity.
    """

    chains: dict[Leaf, Chain]
    order: Mapping[Leaf, int]
    weights: Set[Variable]
    shared: Set[Variable]
    types: Mapping[str, str]
    results: Collection[Variable]
    containers: Set[str]
    places: Mapping[Leaf, str]

    def module(self, path: str, leaves: Sequence[Leaf], depth: int, outside: Collection[Variable]) -> Module:
        """Return the module of these leaves, which is in `depth` others.

        Args:
          outside: the values that are used outside of it.
        """
        self._settle(leaves, depth)
        self._finish(leaves, depth, outside)
        parts: dict[Part, list[Leaf]] = {}
        for leaf in leaves:
            parts.setdefault(self._part(leaf, depth), []).append(leaf)
        makers = {variable: part for part, inside in parts.items() for leaf in inside for variable in leaf.outputs}
        used: dict[Variable, set[Part | None]] = {variable: {None} for variable in outside}
        for part, inside in parts.items():
            for leaf in inside:
                for variable in leaf.inputs:
                    used.setdefault(variable, set()).add(part)
        items: list[Item] = []
        for part in self._sorted(parts, makers):
            if not isinstance(part, str):
                items.append(replace(part, label=self._label(part, path)) if isinstance(part, Layer) else part)
                continue
            beyond = [v for leaf in parts[part] for v in leaf.outputs if used.get(v, set()) - {part}]
            items += self._call(part, path, parts[part], depth + 1, beyond)
        made = {variable for leaf in leaves for variable in leaf.outputs}
        inputs = dict.fromkeys(v for item in items for v in item.inputs if v not in made)
        outputs = tuple(dict.fromkeys(v for leaf in leaves for v in leaf.outputs if v in outside))
        return Module(path, self.types.get(path, ""), tuple(items), tuple(inputs), outputs)

    def _call(
        self, path: str, around: str, leaves: Sequence[Leaf], depth: int, outside: Collection[Variable]
    ) -> list[Item]:
        """Return the call of a module.

        Of one that is a layer, and at most brings axes into its order, the layer itself; of a container that is no
        sequence its parts.
        """
        module = self.module(path, leaves, depth, outside)
        label = path.removeprefix(f"{around}.") if around else path
        layers = [leaf for leaf in leaves if isinstance(leaf, Layer)]
        others = [item for item in module.items if not isinstance(item, Layer)]
        light = all(isinstance(item, Op) and self.weights.isdisjoint(item.inputs) for item in others)
        moved = all(map(rearranges, others)) and not any(_has_place(layer, path) for layer in module.items)
        if path in self.containers and not (len(layers) == 1 and moved):
            parts = sequence_of(module, self.weights)
            return parts if parts is not None else _with_labels(module.items, label)
        deeper = [inner for layer in layers for inner in self.chains[layer][depth:] if called(inner) in self.types]
        if len(layers) == 1 and light and len(others) <= MOST_AROUND and (path in self.containers or not deeper):
            return [replace(item, label=label) if isinstance(item, Layer) else item for item in module.items]
        return [Call(module, module.inputs, module.outputs)]

    def _label(self, layer: Layer, around: str) -> str:
        """Return the path of a layer in a module: that of its own, though it be dissolved, or that of its only kernel
        or weight.
        """
        place, begin = self.places.get(layer, ""), f"{around}." if around else ""
        if place.startswith(begin) and place not in ("", around):
            return place.removeprefix(begin)
        kernels = [weight for role, weight in layer.weights.items() if role.endswith("kernel")]
        names = [weight.name for weight in kernels or layer.weights.values() if weight.part is None]
        path, _, name = names[0].rpartition(".") if len(names) == 1 else ("", "", "")
        is_name = name not in ROLES and len(name) > 1 and name.isidentifier() and not is_made_up(name)
        return name if is_name and path == called(around) else layer.label

    def _part(self, leaf: Leaf, depth: int) -> Part:
        chain = self.chains[leaf]
        return chain[depth] if len(chain) > depth else leaf

    def _settle(self, leaves: Sequence[Leaf], depth: int) -> None:
        """Change chains until no cycle is left at this depth."""
        self._dissolve_weightless(leaves, depth)
        makers = makers_of(leaves)
        while True:
            edges: dict[Part, set[Part]] = {}
            for leaf in leaves:
                part = self._part(leaf, depth)
                before = edges.setdefault(part, set())
                for variable in leaf.inputs:
                    if variable in makers and (other := self._part(makers[variable], depth)) != part:
                        before.add(other)
            found = cycles(edges)
            if not found:
                return
            for cycle in found:
                self._mend(cycle, leaves, depth)

    def _finish(self, leaves: Sequence[Leaf], depth: int, outside: Collection[Variable]) -> None:
        """Move leaves that only combine results of one module, such as the last addition of a block, into it."""
        makers, readers = makers_of(leaves), readers_of(leaves)
        for leaf in leaves:
            makes = [makers.get(variable) for variable in {*leaf.inputs}]
            if isinstance(leaf, Layer) or len(self.chains[leaf]) > depth or len(makes) < 2 or None in makes:
                continue
            parts = {self._part(made, depth) for made in makes if made is not None}
            (part, *others) = parts
            if not isinstance(part, str) or others:
                continue
            around = (other for variable in leaf.inputs for other in readers[variable] if other is not leaf)
            if all(self._part(other, depth) == part for other in around) and {*outside}.isdisjoint(leaf.inputs):
                self.chains[leaf] = (*self.chains[leaf][:depth], part)

    def _mend(self, cycle: Sequence[Part], leaves: Sequence[Leaf], depth: int) -> None:
        modules = [part for part in cycle if isinstance(part, str)]
        if len(modules) == 1:
            for part in cycle:
                if not isinstance(part, str):
                    self.chains[part] = (*self.chains[part][:depth], modules[0])
            return
        sizes = {path: sum(self._part(leaf, depth) == path for leaf in leaves) for path in modules}
        self._dissolve(min(modules, key=lambda path: (path not in self.containers, sizes[path])), leaves, depth)

    def _dissolve(self, path: str, leaves: Iterable[Leaf], depth: int) -> None:
        for leaf in leaves:
            chain = self.chains[leaf]
            if len(chain) > depth and chain[depth] == path:
                self.chains[leaf] = (*chain[:depth], *chain[depth + 1 :])

    def _dissolve_weightless(self, leaves: Sequence[Leaf], depth: int) -> None:
        """Dissolve modules without weights, such as activations."""
        while True:
            modules: dict[str, list[Leaf]] = {}
            for leaf in leaves:
                part = self._part(leaf, depth)
                if isinstance(part, str):
                    modules.setdefault(part, []).append(leaf)
            light = [path for path, inside in modules.items() if not self._is_heavy(inside)]
            if not light:
                return
            for path in light:
                self._dissolve(path, leaves, depth)

    def _is_heavy(self, leaves: Sequence[Leaf]) -> bool:
        """Whether leaves are worth a module: they have weights, and not just those of another module."""
        if any(isinstance(leaf, Layer) for leaf in leaves):
            return True
        read = {variable for leaf in leaves for variable in leaf.inputs if variable in self.weights}
        return bool(read) and (len(leaves) > MOST_AROUND or not read <= self.shared)

    def _sorted(self, parts: Mapping[Part, Sequence[Leaf]], makers: Mapping[Variable, Part]) -> list[Part]:
        """Return the parts in topological order, otherwise in that of the file."""
        needed = {
            part: {makers[v] for leaf in inside for v in leaf.inputs if v in makers and makers[v] != part}
            for part, inside in parts.items()
        }
        return in_order(needed, {part: min(self.order[leaf] for leaf in inside) for part, inside in parts.items()})


def _has_place(item: Item, around: str) -> bool:
    """Whether the weights of a layer are named by its place in a module; those of one that others were folded into are
    not.
    """
    begin = f"{called(around)}.{item.label}." if isinstance(item, Layer) else ""
    return isinstance(item, Layer) and any(weight.name.startswith(begin) for weight in item.weights.values())


def _with_labels(items: Iterable[Item], around: str) -> list[Item]:
    """Return the parts of a module as parts of the one around it."""
    return [replace(item, label=f"{around}.{item.label}") if isinstance(item, Layer) else item for item in items]
