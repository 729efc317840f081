"""Products with stored weights: what they are (`Dense`), and dynamic quantization to 8 bits.

1. `weights_second` writes `W @ x` as `(xᵀ @ Wᵀ)ᵀ`, since the operators for weights of few bits take them as the second
  operand.
2. `dynamic_int8` stores the weights in 8 bits with a scale per column, and quantizes the other operand at run time, by
  its own range:

       MatMul(x, W)   →   q, s, z = DynamicQuantizeLinear(x)
                          Cast(MatMulInteger(q, levels, z)) * (s * scales)

3. It stores large tables whose rows are looked up in the same way, with a scale per row: `Gather(T, i)` becomes
   `Cast(Gather(levels, i)) * Gather(scales, i)`. A head tied to the table shares its levels.

Weights of 8 bits are signed, because runtimes multiply unsigned bytes by signed ones three times as fast as by unsigned
ones. Unless all are asked for, they use only the levels from -64 to 64: the sum of two products of 255 and 64 fits into
16 bits, so that processors without dot products of bytes do not saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.export.passes.layout_ops import WAS_PRODUCT
from jaxport.graph.editing import constant_of, dims_of, integer, is_op, operand, permutation, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.onnx_facts import QUANTIZED

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
      full_range: whether weights use the levels from -127 to 127, which halves their rounding error, rather than from
        -64 to 64. Processors without 8-bit dot products (x86 before AVX-512 VNNI and AVX-VNNI) then saturate where two
        large weights meet large values, as they do with the defaults of other quantizers.

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
      weights: the right operand, [K, N], or a stack of these.
      held: the value that the weights are read from.
      bias: the bias, or None.
      turned: whether the weights are the transpose of what is held.
      index: which matrix of a stack the weights are, if they are one.
    """

    x: ir.Value
    weights: np.ndarray
    held: ir.Value
    bias: ir.Value | None = None
    turned: bool = False
    index: int | None = None

    @classmethod
    def of(cls, node: ir.Node, stacks: bool = False) -> Dense | str | None:
        """Return the product that a node computes, why it stays in float32, or None if it is no product.

        With `stacks`, the weights may be a stack of matrices, as those of experts.
        """
        if is_op(node, "Conv"):
            return (
                "it is a convolution, which has a kernel for ranges that are known before: `Int8()` with a calibration"
            )
        if not is_op(node, "MatMul", "Gemm"):
            return None
        x, held = source(node), source(node, 1)
        if x.dtype is not ir.DataType.FLOAT:
            return "it is not in float32"
        weights = stored_matrix(held, stacks)
        if weights is None:
            return "no operand on its right is a stored matrix"
        if node.op_type == "MatMul":
            return cls(x, weights, held)
        if integer(node, "transA", 0) or not _is_plain(node):
            return "it is a Gemm with more than a product and a bias"
        turned = bool(integer(node, "transB", 0))
        return cls(x, weights.T if turned else weights, held, operand(node, 2), turned)

    @property
    def stored(self) -> tuple[ir.Value, bool, int | None]:
        """Return the stored tensor of the weights, whether they are its transpose, and their index in it.

        It is the same for each use of a weight.
        """
        producer = self.held.producer()
        moved = is_op(producer, "Transpose") and permutation(producer) == (1, 0)
        base = source(producer) if producer is not None and moved else self.held
        return base, moved != self.turned, self.index

    @property
    def leaves(self) -> list[ir.Value]:
        """Return the values that the product is computed from."""
        return [self.x, self.held, *([self.bias] if self.bias is not None else [])]


def stored_matrix(value: ir.Value, stacks: bool = False) -> np.ndarray | None:
    """Return a stored matrix or the transpose of one; None if the value is neither, or not finite.

    With `stacks`, it may be a stack of matrices.
    """
    producer = value.producer()
    if is_op(producer, "Transpose"):
        inner = constant_of(source(producer))
        array = None if inner is None else inner.transpose(permutation(producer))
    else:
        array = constant_of(value)
    if array is None or not (array.ndim == 2 or (stacks and array.ndim > 2)):
        return None
    return array if array.size > 0 and np.isfinite(array).all() else None


