"""Movements that cancel: pairs of transposes, reshapes of reshapes, casts there and back.

1. Transpose of a Transpose: one Transpose, or none.
2. Reshape of a Reshape whose target names no axis of its input: the last one.
3. Cast to the dtype that a value has: nothing.
"""

from __future__ import annotations

import onnx_ir as ir


def tidy(model: ir.Model) -> str:
    """Remove movements that cancel, in the graph, its subgraphs and its functions."""
    changed = 0
    for graph in model.graphs():
        for node in list(graph):
            changed += _simplified(node)
    return f"{changed} nodes simplified" if changed else "nothing to do"


def _simplified(node: ir.Node) -> bool:
    if node.domain or not node.inputs or node.inputs[0] is None:
        return False
    source = node.inputs[0]
    before = source.producer()
    match node.op_type:
        case "Transpose" if before is not None and before.op_type == "Transpose" and not before.domain:
            inner, outer = before.attributes["perm"].as_ints(), node.attributes["perm"].as_ints()
            merged = [inner[i] for i in outer]
            if merged == sorted(merged):
                return _replace(node, before.inputs[0])
            node.attributes["perm"] = ir.AttrInt64s("perm", merged)
            node.replace_input_with(0, before.inputs[0])
            return True
        case "Reshape" if before is not None and before.op_type == "Reshape" and not before.domain:
            target = node.inputs[1].const_value if node.inputs[1] is not None else None
            if target is None or (0 in target.numpy() and not _flag(node, "allowzero")):
                return False
            node.replace_input_with(0, before.inputs[0])
            return True
        case "Cast" if source.dtype is not None and source.dtype == node.attributes["to"].as_int():
            return _replace(node, source)
    return False


def _flag(node: ir.Node, name: str) -> int:
    return node.attributes[name].as_int() if name in node.attributes else 0


def _replace(node: ir.Node, value: ir.Value | None) -> bool:
    """Let the users of a node's result use `value`; the outputs of a graph keep their own node."""
    result = node.outputs[0]
    if value is None or result.is_graph_output():
        return False
    result.replace_all_uses_with(value)
    return True
