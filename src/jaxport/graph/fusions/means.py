"""Recognise ReduceMean: a sum divided by the number of its elements.

It runs after the passes that match means as parts of larger computations.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.graph.editing import begins_at, constant_of, integer, is_op, operand
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle, same_dims
from jaxport.graph.fusions.normalized import mean_of
from jaxport.graph.matching import Seen, reduction_axes


@begins_at({"Div", "Mul"}, {"ReduceSum"})
def means(model: ir.Model) -> str:
    """Recognise means, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    return fuse(model, lambda node: _find(node, opset), Anchor(at=("Div", "Mul"), below=("ReduceSum",)))


def _find(node: ir.Node, opset: int) -> Fusion | str | None:
    result = node.outputs[0]
    # A sum of integers wraps, and one in half precision overflows early, before the division.
    if result.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    totals = [value for value in node.inputs if value is not None and is_op(value.producer(), "ReduceSum")]
    whole = Seen.whole(result)
    if len(totals) != 1 or whole is None or mean_of(whole) is None or not same_dims(totals[0], result):
        return None
    total = totals[0].producer()
    assert total is not None
    x, axes = total.inputs[0], reduction_axes(total)
    if x is None or axes is None or constant_of(operand(total, 1)) is None:
        return None
    keepdims = integer(total, "keepdims", 1)

    def build(builder: Builder) -> ir.Value:
        dims = list(result.shape or ())
        if opset < 18:  # from this opset on, the axes are an operand
            return builder.emit("ReduceMean", [x], dims, axes=sorted(axes), keepdims=keepdims)
        return builder.emit("ReduceMean", [x, builder.integers(sorted(axes), "axes")], dims, keepdims=keepdims)

    return obstacle("ReduceMean", x.dtype, opset) or Fusion("ReduceMean", result, [x], build)
