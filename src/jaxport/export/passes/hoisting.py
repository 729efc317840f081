"""Loop-invariant code motion: nodes of a loop's body that do not depend on the step move before the loop.

A mask, a table of positions, a weight in another dtype: XLA hoists these by itself, a runtime does not.

Nodes with a subgraph stay, and so do nodes that compute a result of the body.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.graph.editing import begins_at, bodies, is_op, roots
from jaxport.onnx_facts import RANDOM


@begins_at({"Loop", "Scan"})
def hoisting(model: ir.Model) -> str:
    """Move loop-invariant nodes out of the bodies of Loop and Scan, out of as many nested loops as possible."""
    moved = sum(_moved(root) for root in roots(model))
    return f"{moved} nodes moved out of loops" if moved else "nothing to do"


def _moved(graph: ir.Graph) -> int:
    moved = 0
    for node in list(graph):
        for body in bodies(node):
            moved += _moved(body)  # inner loops first: their nodes may leave this loop, too
            moved += _out_of(body, node) if is_op(node, "Loop", "Scan") else 0
    return moved


def _out_of(body: ir.Graph, loop: ir.Node) -> int:
    assert loop.graph is not None
    moved = 0
    for node in list(body):
        if _stays(node, body):
            continue
        body.remove(node)
        loop.graph.insert_before(loop, node)
        moved += 1
    return moved


def _stays(node: ir.Node, body: ir.Graph) -> bool:
    return (
        any(value is not None and value.graph is body for value in node.inputs)
        or any(value.is_graph_output() for value in node.outputs)
        or bool(bodies(node))
        or node.op_type in RANDOM
    )
