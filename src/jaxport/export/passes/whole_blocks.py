"""Fill up the last block of stored weights in blocks, for OpenVINO.

OpenVINO 2026.4 does not load a `DequantizeLinear` whose `block_size` does not divide the axis. The weights are stored with
zeros up to the end of the block, and a `Slice` drops what these become.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Editor, constant_of, dims_of, graphs, integer, is_op, source


def whole_blocks(model: ir.Model) -> str:
    """Fill up the last blocks, in the graph, its subgraphs and functions."""
    editor, count = Editor(model), 0
    for graph in graphs(model):
        for node in list(graph):
            stored = constant_of(source(node)) if is_op(node, "DequantizeLinear") else None
            if stored is None:
                continue
            axis, size = integer(node, "axis", 1) % max(stored.ndim, 1), integer(node, "block_size", 0)
            result, users = node.outputs[0], list(node.outputs[0].uses())
            missing = -stored.shape[axis] % size if size else 0
            if not missing or result.is_graph_output():
                continue
            padding = [(0, missing if i == axis else 0) for i in range(stored.ndim)]
            editor.replace_constant(node, 0, np.pad(stored, padding))
            dims = dims_of(result)
            result.shape = ir.Shape([length + after for length, (_, after) in zip(stored.shape, padding, strict=True)])
            bounds = [
                editor.constant(graph, np.array([number], np.int64), name)
                for name, number in (("start", 0), ("end", stored.shape[axis]), ("axis", axis))
            ]
            inner = editor.insert(graph, "Slice", [result, *bounds], after=node, like=result, shape=dims)
            for user, index in users:
                user.replace_input_with(index, inner)
            count += 1
    return f"{count} last blocks" if count else "nothing to do"
