"""Products with stored weights in fewer bits: which there are, and what takes their place.

1. `dynamic_int8`: the weights in 8 bits with a scale per column, what they are multiplied with in 8 bits by its own range
   at run time (DynamicQuantizeLinear, MatMulInteger).
   Large tables whose rows are looked up are stored in the same way, with a scale per row; a tied head shares the table.
2. `block_int4`: the weights in 4 bits with a scale per 32 of a column (MatMulNBits of com.microsoft, or the standard's
   DequantizeLinear of blocks, which ONNX Runtime turns into that).

Weights of 8 bits are signed, which runtimes multiply with unsigned bytes three times as fast as unsigned ones, and use the
levels -64 to 64 alone: two products of 255 and 64 have a sum of 16 bits, where processors without instructions of their own
for such products would saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jaxport.export.passes.editing import constant_of, dims_of, integer, is_op, operand, permutation, source
from jaxport.export.passes.fusing import Anchor, Builder, Fusion, fuse

MICROSOFT = "com.microsoft"
NodeFilter = Callable[[ir.Node], bool]
BLOCK = 32
LARGE = 2**14
"""Tables of so many elements are stored in 8 bits."""
LEVELS = 64
"""The greatest level of a weight of 8 bits."""


@dataclass(frozen=True)
class Dense:
    """A product with stored weights: `x @ weights`, and a bias where it is a Gemm.

    Attributes:
      x: what is multiplied, in float32.
      weights: of the shape [K, N].
      held: the value that the weights are read from.
      bias: what is added, or None.
    """

    x: ir.Value
    weights: np.ndarray
    held: ir.Value
    bias: ir.Value | None = None

    @classmethod
    def of(cls, node: ir.Node) -> Dense | str | None:
        """The product that a node is; why it is left in float32; or None where it is none."""
        if not is_op(node, "MatMul", "Gemm"):
            return None
        x, held = source(node), source(node, 1)
        if x.dtype is not ir.DataType.FLOAT:
            return "it is not in float32"
        weights = stored_matrix(held)
        if weights is None:
            return "no operand on its right is a stored matrix"
        if node.op_type == "MatMul":
            return cls(x, weights, held)
        factors = [node.attributes[name].as_float() if name in node.attributes else 1.0 for name in ("alpha", "beta")]
        if integer(node, "transA", 0) or factors != [1.0, 1.0]:
            return "it is a Gemm with more than a product and a bias"
        return cls(x, weights.T if integer(node, "transB", 0) else weights, held, operand(node, 2))

    @property
    def leaves(self) -> list[ir.Value]:
        """The values that the product is computed from."""
        return [self.x, self.held, *([self.bias] if self.bias is not None else [])]


def stored_matrix(value: ir.Value) -> np.ndarray | None:
    """A stored matrix, or the transpose of one; None where it is none."""
    producer = value.producer()
    if is_op(producer, "Transpose"):
        inner = constant_of(source(producer))
        array = None if inner is None else inner.transpose(permutation(producer))
    else:
        array = constant_of(value)
    finite = array is not None and array.ndim == 2 and array.size > 0 and np.isfinite(array).all()
    return array if finite else None


def everywhere(_: ir.Node) -> bool:
    """Admit any node."""
    return True


def dynamic_int8(model: ir.Model, *, where: NodeFilter = everywhere) -> str:
    """Compute products with stored weights in 8 bits, in the graph and its subgraphs.

    Args:
      model: changed in place.
      where: which nodes may be changed.
    """
    tables = Tables()

    def find(node: ir.Node) -> Fusion | str | None:
        dense = Dense.of(node) if where(node) else None
        if not isinstance(dense, Dense):
            return dense or tables.find(node, where)
        result = node.outputs[0]
        return Fusion(
            "MatMulInteger", result, dense.leaves, lambda builder: _dynamic(builder, dense, tables, dims_of(result))
        )

    return fuse(model, find, Anchor(at=("MatMul", "Gemm", "Gather")))


def _dynamic(builder: Builder, dense: Dense, tables: Tables, dims: list | None) -> ir.Value:
    levels, scale = tables.columns(builder, dense)
    name = dense.held.name or "weights"
    x, x_scale, x_zero = builder.emit(
        "DynamicQuantizeLinear", [dense.x], dims_of(dense.x), ir.DataType.UINT8, outputs=3
    )
    x_scale.type, x_scale.shape, x_zero.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(()), ir.Shape(())
    inputs = [x, levels, x_zero]
    total = builder.emit("MatMulInteger", inputs, dims, ir.DataType.INT32)
    scales = builder.emit(
        "Mul", [x_scale, builder.constant(scale, f"{name}.scale")], list(scale.shape), ir.DataType.FLOAT
    )
    floats = builder.cast(total, ir.DataType.FLOAT)
    result = builder.emit("Mul", [floats, scales], dims, ir.DataType.FLOAT)
    return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)


class Tables:
    """Tables whose rows are looked up, in 8 bits with a scale per row; a product with the transposed table shares them."""

    def __init__(self) -> None:
        self._found: set[ir.Value] = set()
        self._stored: dict[ir.Value, tuple[ir.Value, np.ndarray]] = {}

    def find(self, node: ir.Node, where: NodeFilter) -> Fusion | None:
        """The look-up in a large table of float32 that a node is, or None."""
        if not where(node) or not is_op(node, "Gather") or integer(node, "axis", 0) != 0:
            return None
        table, ids = source(node), source(node, 1)
        array = constant_of(table) if table.is_initializer() and table.dtype is ir.DataType.FLOAT else None
        if array is None or array.ndim != 2 or array.size < LARGE or not np.isfinite(array).all():
            return None
        self._found.add(table)
        dims = dims_of(node.outputs[0])
        return Fusion(
            "Gather of 8 bits", node.outputs[0], [table, ids], lambda b: self._rows(b, table, array, ids, dims)
        )

    def _rows(self, builder: Builder, table: ir.Value, array: np.ndarray, ids: ir.Value, dims: list | None) -> ir.Value:
        levels, scale = self._of(builder, table, array)
        scales = builder.constant(scale[:, None], f"{table.name}.scale")
        rows = builder.emit("Gather", [levels, ids], dims, ir.DataType.INT8, axis=0)
        steps = builder.emit("Gather", [scales, ids], dims and [*dims[:-1], 1], ir.DataType.FLOAT, axis=0)
        return builder.emit("Mul", [builder.cast(rows, ir.DataType.FLOAT), steps], dims, ir.DataType.FLOAT)

    def columns(self, builder: Builder, dense: Dense) -> tuple[ir.Value, np.ndarray]:
        """The weights of a product in 8 bits, and the scale of each column."""
        producer = dense.held.producer()
        if is_op(producer, "Transpose") and source(producer) in self._found:
            table = source(producer)
            array = constant_of(table)
            if array is not None and np.array_equal(array.T, dense.weights):
                levels, scale = self._of(builder, table, array)
                return builder.transposed(levels, (1, 0)), scale
        levels, scale = columns_int8(dense.weights)
        return builder.constant(levels, f"{dense.held.name or 'weights'}.int8"), scale

    def _of(self, builder: Builder, table: ir.Value, array: np.ndarray) -> tuple[ir.Value, np.ndarray]:
        if table not in self._stored:
            levels, scale = columns_int8(array, axis=0)
            self._stored[table] = builder.editor.constant(builder.root, levels, f"{table.name}.int8"), scale
        return self._stored[table]


def columns_int8(weights: np.ndarray, axis: int = 1, least: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Weights as signed bytes, and the scale of each slice along `axis`, which is `least` or more.

    >>> levels, scale = columns_int8(np.float32([[1, 0], [-0.5, 0]]))
    >>> levels.tolist(), (scale * 64).tolist()
    ([[64, 0], [-32, 0]], [1.0, 64.0])
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    scale = np.maximum(np.abs(weights).max(others) / LEVELS, least).astype(np.float32)
    scale[scale == 0] = 1
    shape = [-1 if i == axis else 1 for i in range(weights.ndim)]
    levels = np.clip(np.rint(weights / scale.reshape(shape)), -LEVELS, LEVELS)
    return levels.astype(np.int8), scale


def block_int4(model: ir.Model, *, contrib: bool, where: NodeFilter = everywhere) -> str:
    """Store the weights of products in 4 bits, in the graph and its subgraphs; tables in 8.

    Args:
      model: changed in place.
      contrib: whether the operator of ONNX Runtime may be used, or the standard's blocks.
      where: which nodes may be changed.
    """
    tables = Tables()

    def find(node: ir.Node) -> Fusion | str | None:
        dense = Dense.of(node) if where(node) else None
        if not isinstance(dense, Dense):
            return dense or tables.find(node, where)
        result, build = node.outputs[0], _by_bits if contrib else _by_blocks
        operator = "MatMulNBits" if contrib else "MatMul of 4 bits"
        return Fusion(operator, result, dense.leaves, lambda builder: build(builder, dense, dims_of(result)))

    report = fuse(model, find, Anchor(at=("MatMul", "Gemm", "Gather")))
    if contrib and any(node.domain == MICROSOFT for node in model.graph.all_nodes()):
        model.opset_imports[MICROSOFT] = 1
    return report


def _by_bits(builder: Builder, dense: Dense, dims: list | None) -> ir.Value:
    levels, scale = blocks_int4(dense.weights)
    name, (depth, count) = dense.held.name or "weights", dense.weights.shape
    packed = (levels[:, :, ::2] | levels[:, :, 1::2] << 4).astype(np.uint8)
    inputs = [dense.x, builder.constant(packed, f"{name}.int4"), builder.constant(scale.ravel(), f"{name}.scale")]
    attributes = {"K": depth, "N": count, "bits": 4, "block_size": BLOCK}
    result = builder.emit("MatMulNBits", inputs, dims, ir.DataType.FLOAT, **attributes)
    result.producer().domain = MICROSOFT
    return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)


def _by_blocks(builder: Builder, dense: Dense, dims: list | None) -> ir.Value:
    levels, scale = blocks_int4(dense.weights)
    name, (depth, count) = dense.held.name or "weights", dense.weights.shape
    whole = (levels.astype(np.int8) - 8).reshape(count, -1)[:, :depth].T.astype(ml_dtypes.int4)
    inputs = [builder.constant(whole, f"{name}.int4"), builder.constant(scale.T, f"{name}.scale")]
    shape = [depth, count]
    weights = builder.emit("DequantizeLinear", inputs, shape, ir.DataType.FLOAT, axis=0, block_size=BLOCK)
    result = builder.emit("MatMul", [dense.x, weights], dims, ir.DataType.FLOAT)
    return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)


def blocks_int4(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights [K, N] as levels 0 to 15 around 8, [N, blocks, 32], and the scale of each block, [N, blocks].

    The element with the largest magnitude is at the end of the range that has one level more.

    >>> levels, scale = blocks_int4(np.float32([[2], [-1]]))
    >>> levels[0, 0, :3].tolist(), scale.tolist()
    ([0, 12, 8], [[-0.25]])
    """
    depth, count = weights.shape
    padded = np.zeros((count, -(-depth // BLOCK) * BLOCK), np.float32)
    padded[:, :depth] = weights.T
    blocks = padded.reshape(count, -1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], -1)[..., 0]
    scale = (largest / -8).astype(np.float32)
    safe = np.where(scale == 0, 1, scale)
    levels = np.clip(np.rint(blocks / safe[..., None]) + 8, 0, 15).astype(np.uint8)
    return levels, safe