def weights_second(model: ir.Model, *, convolutions: bool) -> str:
    """Write products whose first operand is stored as products whose second one is, between two Transposes.

    What stores weights in few bits has operators for these only. `layout` moves the Transposes afterwards: it is the
    one that turns `x @ w` into `wᵀ @ xᵀ`, or into a convolution of one pixel.

    Args:
      model: changed in place.
      convolutions: whether to turn the convolutions of one pixel that were products into products again.
    """
    stored: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}

    def turned(builder: Builder, x: ir.Value, held: ir.Value, weights: np.ndarray, order: Sequence[int]) -> ir.Value:
        """Return `x @ weights` for an operand whose axes are taken in some order, and back in their own."""
        if any(
            is_op(user, "Gather") for user in held.consumers()
        ):  # a table: its transpose shares what is stored of it
            second = builder.transposed(held, (1, 0))
            dims = dims_of(builder.node.outputs[0]) or []
            product = builder.emit("MatMul", [builder.transposed(x, order), second], [dims[axis] for axis in order])
            return builder.transposed(product, np.argsort(order).tolist())
        key = held, weights.strides
        if key not in stored:
            array = np.ascontiguousarray(weights)
            stored[key] = builder.editor.constant(builder.root, array, held.name or "weights", held)
        dims = dims_of(builder.node.outputs[0]) or []
        moved = builder.transposed(x, order)
        product = builder.emit("MatMul", [moved, stored[key]], [dims[axis] for axis in order])
        return builder.transposed(product, np.argsort(order).tolist())

    def find(node: ir.Node) -> Fusion | None:
        result, dims = node.outputs[0], dims_of(node.outputs[0])
        if dims is None or result.dtype is not ir.DataType.FLOAT:
            return None
        if is_op(node, "Conv"):
            x, held, kernel = source(node), source(node, 1), constant_of(source(node, 1))
            if kernel is None or not convolutions or WAS_PRODUCT not in node.meta:
                return None
            order = (0, *range(2, len(dims)), 1)
            weights, bias = kernel.reshape(kernel.shape[:2]).T, operand(node, 2)
        else:
            held, x, bias = source(node), source(node, 1), operand(node, 2) if is_op(node, "Gemm") else None
            matrix = stored_matrix(held, stacks=True)
            if matrix is None or constant_of(x) is not None or not _is_plain(node):
                return None
            order = (*range(len(dims) - 2), len(dims) - 1, len(dims) - 2)
            weights = matrix if integer(node, "transA", 0) else np.swapaxes(matrix, -1, -2)
        if len(dims_of(x) or ()) != len(dims):
            return None

        def build(builder: Builder) -> ir.Value:
            if integer(node, "transB", 0):
                made = turned(builder, builder.transposed(x, (1, 0)), held, weights, order)
            else:
                made = turned(builder, x, held, weights, order)
            if bias is None:
                return made
            array = constant_of(bias)
            if is_op(node, "Conv") and array is not None:
                bias_dims = [-1, *[1] * (len(dims) - 2)]
                return builder.emit(
                    "Add", [made, builder.constant(array.reshape(bias_dims), bias.name or "bias", bias)], dims
                )
            return builder.emit("Add", [made, bias], dims)

        leaves = [x, held, *([bias] if bias is not None else [])]
        return Fusion("product with its weights second", result, leaves, build)

    return fuse(model, find, Anchor(at=("MatMul", "Gemm", "Conv")))


def _is_plain(node: ir.Node) -> bool:
    """Whether a node is a product, perhaps of transposed operands, and a bias, without factors."""
    return all(node.attributes[name].as_float() == 1 for name in ("alpha", "beta") if name in node.attributes)


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
        dense = Dense.of(node, stacks=True) if where(node) else None
        if not isinstance(dense, Dense):
            return dense or tables.find(node, where)
        result = node.outputs[0]
        return Fusion(
            "MatMulInteger",
            result,
            dense.leaves,
            lambda builder: integer_product(builder, dense, tables, dims_of(result)),
        )

    return fuse(model, find, Anchor(at=QUANTIZED))


def integer_product(builder: Builder, dense: Dense, tables: Tables, dims: list | None) -> ir.Value:
    """Emit a product in 8 bits whose left operand is quantized at run time; return its result."""
    levels, scale = tables.columns(builder, dense)
    stamps = [(ir.DataType.UINT8, dims_of(dense.x)), (ir.DataType.FLOAT, ()), (ir.DataType.UINT8, ())]
    x, x_scale, x_zero = builder.emit_many("DynamicQuantizeLinear", [dense.x], stamps)
    inputs = [x, levels, x_zero]
    total = builder.emit("MatMulInteger", inputs, dims, ir.DataType.INT32)
    scales = builder.emit("Mul", [x_scale, scale], dims_of(scale), ir.DataType.FLOAT)
    floats = builder.cast(total, ir.DataType.FLOAT)
    result = builder.emit("Mul", [floats, scales], dims, ir.DataType.FLOAT)
    return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)


class Stored:
    """The tensors of few bits that weights became, so that all products with a weight share one."""

    def __init__(self) -> None:
        self._made: dict[tuple[ir.Graph, ir.Value, bool, int | None], list[ir.Value]] = {}

    def tensors(
        self, builder: Builder, dense: Dense, make: Callable[[], Iterable[tuple[np.ndarray, str]]]
    ) -> list[ir.Value]:
        """Return the tensors of the weights of a product: those that `make` returns with the ends of their names."""
        key = (builder.root, *dense.stored)
        if key not in self._made:
            name = dense.held.name or "weights"
            name = name if dense.index is None else f"{name}.{dense.index}"
            self._made[key] = [builder.constant(array, f"{name}.{end}") for array, end in make()]
        return self._made[key]


