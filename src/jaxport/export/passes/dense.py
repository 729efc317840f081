"""Store the weights of products in fewer bits, and compute the products with them.

1. `dynamic_int8`: the weights in 8 bits with a scale per column; the other operand is quantized to 8 bits at run time, by its
   own range (DynamicQuantizeLinear, MatMulInteger).
   Large tables whose rows are looked up are stored in the same way, with a scale per row; a tied head shares the table.

Weights of 8 bits are signed, because runtimes multiply unsigned bytes by signed ones three times as fast as by unsigned
ones. Unless all are asked for, they use only the levels from -64 to 64: the sum of two products of 255 and 64 fits into 16
bits, so that processors without dot products of bytes do not saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.graph.editing import constant_of, dims_of, integer, is_op, operand, permutation, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse

NodeFilter = Callable[[ir.Node], bool]
LARGE = 2**14
"""Tables with at least this many elements are stored in 8 bits."""


@dataclass(frozen=True)
class Int8:
    """Products with weights in 8 bits, for `to_onnx(precision=...)`.

    "int8" is short for `Int8()`, which includes convolutions, and "int8-dynamic" for `Int8(dynamic=True)`.

    >>> import jax.numpy as jnp, numpy as np, jaxport
    >>> weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) / 8
    >>> for full_range in (False, True):
    ...     precision = jaxport.Int8(dynamic=True, full_range=full_range)
    ...     exported = jaxport.to_onnx(lambda x: jnp.tanh(x @ weights), [("B", 64)], precision=precision)
    ...     print(max(np.abs(value.const_value.numpy()).max() for value in exported.model.graph.initializers.values()))
    64
    127

    Attributes:
      dynamic: whether the range of the other operand is determined at run time rather than by calibration.
      full_range: whether weights use the levels from -127 to 127, which halves their rounding error, rather than from -64
        to 64. Processors without 8-bit dot products (x86 before AVX-512 VNNI and AVX-VNNI) then saturate where two large
        weights meet large values, as they do with the defaults of other quantizers.

    Raises:
      InvalidArgument: a field is not a bool.
    """

    dynamic: bool = False
    full_range: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, bool):
                raise InvalidArgument(f"`{name}` is {value!r}", where=f"`Int8({name}=...)`", instead="True or False")

    def __str__(self) -> str:
        return f"int8{'-dynamic' if self.dynamic else ''}{'(full_range=True)' if self.full_range else ''}"

    @property
    def levels(self) -> int:
        """The largest level of a weight."""
        return 127 if self.full_range else 64


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


def dynamic_int8(model: ir.Model, *, form: Int8 = Int8(dynamic=True), where: NodeFilter = everywhere) -> str:
    """Compute products with stored weights in 8 bits, in the graph and its subgraphs.

    Args:
      model: changed in place.
      form: the range of the weights.
      where: whether a node may be changed.
    """
    tables = Tables(form)

    def find(node: ir.Node) -> Fusion | str | None:
        dense = Dense.of(node) if where(node) else None
        if not isinstance(dense, Dense):
            return dense or tables.find(node, where)
        result = node.outputs[0]
        return Fusion(
            "MatMulInteger",
            result,
            dense.leaves,
            lambda builder: integer_product(builder, dense, tables, dims_of(result)),
        )

    return fuse(model, find, Anchor(at=("MatMul", "Gemm", "Gather")))


def integer_product(builder: Builder, dense: Dense, tables: Tables, dims: list | None) -> ir.Value:
    """Emit a product in 8 bits whose left operand is quantized at run time; return its result."""
    levels, scale = tables.columns(builder, dense)
    name = dense.held.name or "weights"
    stamps = [(ir.DataType.UINT8, dims_of(dense.x)), (ir.DataType.FLOAT, ()), (ir.DataType.UINT8, ())]
    x, x_scale, x_zero = builder.emit_many("DynamicQuantizeLinear", [dense.x], stamps)
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

    def __init__(self, form: Int8) -> None:
        self._form = form
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
        levels, scale = columns_int8(dense.weights, self._form)
        return builder.constant(levels, f"{dense.held.name or 'weights'}.int8"), scale

    def _of(self, builder: Builder, table: ir.Value, array: np.ndarray) -> tuple[ir.Value, np.ndarray]:
        if table not in self._stored:
            levels, scale = columns_int8(array, self._form, axis=0)
            self._stored[table] = builder.editor.constant(builder.root, levels, f"{table.name}.int8"), scale
        return self._stored[table]


def columns_int8(
    weights: np.ndarray, form: Int8, axis: int = 1, least: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights as signed bytes, and the scale of each slice along `axis`, which is at least `least`.

    >>> levels, scale = columns_int8(np.float32([[1, 0], [-0.5, 0]]), Int8())
    >>> levels.tolist(), (scale * 64).tolist()
    ([[64, 0], [-32, 0]], [1.0, 64.0])
    """
    others = tuple(i for i in range(weights.ndim) if i != axis)
    scale = np.maximum(np.abs(weights).max(others) / form.levels, least).astype(np.float32)
    scale[scale == 0] = 1
    shape = [-1 if i == axis else 1 for i in range(weights.ndim)]
    levels = np.clip(np.rint(weights / scale.reshape(shape)), -form.levels, form.levels)
    return levels.astype(np.int8), scale
