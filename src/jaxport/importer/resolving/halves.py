"""Find products of values in half precision that a file computes in float32, because a runtime has no kernel in half precision.

An export of a model in bfloat16 casts both operands to float32, multiplies, and casts the result back. The product of two
numbers of 16 bits is exact in float32, so XLA may multiply the operands as they are and sum in float32: on a GPU, that is
a kernel of half the memory and several times the speed, where casts of weights are copies.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import is_op
from jaxport.importer.resolving.graph import Body
from jaxport.importer.values.dtypes import dtype_of

__all__ = ["find_halves"]

_HALVES = frozenset({ir.DataType.BFLOAT16, ir.DataType.FLOAT16})


def find_halves(body: Body) -> None:
    """Record at each product what its operands are before they are cast from half precision to float32."""
    before: dict[ir.Value, ir.Value] = {}
    for node in body.nodes:
        to = node.attributes.get("to")
        if is_op(node.node, "Cast") and isinstance(to, int) and dtype_of(to) == np.float32:
            (narrow,), (wide,) = node.inputs, node.outputs
            if narrow is not None and wide is not None and narrow.dtype in _HALVES:
                before[wide] = narrow
        elif is_op(node.node, "MatMul"):
            operands = [None if value is None else before.get(value) for value in node.inputs]
            known = tuple(value for value in operands if value is not None)
            if len(known) == len(operands) and len({value.dtype for value in known}) == 1:
                node.halves = known
