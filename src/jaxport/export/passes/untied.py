"""Square weights that products use both as they are and transposed: stored in both forms, for OpenVINO.

OpenVINO 2026.4 multiplies both times with the first form (`MatMul(x, w)` and `MatMul(y, Transpose(w))`, or a `Gemm` with
`transB`, where `w` is a constant whose last two axes have one size). It does not where the two are constants of their own.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.editing import Editor, constant_of, dims_of, integer, permutation


def untied(model: ir.Model) -> str:
    """Store such weights of the main graph once more, transposed or for the `Gemm`."""
    editor, count = Editor(model), 0
    for weight in list(model.graph.initializers.values()):
        sizes = dims_of(weight)
        if sizes is None or len(sizes) < 2 or sizes[-1] != sizes[-2] or len(weight.uses()) < 2:
            continue
        array = constant_of(weight)
        turned = [(node, index) for node, index in weight.uses() if _turns(node, index)]
        if array is None or not turned:
            continue
        name = weight.name or "weight"
        for node, index in turned:
            if node.op_type == "Transpose" and not node.outputs[0].is_graph_output():
                form = np.ascontiguousarray(array.transpose(permutation(node)))
                node.outputs[0].replace_all_uses_with(editor.constant(model.graph, form, name))
            else:
                node.replace_input_with(index, editor.constant(model.graph, array, name))
            count += 1
    return f"{count} forms of square weights" if count else "nothing to do"


def _turns(node: ir.Node, index: int) -> bool:
    """Whether a node takes an operand with its last two axes exchanged."""
    if node.domain:
        return False
    if node.op_type == "Transpose":
        perm = permutation(node)
        return perm == (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2)
    return node.op_type == "Gemm" and index < 2 and integer(node, ("transA", "transB")[index], 0) == 1
