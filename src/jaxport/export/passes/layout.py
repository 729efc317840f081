"""Move the Transposes between layouts (mostly NHWC and NCHW) through the graph until they meet and cancel.

1. Starting from a Transpose, collect the values that could be stored in the layout on its other side: through every
   operator that can work on permuted data, to its users and its operands. They form a *region*.
2. In a region each operator works either on the values as they are or on permuted ones, and a value needs a Transpose
   if its producer and a user differ. The choice with the fewest Transposes is a minimum cut.
3. Adapt the operators that are cheaper permuted, remove Transposes that cancel, and insert those of the region's
   border.

Each region is built once per layout, so the time is linear in the graph. `layout_ops` and `layout_axes` define how each
operator carries a layout.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from jaxport.export.passes import layout_axes  # noqa: F401  registers what it knows in `layout_ops`
from jaxport.export.passes.layout_ops import Carry, Layout, carry, inverse, moves_only_ones, permuted
from jaxport.graph.editing import (
    Editor,
    constant_of,
    dims_of,
    discard,
    graphs,
    is_op,
    nodes_of,
    permutation,
    source,
    substitute,
)

#: The number of times that regions are rebuilt, since moved Transposes may let others meet.
ROUNDS = 3
#: Matrices are left alone: a transposed operand of a product costs a runtime nothing, and the graph stays as written.
LEAST_RANK = 3
AS_IS, PERMUTED = 0, 1
#: The cost of a Transpose that moves data, relative to one that only moves axes of size one, which is a view.
MOVING = 64


def layout(model: ir.Model) -> str:
    """Move Transposes through the graph, its subgraphs and its functions if fewer of them remain."""
    editor = Editor(model)
    before = _count(model)
    moved = sum(_moved(editor, graph) for graph in graphs(model))
    if not moved:
        return f"nothing to do: {before} Transposes" if before else "nothing to do"
    return f"{before - _count(model)} of {before} Transposes removed, {moved} operators moved to another layout"


def _count(model: ir.Model) -> int:
    return len(nodes_of(model, "Transpose"))


def _moved(editor: Editor, graph: ir.Graph) -> int:
    """Improve one graph; return how many operators now work on permuted data."""
    moved = 0
    for _ in range(ROUNDS):
        seen: set[tuple[ir.Value, Layout]] = set()
        before = moved
        for node in list(graph):
            if not is_op(node, "Transpose") or node.graph is None or len(permutation(node)) < LEAST_RANK:
                continue
            for value, wanted in ((node.outputs[0], permutation(node)), (source(node), inverse(permutation(node)))):
                if (value, wanted) in seen or constant_of(value) is not None:
                    continue
                region = Region.around(graph, value, wanted, seen)
                seen.update(region.layouts.items())
                moved += region.improve(editor)
        if moved == before:
            break
    return moved


@dataclass
class Region:
    """The values of a graph that could be stored in another layout together, and the operators between them.

    Attributes:
      graph: the graph.
      layouts: the layout of each value: the permutation from its stored form to the value.
      carries: how each operator would be adapted.
    """

    graph: ir.Graph
    layouts: dict[ir.Value, Layout]
    carries: dict[ir.Node, Carry] = field(default_factory=dict)

    @classmethod
    def around(cls, graph: ir.Graph, value: ir.Value, layout: Layout, seen: Set[tuple[ir.Value, Layout]]) -> Region:
        """Return the region that contains a value with a layout, excluding what was seen in another region.

        So each value is visited once per layout, however many Transposes want it.
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
        return region

    def neighbours(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yield the producer and the users of a value in this graph."""
        producer = value.producer()
        if producer is not None and producer.graph is self.graph:
            yield producer
        yield from (node for node in dict.fromkeys(n for n, _ in value.uses()) if node.graph is self.graph)

    def improve(self, editor: Editor) -> int:
        """Move the operators that are cheaper in the other layout; return their number."""
        chosen = self.cut() if self.carries else set()
        if chosen:
            _Move(self, editor, chosen).apply()
        return len(chosen)

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
        if dims is None:
            return one == other
        order = [[layout[axis] for axis, dim in enumerate(dims) if dim != 1] for layout in (one, other)]
        return inverse(order[0]) == inverse(order[1])

    # The choice

    def cut(self) -> set[ir.Node]:
        """Return the operators to move for the fewest Transposes (a minimum cut); none if nothing is gained."""
        network = _Network({node: 2 + index for index, node in enumerate(self.carries)})
        for value in self.layouts:
            if constant_of(value) is None:
                cost = 1 if moves_only_ones(dims_of(value), self.layouts[value]) else MOVING
                network.add(self.source(network, value), list(self.sinks(network, value)), cost)
        least, permuted_side = network.solve()
        if least >= network.now:
            return set()
        return {node for node in self.carries if network.places[node] in permuted_side}

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
      now: the cost of the Transposes while all operators work on values as they are.
    """

    def __init__(self, places: dict[ir.Node, int]):
        self.places, self.now = places, 0
        self._count = 2 + len(places)
        self._edges: collections.Counter[tuple[int, int]] = collections.Counter()
        self._uncuttable: set[tuple[int, int]] = set()

    def add(self, source: int | None, sinks: Sequence[int], cost: int) -> None:
        """Add a value, which costs one Transpose if any of its users is on the other side than its source."""
        sides = {sink == PERMUTED for sink in sinks}
        self.now += cost * (len(sides | (set() if source is None or not sinks else {source == PERMUTED})) > 1)
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

    def solve(self) -> tuple[int, Set[int]]:
        """Return the least cost of Transposes, and the vertices on the permuted side of that cut."""
        edges = {pair: cost for pair, cost in self._edges.items() if pair[0] != pair[1]}
        return _minimum_cut(self._count, tuple(edges.items()), frozenset(self._uncuttable))


@functools.lru_cache(maxsize=16)  # equal layers of a model have equal networks
def _minimum_cut(
    count: int, edges: tuple[tuple[tuple[int, int], int], ...], uncuttable: Set[tuple[int, int]]
) -> tuple[int, Set[int]]:
    """Return the least cost that separates the two sides, and the vertices on the permuted one.

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
    flow = maximum_flow(capacity, AS_IS, PERMUTED)
    left = csr_array((capacity - flow.flow).T)  # reversed: the vertices that still reach the permuted side
    left.eliminate_zeros()
    return int(flow.flow_value), frozenset(breadth_first_order(left, PERMUTED, return_predecessors=False).tolist())


class _Move:
    """Moves some operators of a region to the region's other layout."""

    def __init__(self, region: Region, editor: Editor, chosen: set[ir.Node]):
        self.region, self.editor, self.chosen, self.graph = region, editor, chosen, region.graph

    def apply(self) -> None:
        """Rewire all values between the two sides, then adapt the operators."""
        # Uses are recorded first, since a value may be the stored form of another one.
        uses = {
            value: [(node, index) for node, index in value.uses() if self.moved(node, value)]
            for value in self.region.layouts
        }
        for value, along in uses.items():
            ended = [n for n, index in value.uses() if index == 0 and self.region.matched_by(value, n)]
            producer = value.producer()
            if producer is not None and self.moved(producer, value):
                self.permute_result(value, along, ended)
            elif along:
                stored = self.stored(value)
                for node, index in along:
                    node.replace_input_with(index, stored)
                for node in ended:
                    self.end(node, stored)
                discard(producer)
        for node in self.region.carries:
            if node in self.chosen and node.graph is not None:  # not a node whose last user now takes the stored form
                self.region.carries[node].adapt(self.editor)

    def moved(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether an operator is moved, and has that operand or result permuted."""
        return node in self.chosen and self.region.carried(node, value)

    def permute_result(self, value: ir.Value, along: Sequence[tuple[ir.Node, int]], ended: Sequence[ir.Node]) -> None:
        """Turn the result of a moved operator into its stored form, for all its users."""
        layout, dims, rest = self.region.layouts[value], dims_of(value), []
        value.shape = None if dims is None else ir.Shape(permuted(dims, layout))
        for node, index in value.uses():
            if is_op(node, "Transpose") and node.graph is self.graph:
                node.attributes["perm"] = ir.AttrInt64s("perm", [layout[axis] for axis in permutation(node)])
            elif (node, index) not in along:
                rest.append((node, index))
        if rest or value.is_graph_output():
            producer = value.producer()
            if moves_only_ones(dims, layout):
                plain = self.editor.viewed(self.graph, value, dims or (), after=producer)
            else:
                plain = self.editor.insert(
                    self.graph, "Transpose", [value], after=producer, like=value, shape=dims, perm=layout
                )
            for node, index in rest:
                node.replace_input_with(index, plain)
            for index, output in enumerate(self.graph.outputs):
                if output is value:
                    self.graph.outputs[index] = plain
        for node in ended:
            self.end(node, value)

    def end(self, node: ir.Node, stored: ir.Value) -> None:
        """Bypass a Transpose whose stored form is available; users that are moved keep its result."""
        result = node.outputs[0]
        dims, others = dims_of(result), [use for use in result.uses() if not self.moved(use[0], result)]
        if dims is not None and dims != dims_of(stored):
            stored = self.editor.viewed(self.graph, stored, dims, after=stored.producer())
        if len(others) == len(result.uses()) and substitute(result, stored):
            return
        for user, index in others:
            user.replace_input_with(index, stored)

    def stored(self, value: ir.Value) -> ir.Value:
        """Return the stored form of a value that no moved operator computes."""
        layout, producer, dims = self.region.layouts[value], value.producer(), dims_of(value)
        back, array = inverse(layout), constant_of(value)
        if array is not None:
            return self.editor.constant(self.graph, array.transpose(back), value.name or "constant")
        shape = None if dims is None else permuted(dims, layout)
        local = producer if producer is not None and producer.graph is self.graph else None
        ways = [(value, back)]
        if local is not None and is_op(local, "Transpose"):
            ways.insert(0, (source(local), tuple(permutation(local)[axis] for axis in back)))
        for data, perm in ways:
            if shape is not None and moves_only_ones(dims_of(data), inverse(perm)):
                return self.editor.viewed(self.graph, data, shape, after=local)
        data, perm = ways[0]
        return self.editor.insert(
            self.graph, "Transpose", [data], after=local, like=value, shape=shape, perm=list(perm)
        )
