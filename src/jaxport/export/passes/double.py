"""Keep factors of float64 products from being rounded to float32 by ONNX Runtime.

The runtime fuses a MatMul next to a Mul or Div by one number into an operator whose factor is a float32 attribute. So
in a model with such products the number is repeated along an axis of the other operand. If that is a single number too,
the two are multiplied as vectors, which have another shape than the matrices.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import (
    Editor,
    begins_at,
    constant_of,
    dims_of,
    is_op,
    is_weight,
    nodes_of,
    source,
    substitute,
)


@begins_at({"MatMul"}, {"Div", "Mul"})
def double_factors(model: ir.Model) -> str:
    """Repeat the numbers that multiply float64 values, in models with products of float64 matrices."""
    nodes = nodes_of(model, "Div", "MatMul", "Mul")
    if not any(is_op(node, "MatMul") and _is_double(node.outputs[0]) for node in nodes):
        return "nothing to do"
    editor = Editor(model)
    factors = [node for node in nodes if is_op(node, "Mul", "Div") and _is_double(node.outputs[0])]
    count = sum(_flattened(editor, node) or _repeated(editor, node) for node in factors)
    return f"{count} factors" if count else "nothing to do"


def _is_double(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.DOUBLE


def _flattened(editor: Editor, node: ir.Node) -> bool:
    """Compute a product of two numbers next to a matrix product as one of vectors."""
    result, inputs = node.outputs[0], [source(node, 0), source(node, 1)]
    dims, users = dims_of(result), [user for user, _ in result.uses()]
    matrices = any(is_op(neighbour, "MatMul") for neighbour in (*(x.producer() for x in inputs), *users))
    if dims is None or len(dims) < 2 or any(d != 1 for d in dims) or not matrices:
        return False
    vectors = [editor.viewed(node.graph, x, [1], before=node) for x in inputs]
    product = editor.insert(node.graph, node.op_type, vectors, before=node, like=result, shape=[1])
    return substitute(result, editor.viewed(node.graph, product, dims, before=node))


def _repeated(editor: Editor, node: ir.Node) -> bool:
    result = node.outputs[0]
    dims = dims_of(result)
    for index in (0, 1):
        array = constant_of(node.inputs[index])
        if array is None or array.size != 1 or dims is None or len(dims) < 2 or array.ndim > len(dims):
            continue
        if is_weight(node.inputs[index]):
            continue
        known = [(axis, dim) for axis, dim in enumerate(dims) if isinstance(dim, int) and dim > 1]
        name = source(node, index).name or "factor"
        if known:
            axis, size = known[-1]
            shape = (size, *[1] * (len(dims) - 1 - axis))
            number = editor.constant(node.graph, np.broadcast_to(array.ravel(), shape), name)
        else:
            other = source(node, 1 - index)
            if dims_of(other) != dims:
                continue  # the whole product is of scalars
            last = editor.insert(
                node.graph, "Shape", [other], before=node, like=other, shape=[1], dtype=ir.DataType.INT64, start=-1
            )
            number = editor.constant(node.graph, array.reshape(1), name)
            number = editor.insert(node.graph, "Expand", [number, last], before=node, like=result, shape=dims[-1:])
        node.replace_input_with(index, number)
        return True
    return False
