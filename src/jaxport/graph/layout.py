"""Choose in which of two layouts the values of a graph are stored, so that as few Transposes as possible remain.

1. Starting from a value, collect the values that could be stored in another layout with it: through every operator that
   can work on permuted data, to its users and its operands. They form a *region*.
2. In a region each operator works either on the values as they are or on permuted ones, and a value needs a Transpose
   if its producer and a user differ. The choice with the fewest Transposes is a minimum cut.

A caller defines how operators carry a layout, and applies the choice: the export moves the Transposes of its
graph, the importer computes the chosen operators with the channels of images last.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Dim, constant_of, dims_of, is_op, permutation, source

Layout = tuple[int, ...]
"""A permutation `p` of a value: axis `i` of the value is axis `p[i]` of its stored form, so the value is
`Transpose(stored, perm=p)`."""

AS_IS, PERMUTED = 0, 1
#: The cost of a Transpose that moves data, relative to one that only moves axes of size one, which is a view.
MOVING = 64


class PermutedValues(Protocol):
    """What is permuted with an operator: some of its inputs and outputs, each with its layout."""

    @property
    def layouts(self) -> Mapping[ir.Value, Layout]: ...


Carried = TypeVar("Carried", bound=PermutedValues)


def inverse(layout: Sequence[int]) -> Layout:
    """Return the inverse permutation: the layout of the stored form relative to the value.

    >>> inverse((0, 2, 3, 1))
    (0, 3, 1, 2)
    """
    return tuple(sorted(range(len(layout)), key=layout.__getitem__))


def permuted(entries: Sequence, layout: Layout) -> list:
    """Return one entry per axis of a value in the order of the stored axes."""
    return [entries[axis] for axis in inverse(layout)]


def moves_only_ones(dims: Sequence[Dim] | None, layout: Layout) -> bool:
    """Whether a value and its stored form differ only in the places of axes of size one."""
    if dims is None:
        return list(layout) == sorted(layout)
    order = [layout[axis] for axis, dim in enumerate(dims) if dim != 1]
    return order == sorted(order)


@dataclass
class Region(Generic[Carried]):
    """The values of a graph that could be stored in another layout together, and the operators between them.

    Attributes:
      graph: the graph, or a function.
      layouts: the layout of each value: the permutation from its stored form to the value.
      carries: how each operator carries the layout.
    """

    graph: ir.Graph | ir.Function | None
    layouts: dict[ir.Value, Layout]
    carries: dict[ir.Node, Carried] = field(default_factory=dict)

    @classmethod
    def around(
        cls,
        graph: ir.Graph | ir.Function | None,
        value: ir.Value,
        layout: Layout,
        carry: Callable[[ir.Node, ir.Value, Layout], Carried | None],
        seen: set[tuple[ir.Value, Layout]],
    ) -> Region[Carried]:
        """Return the region that contains a value with a layout, without what was seen in another region.

        Args:
          graph: the graph that has the value; operators of other graphs do not carry a layout.
          value: where the region begins.
          layout: the layout of the value.
          carry: returns how an operator carries the layout of one of its inputs or outputs, or None if it cannot.
          seen: the values of earlier regions with their layouts, to which those of this one are added. So each value is
            visited once per layout, however often it is asked for.
        """
        region = cls(graph, {value: layout})
        queue = collections.deque([value])
        while queue:
            value = queue.popleft()
            for node in region.neighbours(value):
                if node in region.carries:
                    continue
                carried = carry(node, value, region.layouts[value])
                if carried is None or not seen.isdisjoint(carried.layouts.items()):
                    continue
                if any(region.layouts.get(v, wanted) != wanted for v, wanted in carried.layouts.items()):
                    continue
                region.carries[node] = carried
                new = [v for v in carried.layouts if v not in region.layouts]
                region.layouts.update(carried.layouts)
                queue.extend(new)
        seen.update(region.layouts.items())
        return region

    def neighbours(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yield the producer and the users of a value in this graph."""
        producer = value.producer()
        if producer is not None and producer.graph is self.graph:
            yield producer
        yield from (node for node in dict.fromkeys(n for n, _ in value.uses()) if node.graph is self.graph)

    def carried(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether an operator, when it works on permuted data, has this operand or result permuted."""
        return node in self.carries and value in self.carries[node].layouts

    # The border

    def matches(self, value: ir.Value) -> bool:
        """Whether a value is the result of a Transpose whose operand is the value's stored form."""
        node = value.producer()
        return is_op(node, "Transpose") and self.equivalent(value, permutation(node), self.layouts[value])

    def matched_by(self, value: ir.Value, node: ir.Node) -> bool:
        """Whether a Transpose of a value gives its stored form."""
        return is_op(node, "Transpose") and self.equivalent(value, inverse(permutation(node)), self.layouts[value])

    def inside(self, node: ir.Node | None) -> bool:
        """Whether both the operand and the result of a Transpose are in the region.

        Its cost is then not counted as that of a border: it vanishes if one of the two is permuted, but not if both
        are.
        """
        return is_op(node, "Transpose") and source(node) in self.layouts and node.outputs[0] in self.layouts

    @staticmethod
    def equivalent(value: ir.Value, one: Layout, other: Layout) -> bool:
        """Whether two layouts of a value differ only in the places of axes of size one."""
        dims = dims_of(value)
        if dims is None or not len(dims) == len(one) == len(other):
            return one == other
        order = [[layout[axis] for axis, dim in enumerate(dims) if dim != 1] for layout in (one, other)]
        return inverse(order[0]) == inverse(order[1])

    # The choice

    def cost(self, value: ir.Value) -> int:
        """Return the cost of a Transpose of a value."""
        return 1 if moves_only_ones(dims_of(value), self.layouts[value]) else MOVING

    def cut(self, required: Collection[ir.Node] = (), cost: Callable[[ir.Value], int] | None = None) -> set[ir.Node]:
        """Return the operators that work on permuted data if Transposes are to cost as little as possible (a minimum
        cut).

        Args:
          required: the operators that work on permuted data in any case.
          cost: returns the cost of a Transpose of a value; by default that of a view or of moved data.
        """
        places = {node: PERMUTED if node in required else 2 + index for index, node in enumerate(self.carries)}
        network = _Network(places)
        for value in self.layouts:
            if constant_of(value) is None:
                network.add(self.source(network, value), list(self.sinks(network, value)), (cost or self.cost)(value))
        chosen = network.solve()
        return {node for node, place in places.items() if place in chosen}

    def source(self, network: _Network, value: ir.Value) -> int | None:
        """Return the side on which a value is available without a Transpose; None if it is available on both."""
        node = value.producer()
        if node is not None and self.carried(node, value):
            return network.places[node]
        if self.matches(value):
            return AS_IS if self.inside(node) else PERMUTED
        return None if is_op(node, "Transpose") else AS_IS

    def sinks(self, network: _Network, value: ir.Value) -> Iterator[int]:
        """Yield the sides on which a value is used."""
        if value.is_graph_output():
            yield AS_IS
        for node, index in value.uses():
            if self.carried(node, value):
                yield network.places[node]
            elif self.matched_by(value, node) and index == 0:
                yield AS_IS if self.inside(node) else PERMUTED
            elif not is_op(node, "Transpose") or node.graph is not self.graph:
                yield AS_IS


class _Network:
    """A flow network whose minimum cut separates operators on values as they are from those on permuted ones.

    Attributes:
      places: the vertex of each operator; vertices 0 and 1 are the two sides.
    """

    def __init__(self, places: dict[ir.Node, int]):
        self.places = places
        self._count = 2 + len(places)
        self._edges: collections.Counter[tuple[int, int]] = collections.Counter()
        self._uncuttable: set[tuple[int, int]] = set()

    def add(self, source: int | None, sinks: Sequence[int], cost: int) -> None:
        """Add a value, which costs one Transpose if any of its users is on the other side than its source."""
        if source is None:
            source = self._vertex()
        if len(sinks) == 1:
            self._edges[source, sinks[0]] += cost
            self._edges[sinks[0], source] += cost
        elif sinks:
            down, up = self._vertex(), self._vertex()
            self._edges[source, down] += cost
            self._edges[up, source] += cost
            for sink in sinks:
                self._uncuttable |= {(down, sink), (sink, up)}

    def _vertex(self) -> int:
        self._count += 1
        return self._count - 1

    def solve(self) -> Set[int]:
        """Return the vertices on the permuted side of a minimum cut, as few as there are in any."""
        edges = {pair: cost for pair, cost in self._edges.items() if pair[0] != pair[1]}
        return _minimum_cut(self._count, tuple(edges.items()), frozenset(self._uncuttable))


@functools.lru_cache(maxsize=16)  # equal layers of a model have equal networks
def _minimum_cut(
    count: int, edges: tuple[tuple[tuple[int, int], int], ...], uncuttable: Set[tuple[int, int]]
) -> Set[int]:
    """Return the vertices on the permuted side of the cheapest cut between the two sides, as few as there are in any.

    Args:
      count: the number of vertices.
      edges: the pairs of vertices that can be cut, with their costs.
      uncuttable: the pairs that must stay together.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    costs = dict(edges)
    costs |= dict.fromkeys(uncuttable, sum(costs.values()) + 1)
    rows, columns = np.array([*costs, (AS_IS, PERMUTED)], np.int32).T
    amounts = np.array([*costs.values(), 0], np.int32)
    capacity = csr_array((amounts, (rows, columns)), shape=(count, count))
    left = csr_array((capacity - maximum_flow(capacity, AS_IS, PERMUTED).flow).T)
    left.eliminate_zeros()
    # Reversed: the vertices that still reach the permuted side.
    return frozenset(breadth_first_order(left, PERMUTED, return_predecessors=False).tolist())
