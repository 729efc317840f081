"""Store square weights that are multiplied both as they are and transposed in both forms, for OpenVINO.

OpenVINO 2026.4 multiplies with the first form both times (`MatMul(x, w)` and `MatMul(y, Transpose(w))`, or a `Gemm` with
`transB`, where `w` is a constant whose last two axes have the same size). With two separate constants it does not.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Editor, constant_of, dims_of, integer, permutation


def untied(model: ir.Model) -> str:
    """Store the other form of such weights: a transposed constant, or a copy for the `Gemm`.

    Args:
      model: changed in place; it has no functions, whose bodies would be shared by several weights (see `inlining`).
    """
    editor, count = Editor(model), 0
    for weight in list(model.graph.initializers.values()):
        sizes = dims_of(weight)
        if sizes is None or len(sizes) < 2 or sizes[-1] != sizes[-2] or len(weight.uses()) < 2:
            continue
        array = constant_of(weight)
        turned = [(node, index) for node, index in weight.uses() if _turns(node, index)]
        if array is None or not turned:
            continue
        forms: dict[tuple[int, ...], ir.Value] = {}
        for node, index in turned:
            moves = node.op_type == "Transpose" and not node.outputs[0].is_graph_output()
            order = permutation(node) if moves else tuple(range(array.ndim))
            if order not in forms:
                form = np.ascontiguousarray(array.transpose(order))
                forms[order] = editor.constant(model.graph, form, weight.name or "weight")
            if moves:
                node.outputs[0].replace_all_uses_with(forms[order])
            else:
                node.replace_input_with(index, forms[order])
            count += 1
    return f"{count} forms of square weights" if count else "nothing to do"


def _turns(node: ir.Node, index: int) -> bool:
    """Whether a node exchanges the last two axes of an operand."""
    if node.domain:
        return False
    if node.op_type == "Transpose":
        perm = permutation(node)
        return perm == (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2)
    return node.op_type == "Gemm" and index < 2 and integer(node, ("transA", "transB")[index], 0) == 1
