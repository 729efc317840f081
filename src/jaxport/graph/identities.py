"""Remove redundant Identity nodes, and casts to the dtype that a value has.

1. The result is no output of its graph: its users take the input instead.
2. The result is an output, and the input is computed in the same graph and is no output yet: it becomes the output.
3. Otherwise the node stays: an output is a value of its own, computed in the graph that it is an output of. So two
   outputs that are equal keep their two names.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.graph.editing import is_op, source


def identities(model: ir.Model) -> str:
    """Remove Identity nodes and casts that change nothing, in the graph, its subgraphs and its functions."""
    nodes = [node for graph in (model.graph, *model.functions.values()) for node in graph.all_nodes()]
    removed = sum(_removed(node) for node in nodes if _is_identity(node))
    return f"{removed} nodes removed" if removed else "nothing to do"


def _is_identity(node: ir.Node) -> bool:
    if is_op(node, "Cast"):
        return source(node).dtype is not None and source(node).dtype == node.attributes["to"].as_int()
    if is_op(node, "CastLike"):
        dtypes = {None if operand is None else operand.dtype for operand in node.inputs}
        return None not in dtypes and len(dtypes) == 1
    return is_op(node, "Identity")


def _removed(node: ir.Node) -> bool:
    operand, (result,) = node.inputs[0], node.outputs
    if operand is None or node.graph is None:
        return False
    if result.is_graph_output():
        producer = operand.producer()
        if producer is None or producer.graph is not node.graph or operand.is_graph_output():
            return False
        operand.name, result.name = result.name, operand.name
    result.replace_all_uses_with(operand, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    return True
