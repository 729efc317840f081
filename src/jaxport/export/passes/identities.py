"""Remove redundant Identity nodes.

1. The result is no output of its graph: its users take the input instead.
2. The result is an output, and the input is computed in the same graph and is no output yet: it becomes the output.
3. Otherwise the node stays: an output is a value of its own, computed in the graph that it is an output of. So two
   outputs that are equal keep their two names.
"""

from __future__ import annotations

import onnx_ir as ir


def identities(model: ir.Model) -> str:
    """Remove Identity nodes, in the graph, its subgraphs and its functions."""
    nodes = [node for graph in (model.graph, *model.functions.values()) for node in graph.all_nodes()]
    removed = sum(_removed(node) for node in nodes if node.op_type == "Identity" and not node.domain)
    return f"{removed} nodes removed" if removed else "nothing to do"


def _removed(node: ir.Node) -> bool:
    (source,), (result,) = node.inputs, node.outputs
    if source is None or node.graph is None:
        return False
    if result.is_graph_output():
        producer = source.producer()
        if producer is None or producer.graph is not node.graph or source.is_graph_output():
            return False
        source.name, result.name = result.name, source.name
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    return True
