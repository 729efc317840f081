"""The blocks of an imported program: calls of modules, each with its nodes in one piece, marked while a window is open.

A file has nodes that belong to no module, in the middle of calls, and interleaves calls that do not depend on one
another. At each level the calls and the nodes between them are the parts of a graph; in an order of that graph each
call is in one piece, which is the order in which the nodes are computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from jaxport.importer.calls import Chain, PlacedOperation, called, common, separated
from jaxport.importer.modules import COPIES, NodeModule, NodePlace, Parameters, call_in_name, has_place, module_tree
from jaxport.importer.names import without_positions
from jaxport.importer.parts import cycles, in_order
from jaxport.importer.resolving.graph import Body, BodyFunction, BoundNode
from jaxport.importer.values.stored import originals


@dataclass(frozen=True, eq=False)
class Segment:
    """The nodes of one call of a module.

    Attributes:
      module: the module.
      items: its nodes, and the calls of the modules inside it.
      inputs: the values computed before, without initializers.
      outputs: the values that are used later.
    """

    module: NodeModule
    items: tuple[Item, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


@dataclass(frozen=True, eq=False)
class Nested:
    """A node with modules inside: the items of the bodies of its branches, or of the function that it calls."""

    node: BoundNode
    bodies: Mapping[Body, tuple[Item, ...]]


Item = BoundNode | Nested | Segment
Part = BoundNode | str
"""A part of one level: a node, or a call of a module by its path, which further calls have with a number."""


def arranged(body: Body, parameters: Parameters) -> tuple[NodeModule, dict[BoundNode, NodePlace], tuple[Item, ...]]:
    """Return the modules of a graph, the place of each of its nodes, and its nodes grouped into calls of the
    modules.
    """
    root, places = module_tree(body, parameters)
    items = segments(body, places, parameters)
    for calls in calls_of_modules(items).values():
        calls[0].module.calls = len(calls)
    return root, places, items


def segments(
    body: Body, places: Mapping[BoundNode, NodePlace], weights: Collection[ir.Value | None], around: int = 0
) -> tuple[Item, ...]:
    """Return the nodes of a graph in an order in which they can be computed, with those of each call of a module in a
    segment.

    Args:
      body: the graph.
      places: the place of each of its nodes.
      weights: the parameters, which tell calls apart.
      around: the number of modules around the whole graph.
    """
    return _CallsOfNodes(body, places, weights, around).grouped(body.nodes, 0)


def calls_of_modules(items: Iterable[Item]) -> dict[str, list[Segment]]:
    """Return the calls of each module by its path, in order; what loops, branches and functions contain comes once."""
    calls: dict[str, list[Segment]] = {}
    for item in items:
        inside = [item.items] if isinstance(item, Segment) else item.bodies.values() if isinstance(item, Nested) else []
        if isinstance(item, Segment):
            calls.setdefault(item.module.path, []).append(item)
        for inner in inside:
            for path, found in calls_of_modules(inner).items():
                calls.setdefault(path, []).extend(found)
    return calls


class _CallsOfNodes:
    """The nodes of one graph, with the calls around each."""

    def __init__(
        self,
        body: Body,
        places: Mapping[BoundNode, NodePlace],
        weights: Collection[ir.Value | None],
        around: int,
    ):
        self.body, self.places, self.weights = body, places, weights
        self.results = set(body.outputs)
        self.modules = {module.path: module for place in places.values() for module in place.modules}
        self.position = {node: index for index, node in enumerate(body.nodes)}
        self.makers = {value: node for node in body.nodes for value in node.outputs if value is not None}
        self.readers: dict[ir.Value, list[BoundNode]] = {}
        for node in body.nodes:
            for value in dict.fromkeys(_used(node)):
                self.readers.setdefault(value, []).append(node)
        recorded = {node: tuple(module.path for module in places[node].modules[around:]) for node in body.nodes}
        # A constant is where it is read, wherever the exporter has put the first of equal ones.
        self.free = {
            node for node in body.nodes if not node.inputs or (not recorded[node] and not has_place(node.node))
        }
        self.chains = self._shared(
            self._moved(*self._separated({node: () if node in self.free else recorded[node] for node in recorded}))
        )
        self.pieces = 0

    def grouped(self, nodes: Sequence[BoundNode], depth: int) -> tuple[Item, ...]:
        """Return the items of nodes that are in `depth` calls."""
        self._settle(nodes, depth)
        parts: dict[Part, list[BoundNode]] = {}
        for node in nodes:
            parts.setdefault(self._part(node, depth), []).append(node)
        items: list[Item] = []
        for part in in_order(self._needed(nodes, depth), {part: self.position[own[0]] for part, own in parts.items()}):
            if isinstance(part, BoundNode):
                items.append(self._nested(part))
                continue
            members = parts[part]
            inside = set(members)
            made = dict.fromkeys(value for node in members for value in node.outputs if value is not None)
            read = dict.fromkeys(value for node in members for value in _used(node))
            items.append(
                Segment(
                    self.modules[called(part)],
                    self.grouped(members, depth + 1),
                    tuple(value for value in read if value not in made and value not in self.body.initializers),
                    tuple(value for value in made if self._is_used(value, inside)),
                )
            )
        return tuple(items)

    def _is_used(self, value: ir.Value, inside: Collection[BoundNode]) -> bool:
        """Whether a value is used outside of the nodes of a call."""
        return value in self.results or any(reader not in inside for reader in self.readers.get(value, ()))

    def _nested(self, node: BoundNode) -> BoundNode | Nested:
        """Return the node, with the items of its bodies if these have modules of their own."""
        place = self.places[node]
        bodies = {
            body: segments(body, places, self._weights_of(body, node), len(place.modules))
            for body, places in place.bodies.items()
        }
        with_modules = {
            body: items for body, items in bodies.items() if not all(isinstance(item, BoundNode) for item in items)
        }
        return Nested(node, with_modules) if with_modules else node

    def _weights_of(self, body: Body, node: BoundNode) -> Collection[ir.Value | None]:
        """Return the parameters that a branch or a loop sees, or that a call passes to its function."""
        if isinstance(node.target, BodyFunction) and body is node.target.body:
            return {formal for formal, value in zip(body.inputs, node.inputs, strict=False) if value in self.weights}
        return self.weights

    def _part(self, node: BoundNode, depth: int) -> Part:
        chain = self.chains[node]
        return chain[depth] if len(chain) > depth else node

    def _needed(self, nodes: Iterable[BoundNode], depth: int) -> dict[Part, set[Part]]:
        """Return the parts that each part of a level needs."""
        inside = set(nodes)
        needed: dict[Part, set[Part]] = {}
        for node in nodes:
            part = self._part(node, depth)
            before = needed.setdefault(part, set())
            for value in _used(node):
                maker = self.makers.get(value)
                if maker in inside and maker is not None and (other := self._part(maker, depth)) != part:
                    before.add(other)
        return needed

    # -- calls -----------------------------------------------------------------------------------------------------

    def _separated(self, chains: Mapping[BoundNode, Chain]) -> tuple[dict[BoundNode, Chain], set[str]]:
        """Return the chains with a path for each call, and the modules that are called several times."""
        stored = {value: value for value in self.weights if value is not None}
        for node in self.body.nodes:
            if node.node.op_type in COPIES and node.inputs and node.inputs[0] in stored and not has_place(node.node):
                stored |= {value: stored[node.inputs[0]] for value in node.outputs if value is not None}
        placed = [node for node in self.body.nodes if chains[node]]
        reads = {node: [stored[value] for value in _used(node) if value in stored] for node in placed}
        firsts = originals(weight for read in reads.values() for weight in read)
        operations = [
            PlacedOperation(
                chains[node], node.node.op_type, tuple(firsts[weight] for weight in read if weight in firsts)
            )
            for node, read in reads.items()
        ]
        ranks = self._ranks()
        found, repeated = separated(operations, ranks=[ranks.get(node, 0) for node in placed])
        separate = dict(zip(placed, found, strict=True))
        return {
            **chains,
            **separate,
            **self._by_number(separate, {node for node, read in reads.items() if read}),
        }, repeated

    def _by_number(self, chains: Mapping[BoundNode, Chain], reading: Collection[BoundNode]) -> dict[BoundNode, Chain]:
        """Return the chains of nodes in modules without weights whose calls the exporter has numbered."""
        around = {chain[:-1] for chain in chains.values()}
        calls: dict[Chain, list[BoundNode]] = {}
        for node, chain in chains.items():
            calls.setdefault(chain, []).append(node)
        return {
            node: (*chain[:-1], f"{chain[-1]}@{number}")
            for chain, nodes in calls.items()
            if chain not in around and not any(node in reading for node in nodes)
            for node in nodes
            if (number := call_in_name(node.node, called(chain[-1])))
        }

    def _ranks(self) -> dict[BoundNode, int]:
        """Return the nodes in an order in which what a result needs comes in one piece, result by result."""
        ranks: dict[BoundNode, int] = {}
        for result in self.body.outputs:
            pending = [(self.makers[result], False)] if result in self.makers else []
            while pending:
                node, is_done = pending.pop()
                if node in ranks:
                    continue
                if is_done:
                    ranks[node] = len(ranks)
                    continue
                pending.append((node, True))
                pending += [(self.makers[v], False) for v in reversed(_used(node)) if v in self.makers]
        return ranks

    def _moved(self, chains: dict[BoundNode, Chain], repeated: Collection[str]) -> dict[BoundNode, Chain]:
        """Return the chains with nodes that have no place in the calls around their operands, or around their readers.

        Fewer values cross the border of a call so: what needs nothing, or makes several values of one, goes to its
        readers. What combines the results of two calls of a module, or is computed of the last one only, stays outside
        of it.
        """
        for node in reversed(self.body.nodes):
            if node not in self.free:
                continue
            read = [value for value in node.outputs if value in self.readers]
            operands = list(dict.fromkeys(value for value in _used(node) if value in self.makers))
            leaves = any(value in self.results for value in node.outputs)
            after = () if leaves else common(chains[reader] for value in read for reader in self.readers[value])
            before = common(chains[self.makers[value]] for value in operands)
            if len(operands) < len(read):
                moved = after
            elif len(read) < len(operands):
                last = not read and any(called(path) in repeated for path in before)
                moved = () if last else before
            else:
                moved = common([before, after])
            chains[node] = moved if len(moved) > len(chains[node]) else chains[node]
        return chains

    def _shared(self, chains: dict[BoundNode, Chain]) -> dict[BoundNode, Chain]:
        """Return the chains with what all layers compute alike, of values from before them, in front of the layers.

        Exporters compute it once, in the first layer, which would have more results than the others: a mask in another
        form, the sines of positions.
        """
        for node in self.body.nodes:
            readers = [reader for value in node.outputs if value is not None for reader in self.readers.get(value, ())]
            around = common([chains[node], *(chains[reader] for reader in readers)])
            if len(around) == len(chains[node]) or not self.results.isdisjoint(node.outputs):
                continue
            if {_kind(chains[node])} == {_kind(chains[reader]) for reader in readers}:
                for one in self._before(node, chains, chains[node][: len(around) + 1]):
                    chains[one] = around
        return chains

    def _before(self, node: BoundNode, chains: Mapping[BoundNode, Chain], call: Chain) -> set[BoundNode]:
        """Return the nodes of a call that compute a value of its inputs, the node itself too; none if weights do."""
        found, pending = {node}, [node]
        while pending:
            used = _used(pending.pop())
            if any(value in self.weights for value in used):
                return set()
            makers = {self.makers[value] for value in used if value in self.makers}
            inside = {maker for maker in makers if chains[maker][: len(call)] == call}
            pending += inside - found
            found |= inside
        return found

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _settle(self, nodes: Sequence[BoundNode], depth: int) -> None:
        """Change chains until no parts of a level need each other."""
        while found := cycles(self._needed(nodes, depth)):
            for cycle in found:
                self._mend(cycle, nodes, depth)

    def _mend(self, cycle: Sequence[Part], nodes: Sequence[BoundNode], depth: int) -> None:
        """Move nodes without a place into the one call that needs them and that they need, or make pieces of the
        calls.
        """
        calls = [part for part in cycle if isinstance(part, str)]
        if len(calls) == 1 and all(isinstance(part, str) or part in self.free for part in cycle):
            for part in cycle:
                if isinstance(part, BoundNode):
                    self.chains[part] = (*self.chains[part][:depth], calls[0])
            return
        inside = set(cycle)
        pieces: dict[Part, str] = {}
        last: Part | None = None
        for node in nodes:
            part = self._part(node, depth)
            if part not in inside:
                continue
            if isinstance(part, str):
                if part not in pieces:
                    pieces[part] = part
                elif part != last:
                    self.pieces += 1
                    pieces[part] = f"{part}@0{self.pieces}"
                self.chains[node] = (*self.chains[node][:depth], pieces[part], *self.chains[node][depth + 1 :])
            last = part


def _used(node: BoundNode) -> list[ir.Value]:
    used = [value for value in node.inputs if value is not None]
    return used + [value for inner in node.bodies() for value in inner.captured]


def _kind(chain: Chain) -> tuple[str, ...]:
    """Return the modules of a chain without their positions in lists."""
    return tuple(without_positions(called(path)) for path in chain)
