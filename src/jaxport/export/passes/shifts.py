"""Shift uint32 right in halves of 16 bits, for OpenVINO: 2026.4 divides a signed integer instead, in float32.

That quotient has only 24 exact bits, is rounded toward zero, and copies the sign bit. For 16 bits it is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, dims_of, is_op, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse

HALF = 16
LOWER = np.uint32(0xFFFF)
"""The mask of the lower half."""


def shifts(model: ir.Model) -> str:
    """Replace each right `BitShift` of a uint32 by a constant by shifts of its upper and its lower half.

    No mask has the highest bit, since OpenVINO clamps such constants.

    Args:
      model: changed in place.
    """
    return fuse(model, _find, Anchor(at=("BitShift",)))


def is_exact(node: ir.Node) -> bool:
    """Whether a right `BitShift` is one that `shifts` writes: of one half, or of the upper half to the lower."""
    before, users = source(node).producer(), node.outputs[0].consumers()
    if is_op(before, "BitwiseAnd"):
        return any(_is_lower(constant_of(value)) for value in before.inputs)
    masked = bool(users) and all(
        is_op(user, "BitwiseAnd") and any(_is_lower(constant_of(value)) for value in user.inputs) for user in users
    )
    count = constant_of(source(node, 1))
    return masked and is_op(before, "BitwiseXor") and count is not None and bool((count == HALF).all())


def _is_lower(array: np.ndarray | None) -> bool:
    return array is not None and bool((array <= LOWER).all())


def _find(node: ir.Node) -> Fusion | str | None:
    result = node.outputs[0]
    if not is_op(node, "BitShift") or result.dtype is not ir.DataType.UINT32:
        return None
    if node.attributes["direction"].as_string() != "RIGHT" or is_exact(node):
        return None
    x, count = source(node), constant_of(source(node, 1))
    if count is None or count.size != 1:
        return "the number of bits is not one constant"
    by = int(count.item())
    if not 0 < by < 2 * HALF:
        return "all bits are kept, or none"

    def build(builder: Builder) -> ir.Value:
        def bits(op_type: str, left: ir.Value, right: ir.Value | int, **attributes: Any) -> ir.Value:
            other = right if isinstance(right, ir.Value) else builder.constant(np.full_like(count, right), "bits")
            return builder.emit(op_type, [left, other], dims_of(result), result.dtype, **attributes)

        lower = bits("BitwiseAnd", x, int(LOWER))
        moved = bits("BitShift", bits("BitwiseXor", x, lower), HALF, direction="RIGHT")
        upper = bits("BitwiseAnd", moved, int(LOWER))
        if by >= HALF:
            return upper if by == HALF else bits("BitShift", upper, by - HALF, direction="RIGHT")
        high = bits("BitShift", upper, HALF - by, direction="LEFT")
        both = bits("BitwiseOr", high, bits("BitShift", lower, by, direction="RIGHT"))
        return bits("BitwiseAnd", both, (1 << (2 * HALF - by)) - 1)

    return Fusion("BitShift of halves", result, [x, source(node, 1)], build)
