"""What OpenVINO needs to be written otherwise, as of 2026.4.

1. `untied`: it multiplies twice with the first form of a square weight that is used both as it is and transposed
   (`MatMul(x, w)` and `MatMul(y, Transpose(w))`, or a `Gemm` with `transB`). With two separate constants it does not.
2. `spectra`: it gives half a spectrum a wrong shape. The whole one is computed.
3. `shifts`: it shifts a uint32 right by dividing a signed integer in float32. That quotient has only 24 exact bits, is
   rounded toward zero, and copies the sign bit; for 16 bits it is exact, so halves are shifted.
4. `whole_blocks`: it does not load a `DequantizeLinear` whose `block_size` does not divide the axis. The weights are
   stored with zeros up to the end of the block, and a `Slice` drops what these become.

It does not load functions of the model, either: see `inlining`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Editor, constant_of, dims_of, graphs, integer, is_op, operand, permutation, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse

#: The bits of half a uint32, and the mask of its lower half.
HALF, LOWER = 16, np.uint32(0xFFFF)


def untied(model: ir.Model) -> str:
    """Store a second form of square weights that are also used transposed: a transposed constant, or a copy for the
    `Gemm`.

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


def spectra(model: ir.Model) -> str:
    """Replace each `DFT` of real numbers with `onesided=1` by a whole one and a `Slice` of it.

    Args:
      model: changed in place.
    """
    return fuse(model, _half_spectrum, Anchor(at=("DFT",)))


def _half_spectrum(node: ir.Node) -> Fusion | str | None:
    if not is_op(node, "DFT") or not integer(node, "onesided", 0):
        return None
    half, signal, axis_operand = node.outputs[0], source(node), operand(node, 2)
    axes = None if axis_operand is None else constant_of(axis_operand)
    sizes, lengths = dims_of(half), dims_of(signal)
    if sizes is None or lengths is None or (axis_operand is not None and axes is None):
        return "the shape or the axis of half a spectrum is unknown"
    axis = (integer(node, "axis", 1) if axes is None else int(axes)) % len(lengths)
    if not isinstance(sizes[axis], int):
        return "the length of half a spectrum is unknown"
    count = sizes[axis]

    def build(builder: Builder) -> ir.Value:
        attributes = {name: attribute.value for name, attribute in node.attributes.items() if name != "onesided"}
        dims = [*sizes[:axis], lengths[axis], *sizes[axis + 1 :]]
        whole = builder.emit("DFT", [signal, *node.inputs[1:]], dims, half.dtype, **attributes)
        bounds = [builder.constant(np.array([number]), "bound") for number in (0, count, axis)]
        return builder.emit("Slice", [whole, *bounds], sizes, half.dtype)

    return Fusion("whole DFT", half, [signal], build)


def shifts(model: ir.Model) -> str:
    """Replace each right `BitShift` of a uint32 by a constant by shifts of its upper and its lower half.

    No mask has the highest bit, since OpenVINO clamps such constants.

    Args:
      model: changed in place.
    """
    return fuse(model, _right_shift, Anchor(at=("BitShift",)))


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


def _right_shift(node: ir.Node) -> Fusion | str | None:
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


def whole_blocks(model: ir.Model) -> str:
    """Fill up the last blocks of weights that are stored in blocks, in the graph, its subgraphs and functions."""
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
