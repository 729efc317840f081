"""Products whose first operand is a parameter, as products whose second one is: the form that layers have.

Exporters write `x @ w + b` as `wᵀ @ xᵀ + b` where the channels are not the last axis, after convolutions for example.
The transposes that this adds are those that printers spell out, or move, as they do around convolutions.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.graph.editing import dims_of, is_op, operand, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse


def weights_second(model: ir.Model) -> str:
    """Write products with a parameter before an activation as layers: with the parameter, transposed, behind it."""
    return fuse(model, _turned, Anchor(at=("MatMul", "Add")))


def _turned(node: ir.Node) -> Fusion | None:
    bias = None
    product = node
    if is_op(node, "Add"):
        places = [place for place in (0, 1) if _is_product(source(node, place).producer())]
        if len(places) != 1:
            return None
        inner, bias = source(node, places[0]).producer(), operand(node, 1 - places[0])
        if inner is None or not _is_parameter(bias):
            return None
        product = inner
    if not _is_product(product):
        return None
    weight, x = source(product), source(product, 1)
    (count, _), dims = dims_of(weight) or (0, 0), dims_of(product.outputs[0])
    result = node.outputs[0]
    of_bias = [] if bias is None else dims_of(bias) or []
    if dims is None or dims != dims_of(result) or len(of_bias) > len(dims):
        return None
    if bias is not None and of_bias != [*[1] * (len(of_bias) - 2), count, 1]:
        return None

    def build(builder: Builder) -> ir.Value:
        order = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
        turned = [dims[axis] for axis in order]
        rows, matrix = builder.transposed(x, order), builder.transposed(weight, (1, 0))
        made = builder.emit("MatMul", [rows, matrix], turned)
        if bias is not None:
            made = builder.emit("Add", [made, builder.viewed(bias, [count])], turned)
        return builder.transposed(made, order)

    leaves = [weight, x, *([bias] if bias is not None else [])]
    return Fusion("product with its weights second", result, leaves, build)


def _is_product(node: ir.Node | None) -> bool:
    """Whether a node multiplies a parameter, a matrix, by an activation."""
    if not is_op(node, "MatMul"):
        return False
    weight, x = source(node), source(node, 1)
    dims, others = dims_of(weight) or [], dims_of(x) or []
    return _is_parameter(weight) and len(dims) == 2 and not _is_parameter(x) and len(others) >= 2


def _is_parameter(value: ir.Value | None) -> bool:
    """Whether a value is a parameter: an initializer of which nothing is known before it is trained."""
    return value is not None and value.is_initializer() and value.const_value is None
