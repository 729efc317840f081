"""Store the weights of products in fewer bits, and compute the products with them.

1. `dynamic_int8`: the weights in 8 bits with a scale per column; the other operand is quantized to 8 bits at run time, by its
   own range (DynamicQuantizeLinear, MatMulInteger).
   Large tables whose rows are looked up are stored in the same way, with a scale per row; a tied head shares the table.
2. `block_int4`: the weights in 4 bits with a scale and a zero point per 32 of a column (MatMulNBits of com.microsoft, or the
   standard's DequantizeLinear of blocks, which ONNX Runtime turns into that). A tied head shares the table in 8 bits: a
   second copy in 4 bits would be larger, and further from float32.

Weights of 8 bits are signed, because runtimes multiply unsigned bytes by signed ones three times as fast as by unsigned
ones. They use only the levels from -64 to 64: the sum of two products of 255 and 64 fits into 16 bits, so that processors
without dot products of bytes do not saturate.
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
"""Tables with at least this many elements are stored in 8 bits."""
CHUNK = 1024
"""The number of columns that are rounded at a time, which bounds the memory that this takes."""
LEVELS = 64
"""The largest level of an 8-bit weight."""
ROUNDING = "jaxport.rounding"
"""The key of the metadata of a product that says how far its weights of 4 bits are from those of the function."""


@dataclass(frozen=True)
class Dense:
    """A product with stored weights: `x @ weights`, plus the bias of a Gemm.

    Attributes:
      x: the left operand, in float32.
      weights: the right operand, [K, N].
      held: the value that the weights are read from.
      bias: the bias, or None.
    """

    x: ir.Value
    weights: np.ndarray
    held: ir.Value
    bias: ir.Value | None = None

    @classmethod
    def of(cls, node: ir.Node) -> Dense | str | None:
        """Return the product that a node computes, why it stays in float32, or None if it is no product."""
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
        """Return the values that the product is computed from."""
        return [self.x, self.held, *([self.bias] if self.bias is not None else [])]


def stored_matrix(value: ir.Value) -> np.ndarray | None:
    """Return a stored matrix or the transpose of one; None if the value is neither, or not finite."""
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
      where: whether a node may be changed.
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
    """Lookup tables in 8 bits with a scale per row, which products with the transposed table share."""

    def __init__(self) -> None:
        self._found: set[ir.Value] = set()
        self._stored: dict[ir.Value, tuple[ir.Value, np.ndarray]] = {}

    def find(self, node: ir.Node, where: NodeFilter) -> Fusion | None:
        """Return the fusion of a node that looks up rows of a large float32 table; None for any other node."""
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

    def shares(self, dense: Dense) -> bool:
        """Whether the weights of a product are a transposed table, as those of a tied head are."""
        producer = dense.held.producer()
        return is_op(producer, "Transpose") and source(producer) in self._found and permutation(producer) == (1, 0)

    def columns(self, builder: Builder, dense: Dense) -> tuple[ir.Value, np.ndarray]:
        """Return the weights of a product in 8 bits, and the scale of each column."""
        if self.shares(dense):
            producer = dense.held.producer()
            assert producer is not None
            table = source(producer)
            array = constant_of(table)
            assert array is not None
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
    """Return weights as signed bytes, and the scale of each slice along `axis`, which is at least `least`.

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
      contrib: whether to use ONNX Runtime's own operator rather than the standard's blocks.
      where: whether a node may be changed.
    """
    tables = Tables()

    def find(node: ir.Node) -> Fusion | str | None:
        dense = Dense.of(node) if where(node) else None
        if not isinstance(dense, Dense):
            return dense or tables.find(node, where)
        result, build = node.outputs[0], _by_bits if contrib else _by_blocks
        operator = "MatMulNBits" if contrib else "MatMul of 4 bits"
        if tables.shares(dense):
            operator, build = "MatMulInteger", lambda builder, dense, dims: _dynamic(builder, dense, tables, dims)
        return Fusion(operator, result, dense.leaves, lambda builder: build(builder, dense, dims_of(result)))

    report = fuse(model, find, Anchor(at=("MatMul", "Gemm", "Gather")))
    if contrib and any(node.domain == MICROSOFT for node in model.graph.all_nodes()):
        model.opset_imports[MICROSOFT] = 1
    return report


def _by_bits(builder: Builder, dense: Dense, dims: list | None) -> ir.Value:
    levels, scale, zero = blocks_int4(dense.weights)
    name, (depth, count) = dense.held.name or "weights", dense.weights.shape
    inputs = [
        dense.x,
        builder.constant(_pairs(levels), f"{name}.int4"),
        builder.constant(scale.ravel(), f"{name}.scale"),
        builder.constant(_pairs(zero).ravel(), f"{name}.zero_point"),
    ]
    attributes = {"K": depth, "N": count, "bits": 4, "block_size": BLOCK}
    result = builder.emit("MatMulNBits", inputs, dims, ir.DataType.FLOAT, **attributes)
    result.producer().domain = MICROSOFT
    _tell_rounding(result, dense.weights, levels, scale, zero)
    return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)


def _pairs(levels: np.ndarray) -> np.ndarray:
    """Pack 4-bit numbers along the last axis into bytes, the first of two in the lower half."""
    odd = levels.shape[-1] % 2
    even = np.concatenate([levels, np.zeros((*levels.shape[:-1], odd), levels.dtype)], -1)
    return (even[..., ::2] | even[..., 1::2] << 4).astype(np.uint8)


def _by_blocks(builder: Builder, dense: Dense, dims: list | None) -> ir.Value:
    levels, scale, zero = blocks_int4(dense.weights)
    name, (depth, count) = dense.held.name or "weights", dense.weights.shape
    whole = (levels.astype(np.int8) - 8).reshape(count, -1)[:, :depth].T.astype(ml_dtypes.int4)
    # ONNX Runtime looks for the weights only in the graph of the DequantizeLinear, so this one is not in a subgraph.
    editor, root = builder.editor, builder.root
    inputs = [
        editor.constant(root, whole, f"{name}.int4"),
        editor.constant(root, scale.T, f"{name}.scale"),
        editor.constant(root, (zero.astype(np.int8) - 8).T.astype(ml_dtypes.int4), f"{name}.zero_point"),
    ]
    if builder.node.graph is root:
        weights = builder.emit("DequantizeLinear", inputs, [depth, count], ir.DataType.FLOAT, axis=0, block_size=BLOCK)
    else:
        constants = {value.producer() for value in inputs}
        last = next((node for node in reversed(root) if node in constants), None)
        weights = editor.insert(
            root, "DequantizeLinear", inputs, after=last, like=dense.held, shape=[depth, count],
            dtype=ir.DataType.FLOAT, axis=0, block_size=BLOCK,
        )  # fmt: skip
    result = builder.emit("MatMul", [dense.x, weights], dims, ir.DataType.FLOAT)
    _tell_rounding(result, dense.weights, levels, scale, zero)
    return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)


def _tell_rounding(
    result: ir.Value, weights: np.ndarray, levels: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> None:
    """Write into the metadata of a product how far its weights are from what they were, relative to their norm."""
    rounded = (levels.astype(np.float32) - zero[..., None]) * scale[..., None]
    difference = rounded.reshape(weights.shape[1], -1)[:, : weights.shape[0]].T - weights
    norm = np.linalg.norm(weights)
    producer = result.producer()
    assert producer is not None
    producer.metadata_props[ROUNDING] = f"{np.linalg.norm(difference) / norm if norm else 0.0:.4f}"


def blocks_int4(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights [K, N] as levels from 0 to 15, [N, blocks, 32], with scales and zero points of blocks, [N, blocks].

    The levels of a block span its weights and zero; the scale is then the one with the least squared error.

    >>> levels, scale, zero = blocks_int4(np.float32([[2.5], [-1.25]]))
    >>> levels[0, 0, :3].tolist(), scale.tolist(), zero.tolist()
    ([15, 0, 5], [[0.25]], [[5]])
    """
    depth, count = weights.shape
    padded = np.zeros((count, -(-depth // BLOCK) * BLOCK), np.float32)
    padded[:, :depth] = weights.T
    blocks = padded.reshape(count, -1, BLOCK)
    chunks = [_nearest_levels(blocks[start : start + CHUNK]) for start in range(0, count, CHUNK)]
    levels, scale, zero = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    return levels, scale, zero


def _nearest_levels(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the levels that span each block, with the scales of least squared error, and the zero points.

    Levels that span less than the block clip its largest weights. For normally distributed weights the best share of the span
    makes the error 1 % smaller, but that of the largest weights a third larger, and models no better.
    """
    least, greatest = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    span = ((greatest - least) / 15).astype(np.float32)
    span[span == 0] = 1
    zero = np.clip(np.rint(-least / span), 0, 15).astype(np.float32)[..., None]
    steps = np.clip(np.rint(blocks / span[..., None]) + zero, 0, 15) - zero
    squares = (steps * steps).sum(-1)
    # The scale is undefined if all levels are the zero point.
    fitted = np.where(squares > 0, (steps * blocks).sum(-1) / np.where(squares > 0, squares, 1), span)
    scale = np.where(fitted > 0, fitted, span).astype(np.float32)
    return (steps + zero).astype(np.uint8), scale, zero[..., 0].astype(np.uint8)