class Tables:
    """Weights in 8 bits: lookup tables with a scale per row, which products with the transposed table share; and
    others.

    Stacks of matrices that are looked up in, as those of experts, have a scale for each column of each.
    """

    def __init__(self, form: Int8) -> None:
        self._form = form
        self._found: set[ir.Value] = set()
        self._stored: dict[ir.Value, tuple[ir.Value, np.ndarray]] = {}
        self._scales: dict[tuple[ir.Value, int], ir.Value] = {}
        self._others = Stored()

    def find(self, node: ir.Node, where: NodeFilter) -> Fusion | None:
        """Return the fusion of a node that looks up rows of a large float32 table; None for any other node."""
        if not where(node) or not is_op(node, "Gather") or integer(node, "axis", 0) != 0:
            return None
        table, ids = source(node), source(node, 1)
        array = constant_of(table) if table.is_initializer() and table.dtype is ir.DataType.FLOAT else None
        if array is None or array.ndim < 2 or array.size < LARGE or not np.isfinite(array).all():
            return None
        self._found.add(table)
        dims = dims_of(node.outputs[0])
        return Fusion(
            "Gather of 8 bits", node.outputs[0], [table, ids], lambda b: self._rows(b, table, array, ids, dims)
        )

    def _rows(self, builder: Builder, table: ir.Value, array: np.ndarray, ids: ir.Value, dims: list | None) -> ir.Value:
        levels, scale = self._of(builder, table, array)
        axis = -1 if array.ndim == 2 else -2
        column = self._constant(builder, np.expand_dims(scale, axis), table)
        one = dims and [1 if i == len(dims) + axis else dim for i, dim in enumerate(dims)]
        rows = builder.emit("Gather", [levels, ids], dims, ir.DataType.INT8, axis=0)
        steps = builder.emit("Gather", [column, ids], one, ir.DataType.FLOAT, axis=0)
        return builder.emit("Mul", [builder.cast(rows, ir.DataType.FLOAT), steps], dims, ir.DataType.FLOAT)

    def shares(self, dense: Dense) -> bool:
        """Whether the weights of a product are a transposed table, as those of a tied head are."""
        producer = dense.held.producer()
        return is_op(producer, "Transpose") and source(producer) in self._found and permutation(producer) == (1, 0)

    def columns(self, builder: Builder, dense: Dense) -> tuple[ir.Value, ir.Value]:
        """Return the weights of a product in 8 bits, and the scale of each column."""
        if self.shares(dense):
            producer = dense.held.producer()
            assert producer is not None
            table = source(producer)
            array = constant_of(table)
            assert array is not None
            levels, scale = self._of(builder, table, array)
            return builder.transposed(levels, (1, 0)), self._constant(builder, scale, table)

        def make() -> list[tuple[np.ndarray, str]]:
            levels, scale = columns_int8(dense.weights, self._form)
            return [(levels, "int8"), (scale if scale.ndim == 1 else np.expand_dims(scale, -2), "scale")]

        levels, scale = self._others.tensors(builder, dense, make)
        return levels, scale

    def _of(self, builder: Builder, table: ir.Value, array: np.ndarray) -> tuple[ir.Value, np.ndarray]:
        if table not in self._stored:
            levels, scale = columns_int8(array, self._form, axis=0 if array.ndim == 2 else -1)
            self._stored[table] = builder.editor.constant(builder.root, levels, f"{table.name}.int8"), scale
        return self._stored[table]

    def _constant(self, builder: Builder, scale: np.ndarray, table: ir.Value) -> ir.Value:
        """Return the scales of a table as a constant, one for all that read them in this shape."""
        key = table, scale.ndim
        if key not in self._scales:
            self._scales[key] = builder.constant(scale, f"{table.name}.scale")
        return self._scales[key]


def columns_int8(
    weights: np.ndarray, form: Int8, axis: int = -1, least: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights as signed bytes, and the scale of each slice along `axis`, which is at least `least`.

    A scale is for all other axes; with the last axis, for that before it, so that each matrix of a stack has scales of
    its own.

    >>> levels, scale = columns_int8(np.float32([[1, 0], [-0.5, 0]]), Int8())
    >>> levels.tolist(), (scale * 64).tolist()
    ([[64, 0], [-32, 0]], [1.0, 64.0])
    """
    others = (weights.ndim - 2,) if axis == -1 else tuple(i for i in range(weights.ndim) if i != axis)
    scale = np.maximum(np.abs(weights).max(others) / form.levels, least).astype(np.float32)
    scale[scale == 0] = 1
    levels = np.clip(np.rint(weights / np.expand_dims(scale, others)), -form.levels, form.levels)
    return levels.astype(np.int8), scale
