"""What a loop's body computes anew in each step though nothing in it changes is computed once, before the loop.

A mask, a table of positions, a weight in another dtype: XLA takes these out of a loop by itself, a runtime does not.

Not moved is what has a subgraph of its own, and what is a result of the body.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.export.passes.editing import is_op, roots
from jaxport.onnx_facts import RANDOM


def hoisting(model: ir.Model) -> str:
    """Move nodes out of the bodies of Loop and Scan, of nested ones as far out as they can go."""
    moved = sum(_moved(root) for root in roots(model))
    return f"{moved} nodes moved out of loops" if moved else "nothing to do"


def _moved(graph: ir.Graph) -> int:
    moved = 0
    for node in list(graph):
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                body = attribute.as_graph()
                moved += _moved(body)  # the inner loops first: what leaves them may leave this one too
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
        or any(attribute.type is ir.AttributeType.GRAPH for attribute in node.attributes.values())
        or node.op_type in RANDOM
    )
