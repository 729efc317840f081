"""Products of integers that are rounded from floats in each call, as one operator of jaxport's own domain.

ONNX Runtime's dynamic quantization writes DynamicQuantizeLinear, MatMulInteger, a Cast and two Muls for each linear
layer.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.codegen.recorded.fusions import DOMAIN
from jaxport.graph.editing import constant_of, dims_of, is_op, operand, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.importer.ops.quantization import as_int8, dynamic_product, is_zero
from jaxport.importer.resolving.registry import op
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import cast, jnp


@op(DOMAIN, "DynamicallyQuantizedMatMul")
def dynamically_quantized_matmul(x: Tensor, kernel: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
    """Return a product with a kernel of integers, for which the other factor is quantized as the model runs."""
    columns, shift = as_int8(kernel)
    zeros = None
    if shift or not is_zero(zero_point):
        zeros = np.int32(-shift) if zero_point is None else cast(zero_point, np.int32) - shift
        zeros = cast(jnp.reshape(zeros, (-1,) if np.size(zeros) > 1 else ()), np.int8)
    operands = (x, columns, jnp.reshape(scale, (-1,) if scale.size > 1 else ()))
    return dynamic_product(*operands) if zeros is None or is_zero(zeros) else dynamic_product(*operands, zeros)


def integer_products(model: ir.Model) -> str:
    """Replace what ONNX Runtime's dynamic quantization writes for a linear layer by one operator."""
    return fuse(model, _find, Anchor(at=("Mul",)))


def _find(node: ir.Node) -> Fusion | None:
    for place in (0, 1):
        narrowed, scales = source(node, place).producer(), source(node, 1 - place).producer()
        product = source(narrowed).producer() if is_op(narrowed, "Cast") else None
        if is_op(product, "MatMulInteger") and is_op(scales, "Mul"):
            return _fusion(node, product, scales)
    return None


def _fusion(node: ir.Node, product: ir.Node, scales: ir.Node) -> Fusion | None:
    """Return the fusion to a product whose left operand is quantized as DynamicQuantizeLinear does, and scaled as it
    says.
    """
    rounding = source(product).producer()
    if not is_op(rounding, "DynamicQuantizeLinear"):
        return None
    whole, step, origin = rounding.outputs
    factors = [source(scales, place) for place in (0, 1)]
    kernel, zero_point = source(product, 1), operand(product, 3)
    if step not in factors or source(product) is not whole or operand(product, 2) is not origin:
        return None
    scale = factors[1 - factors.index(step)]
    constants = [kernel, scale, *([zero_point] if zero_point is not None else [])]
    arrays = [constant_of(value) for value in constants]
    if node.outputs[0].dtype is not ir.DataType.FLOAT or any(array is None for array in arrays):
        return None
    (_, columns) = (0, 0) if arrays[0] is None or arrays[0].ndim != 2 else arrays[0].shape
    if not columns or any(array is None or array.size not in (1, columns) for array in arrays[1:]):
        return None
    operands = [source(rounding), *constants]

    def build(builder: Builder) -> ir.Value:
        return builder.emit(
            "DynamicallyQuantizedMatMul",
            [builder.now(value) for value in operands],
            dims_of(node.outputs[0]),
            domain=DOMAIN,
        )

    return Fusion("DynamicallyQuantizedMatMul", node.outputs[0], operands, build)
