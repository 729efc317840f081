"""Move the Transposes between layouts (mostly NHWC and NCHW) through the graph until they meet and cancel.

Starting from a Transpose, a region of the values that could be stored in the layout on its other side is cut in two, so
that the fewest Transposes remain (`jaxport.graph.layout`). Then the operators that are cheaper permuted are adapted,
Transposes that cancel are removed, and those of the region's border are inserted.

Each region is built once per layout, so the time is linear in the graph. `layout_ops` and `layout_axes` define how each
operator carries a layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from jaxport.export.passes import layout_axes  # noqa: F401  registers what it knows in `layout_ops`
from jaxport.export.passes.layout_ops import Carry, carry
from jaxport.graph.editing import (
    Editor,
    begins_at,
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
from jaxport.graph.layout import Layout, Region, inverse, moves_only_ones, permuted

#: The number of times that regions are rebuilt, since moved Transposes may let others meet.
ROUNDS = 3
#: Matrices are left alone: a transposed operand of a product costs a runtime nothing, and the graph stays as written.
LEAST_RANK = 3


@begins_at({"Transpose"})
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
                region = Region.around(graph, value, wanted, carry, seen)
                chosen = region.cut() if region.carries else set()
                if chosen:
                    _Move(region, graph, editor, chosen).apply()
                moved += len(chosen)
        if moved == before:
            break
    return moved


class _Move:
    """Moves some operators of a region to the region's other layout."""

    def __init__(self, region: Region[Carry], graph: ir.Graph, editor: Editor, chosen: set[ir.Node]):
        self.region, self.graph, self.editor, self.chosen = region, graph, editor, chosen

    def apply(self) -> None:
        """Rewire all values between the two sides, then adapt the operators."""
        # Uses are recorded first, since a value may be the stored form of another one.
        uses = {
            value: [(node, index) for node, index in value.uses() if self.moved(node, value)]
            for value in self.region.layouts
        }
        for value, along in uses.items():
            ended = [n for n, index in value.uses() if index == 0 and self.region.matched_by(value, n)]
            if value.graph is not self.graph:  # its stored form is made here: the graphs beside this one do not see it
                ended = [node for node in ended if node.graph is self.graph]
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
            return self.editor.constant(self.graph, array.transpose(back), value.name or "constant", value)
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
