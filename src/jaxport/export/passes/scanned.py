"""Compute products of scanned rows with loop-invariant operands before the loop, for all steps at once.

A Scan multiplies each row of its inputs by the same weights, one small product per step; before the loop that is one
large product. Its operands' computation moves with it, and so do the elementwise operators that use its result.

Values that leave the body are stacked over all steps, so they have to be worth their memory. The rule:

1. A product leaves if one operand depends on scanned rows, and no operand on the state.
2. So do the nodes before a product that leaves, and the elementwise nodes after one (biases, activations) whose result
   has no more elements than the product.
3. Nothing leaves if its row is more than 64 times as large as the rows that it is computed from.

Nodes that compute a result of the body stay. `hoisting` moves work that does not depend on the rows either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import (
    Dim,
    Editor,
    begins_at,
    constant_of,
    dims_of,
    integer,
    integers,
    is_op,
    permutation,
    roots,
    source,
    subgraphs,
)
from jaxport.onnx_facts import ELEMENTWISE, LED_BY_THE_FIRST, ROW_NORMALIZATIONS, SOFTMAXES

#: The largest factor by which a row may grow.
MOST_GROWTH = 64

PRODUCTS = frozenset({"MatMul"})


@begins_at({"Scan"})
def scanned(model: ir.Model) -> str:
    """Move products with scanned rows out of the bodies of Scan, inner loops first."""
    editor, moved, declined = Editor(model), 0, 0
    for loop in [_Loop(editor, node) for root in roots(model) for node in _scans(root)]:
        if loop.is_simple():
            moved += loop.move()
            declined += loop.too_large
    report = f"{moved} nodes computed for all steps at once" if moved else ""
    kept = (
        f"{declined} products left in loops, more than {MOST_GROWTH} times as large as their rows" if declined else ""
    )
    return "; ".join(filter(None, (report, kept))) or "nothing to do"


def _scans(root: ir.Graph) -> list[ir.Node]:
    """Return the Scans of a graph and its subgraphs, inner ones first."""
    graphs = [root, *subgraphs(root)]
    return [node for graph in reversed(graphs) for node in graph if is_op(node, "Scan")]


class _Loop:
    """One Scan, and the values of its body that depend on the rows only."""

    def __init__(self, editor: Editor, node: ir.Node):
        self.editor, self.node = editor, node
        self.body = node.attributes["body"].as_graph()
        self.count = node.attributes["num_scan_inputs"].as_int()
        self.rows = list(self.body.inputs)[len(self.body.inputs) - self.count :]
        self.stacks = list(node.inputs)[len(node.inputs) - self.count :]
        self.nodes: list[ir.Node] = []
        self.sources: dict[ir.Value, frozenset[ir.Value]] = {row: frozenset([row]) for row in self.rows}
        self.products: dict[ir.Value, float] = {}
        self.too_large = 0

    def is_simple(self) -> bool:
        """Whether all rows are along the first axes, in forward order."""
        directions = set(integers(self.node, "scan_input_directions") or [0])
        axes = integers(self.node, "scan_input_axes") or [0]
        return len(directions) == 1 and not any(axes)

    def move(self) -> int:
        """Move the nodes that are worth it; return their number."""
        for node in self.body:
            if not self._is_of_rows(node):
                continue
            used = frozenset().union(*(self.sources[x] for x in node.inputs if x is not None and x in self.sources))
            if _size(node.outputs[0]) > MOST_GROWTH * sum(map(_size, used)):
                self.too_large += node.op_type in PRODUCTS
                continue
            self.nodes.append(node)
            self.sources[node.outputs[0]] = used
        leaving = self._leaving()
        if not leaving:
            return 0
        outside: dict[ir.Value, ir.Value] = dict(zip(self.rows, (s for s in self.stacks if s is not None), strict=True))
        for node in self.nodes:
            if node in leaving:
                self._copy(node, outside)
        self._rescan(leaving, outside)
        return len(leaving)

    def _is_of_rows(self, node: ir.Node) -> bool:
        """Whether a node can be computed for all steps at once."""
        depends = [x for x in node.inputs if x is not None and x in self.sources]
        inside = [x for x in node.inputs if x is not None and x.graph is self.body and x not in self.sources]
        if not depends or inside or node.domain or any(y.is_graph_output() for y in node.outputs):
            return False
        return _batched(node, set(depends)) is not None

    def _leaving(self) -> set[ir.Node]:
        leaving: set[ir.Node] = set()
        for node in self.nodes:
            size, result = _size(node.outputs[0]), node.outputs[0]
            behind = [self.products.get(x, 0) for x in node.inputs if x is not None]
            if node.op_type in PRODUCTS or (node.op_type in ELEMENTWISE and size <= max(behind)):
                self.products[result] = size
                self._with_operands(node, leaving)
        return leaving

    def _with_operands(self, node: ir.Node, leaving: set[ir.Node]) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            if node not in leaving:
                leaving.add(node)
                operands = (x.producer() for x in node.inputs if x is not None and x in self.sources)
                stack.extend(producer for producer in operands if producer is not None)

    def _copy(self, node: ir.Node, outside: dict[ir.Value, ir.Value]) -> None:
        """Copy a node of the body before the loop, to compute it for all steps."""
        change = _batched(node, {x for x in node.inputs if x is not None and x in self.sources})
        assert change is not None
        lead, *_ = dims_of(next(iter(outside.values()))) or []
        operands, attributes = change(
            self.editor, self.node, [outside.get(x, x) if x else None for x in node.inputs], lead
        )
        (result,) = node.outputs
        outside[result] = self.editor.insert(
            self.node.graph,
            node.op_type,
            operands,
            before=self.node,
            like=result,
            shape=[lead, *(dims_of(result) or [])],
            **attributes,
        )

    def _rescan(self, leaving: set[ir.Node], outside: dict[ir.Value, ir.Value]) -> None:
        """Pass the moved values to the body as rows, and drop the rows that it no longer uses."""
        added = []
        for node in self.nodes:
            (result,) = node.outputs
            if node in leaving and any(user not in leaving for user, _ in result.uses()):
                row = ir.Value(name=self.editor.unique(f"{result.name}/row"), type=result.type, shape=result.shape)
                result.replace_all_uses_with(row)
                added.append((row, outside[result]))
        for node in reversed([n for n in self.nodes if n in leaving]):
            self.body.remove(node, safe=True)
        pairs = [*zip(self.rows, self.stacks, strict=True), *added]
        kept = [(row, stack) for row, stack in pairs if row.uses() or row.is_graph_output()]
        self.body.inputs[len(self.body.inputs) - self.count :] = [row for row, _ in kept]
        state = list(self.node.inputs)[: len(self.node.inputs) - self.count]
        self._replace(state, kept)

    def _replace(self, state: Sequence[ir.Value | None], kept: Sequence[tuple[ir.Value, ir.Value | None]]) -> None:
        """Replace this Scan by one over other rows."""
        self.node.resize_inputs(len(state) + len(kept))
        for index, value in enumerate([*state, *(stack for _, stack in kept)]):
            self.node.replace_input_with(index, value)
        self.node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(kept))
        for name, values in (
            ("scan_input_directions", integers(self.node, "scan_input_directions")),
            ("scan_input_axes", None),
        ):
            if name in self.node.attributes:
                del self.node.attributes[name]
            if values:
                self.node.attributes[name] = ir.AttrInt64s(name, values[:1] * len(kept))


def _size(value: ir.Value) -> float:
    """Return the number of elements of a value; symbolic dims count as one, since rows and results share them."""
    return math.prod(dim if isinstance(dim, int) else 1 for dim in dims_of(value) or [])


# Operators for all steps at once

Change = Callable[[Editor, ir.Node, list, Dim], tuple[list, dict]]
"""From the editor, the loop, the operands and the number of steps to operands and attributes with an axis more."""


def _batched(node: ir.Node, rows: set[ir.Value]) -> Change | None:
    """Return how a node is computed for all steps; None if that is unknown.

    Args:
      node: a node of the body.
      rows: the operands that get a new first axis; the others stay as they are.
    """
    ranks = {x: len(x.shape) if x.shape is not None else None for x in (*node.inputs, *node.outputs) if x is not None}
    if None in ranks.values() or len(node.outputs) != 1:
        return None
    rank = {value: int(r) for value, r in ranks.items() if r is not None}
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    first = node.inputs[0] if node.inputs else None
    if first is None:
        return None
    if node.op_type in ELEMENTWISE:
        highest = rank[node.outputs[0]]
        if any(rank[x] < highest for x in rows):
            return None  # the axis of steps would meet another axis
        if node.op_type in LED_BY_THE_FIRST and rows != {first}:
            return None
        return lambda _editor, _loop, operands, _lead: (operands, attributes)
    if node.op_type == "MatMul":
        x, w = node.inputs
        if x in rows and w not in rows and w is not None and rank[w] in (1, 2) and rank[x] >= 1:
            return None if rank[w] == 1 and rank[x] == 1 else lambda _e, _l, operands, _d: (operands, attributes)
        if w in rows and x not in rows and x is not None and rank[x] == 2 and rank[w] >= 2:
            return lambda _e, _l, operands, _d: (operands, attributes)
        return None
    if rows != {first}:
        return None
    if node.op_type == "Transpose":
        order = [0, *(axis + 1 for axis in permutation(node))]
        return lambda _e, _l, operands, _d: (operands, {"perm": order})
    if node.op_type in ("Unsqueeze", "Squeeze"):
        return _with_axes(node, rank)
    if node.op_type == "Reshape":
        return _reshaped(node)
    if node.op_type in SOFTMAXES | ROW_NORMALIZATIONS:
        return (lambda _e, _l, operands, _d: (operands, attributes)) if integer(node, "axis", -1) < 0 else None
    return None


def _with_axes(node: ir.Node, rank: dict[ir.Value, int]) -> Change | None:
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None:
        return None
    whole = rank[node.outputs[0] if node.op_type == "Unsqueeze" else source(node)]
    shifted = np.array([int(a) % max(whole, 1) + 1 for a in axes.tolist()], np.int64)
    return lambda editor, loop, operands, _: ([operands[0], editor.constant(loop.graph, shifted, "axes")], {})


def _reshaped(node: ir.Node) -> Change | None:
    shape = dims_of(node.outputs[0]) or []
    if not all(isinstance(dim, int) and dim > 0 for dim in shape):
        return None

    def change(editor: Editor, loop: ir.Node, operands: list, lead: Dim) -> tuple[list, dict]:
        count = lead if isinstance(lead, int) else -1
        target = editor.constant(loop.graph, np.array([count, *shape], np.int64), "shape")
        return [operands[0], target], {}

    return change
