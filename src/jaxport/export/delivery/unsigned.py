"""Find the operators that need the size of a uint32, for runtimes that store it as a signed integer, as OpenVINO does.

There, sums, products, bitwise operators and movements are correct modulo 2³². A value is *modular* if it may differ
from the true one by a multiple of 2³². Whatever depends on its size (a comparison, a conversion to a float) is wrong,
unless the value is known to have at most 24 bits, as after a shift or a mask. Such small values stay exact even if the
runtime computes in float32, as OpenVINO's `Where` does. An int64 computed from a modular value is modular, too.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.openvino import is_exact
from jaxport.graph.editing import constant_of, is_op, subgraphs
from jaxport.onnx_facts import ARITHMETIC, SELECTIONS

#: Operators that are correct modulo 2³² for modular operands, and whose results may have the highest bit.
WRAPPING = ARITHMETIC - {"Div"} | {"BitwiseNot"}
#: Operators whose results have no more bits than their operands.
BITWISE = frozenset({"BitwiseOr", "BitwiseXor"})
CARRIERS = (ir.DataType.UINT32, ir.DataType.INT32, ir.DataType.INT64)
HIGHEST = 2**31
"""The least integer with the highest of 32 bits."""
SMALL = 2**24
"""Integers below this are exact in float32."""


class Size(enum.Enum):
    """What is known of the size of a value.

    Attributes:
      EXACT: it is correct.
      SMALL: it is correct, and has at most 24 bits.
      MODULAR: it may be off by a multiple of 2³².
      CLAMPED: the value is a constant with the highest bit, which the runtime clamps.
    """

    EXACT = enum.auto()
    SMALL = enum.auto()
    MODULAR = enum.auto()
    CLAMPED = enum.auto()


def needing_size(model: ir.Model) -> Iterator[ir.Node | ir.Value]:
    """Yield the nodes that depend on the size of a modular value, and the outputs that the runtime returns
    incorrectly.
    """
    sizes: dict[ir.Value, Size] = {}
    for value in model.graph.initializers.values():
        sizes[value] = _of_constant(value)
    for node in model.graph:
        inside = [value for graph in subgraphs([node]) for inner in graph for value in (*inner.inputs, *inner.outputs)]
        if any(value is not None and _size(value, sizes) is Size.MODULAR for value in inside):
            yield node
            continue
        size = _result(node, sizes)
        if size is None:
            yield node
        else:
            sizes.update(dict.fromkeys(node.outputs, size))
    for value in model.graph.outputs:
        size = _size(value, sizes)
        if size is Size.CLAMPED or (size is Size.MODULAR and value.dtype is not ir.DataType.UINT32):
            yield value


def _size(value: ir.Value, sizes: dict[ir.Value, Size]) -> Size:
    return sizes.get(value, Size.MODULAR if value.dtype is ir.DataType.UINT32 else Size.EXACT)


def _of_constant(value: ir.Value) -> Size:
    array = constant_of(value) if value.dtype in CARRIERS else None
    if array is None:
        return Size.EXACT
    numbers = array.astype(np.int64)
    if (numbers >= HIGHEST).any():
        return Size.CLAMPED
    return Size.SMALL if ((numbers >= 0) & (numbers < SMALL)).all() else Size.EXACT


def _result(node: ir.Node, sizes: dict[ir.Value, Size]) -> Size | None:
    """Return the size of a node's results; None if they depend on the size of a modular operand."""
    operands = [Size.EXACT if value is None else _size(value, sizes) for value in node.inputs]
    result = node.outputs[0]
    unsigned = result.dtype is ir.DataType.UINT32
    if Size.CLAMPED in operands:
        # Clamping the end of a slice does not change the slice.
        among = unsigned or any(value is not None and value.dtype is ir.DataType.UINT32 for value in node.inputs)
        if not is_op(node, "Slice") and (among or Size.MODULAR in operands):
            return None
        operands = [Size.EXACT if size is Size.CLAMPED else size for size in operands]
    if is_op(node, "Constant"):
        return _of_constant(result)
    if is_op(node, "BitShift") and unsigned:
        if node.attributes["direction"].as_string() == "LEFT":
            return Size.MODULAR
        return _joined(operands[:1], unsigned) if is_exact(node) else None
    if is_op(node, "BitwiseAnd"):
        return Size.SMALL if Size.SMALL in operands else _joined(operands, unsigned)
    if is_op(node, *WRAPPING):
        return Size.MODULAR if unsigned or Size.MODULAR in operands else Size.EXACT
    if is_op(node, *BITWISE):
        return _joined(operands, unsigned)
    if is_op(node, "Cast"):
        if result.dtype in CARRIERS:
            return _joined(operands, unsigned)
        return None if Size.MODULAR in operands else Size.EXACT
    if is_op(node, *SELECTIONS, "Concat"):
        # The operands of a selection after the first are positions.
        kept = operands if is_op(node, "Concat") else operands[:1]
        return None if Size.MODULAR in operands[len(kept) :] else _joined(kept, unsigned)
    if is_op(node, "Where"):
        chosen = _joined(operands[1:], unsigned)
        return None if chosen is Size.MODULAR else chosen
    if is_op(node, "Shape"):
        return Size.SMALL
    return None if Size.MODULAR in operands or unsigned else Size.EXACT


def _joined(sizes: Sequence[Size], unsigned: bool) -> Size:
    """Return the size of a result that has the bits of its operands; a uint32 is modular unless all of them are
    small.
    """
    if all(size is Size.SMALL for size in sizes):
        return Size.SMALL
    return Size.MODULAR if unsigned or Size.MODULAR in sizes else Size.EXACT
