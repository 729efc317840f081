"""Store the weights of products in 4 bits, with a scale per group of a column, and the zero point of each if they have
any.

`block_int4` emits MatMulNBits of com.microsoft, or the standard's DequantizeLinear of blocks, which ONNX Runtime turns
into that. Large tables are stored in 8 bits, and a tied head shares its table; in 4 bits, where the runtime looks up
rows in what MatMulNBits multiplies by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from jaxport.export.precision.dense import Dense, Int8, NodeFilter, Stored, Tables, everywhere, integer_product
from jaxport.export.precision.int4_levels import Int4, Levels, pairs, quantized, rounding_error, signed
from jaxport.export.precision.int4_runtime import ROUNDING, Experts, TiedTables, chooses_experts, is_expert_layer
from jaxport.graph.editing import dims_of
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.onnx_facts import EXPERT_LAYER, QUANTIZED, RUNTIME_DOMAIN

MOST_MATRICES = 256
"""The number of matrices of a stack up to which each gets a product of its own."""
ACCURACY = 4
"""The accuracy level of MatMulNBits: the runtime may round the other operand to 8 bits, by its own groups. One token of
GPT-2 takes two thirds of the time, and its error is the same."""
DEFAULT = Int4()


def block_int4(
    model: ir.Model, *, contrib: bool, packed_tables: bool = False, form: Int4 = DEFAULT, where: NodeFilter = everywhere
) -> str:
    """Store the weights of products in 4 bits, in the graph and its subgraphs; tables in 8.

    Args:
      model: changed in place.
      contrib: whether to use ONNX Runtime's own operators rather than the standard's blocks.
      packed_tables: whether the runtime looks up rows in packed bytes, so that a tied table is stored in 4 bits, too.
      form: the groups.
      where: whether a node may be changed.
    """
    tables, groups, experts = Tables(Int8()), _Groups(form), Experts(form)
    tied = TiedTables(form, where)

    def find(node: ir.Node) -> Fusion | str | None:
        if is_expert_layer(node):
            return experts.find(node) if where(node) else None
        dense = Dense.of(node, stacks=True) if where(node) else None
        if not isinstance(dense, Dense):
            packed = tied.find(node) if packed_tables and where(node) else None
            return dense or packed or tables.find(node, where)
        dims = dims_of(node.outputs[0])
        if packed_tables and (table := tied.table_of(dense)) is not None:
            operator = "MatMulNBits"
            build = lambda builder: tied.product(builder, dense, table, dims, _accuracy(builder))
        elif tables.shares(dense):
            operator, build = "MatMulInteger", lambda builder: integer_product(builder, dense, tables, dims)
        elif chooses_experts(node):
            return "its results choose experts"
        elif form.bits(depth := dense.weights.shape[-2]) >= 32 * depth:
            return "its weights are too few to be smaller in 4 bits"
        elif dense.weights.ndim > 2 and not _is_separable(dense, dims):
            return "it multiplies by a stack of matrices that are not one for each of the first axis"
        else:
            operator = "MatMulNBits" if contrib else "MatMul of 4 bits"
            one = groups.by_operator if contrib else groups.by_blocks
            build = lambda builder: _for_each(builder, dense, dims, one)
        return Fusion(operator, node.outputs[0], dense.leaves, build)

    report = fuse(model, find, Anchor(at=QUANTIZED), Anchor(at=(EXPERT_LAYER,), domain=RUNTIME_DOMAIN))
    if contrib and any(node.domain == RUNTIME_DOMAIN for node in model.graph.all_nodes()):
        model.opset_imports[RUNTIME_DOMAIN] = 1
    return report


Product = Callable[[Builder, Dense, "list | None"], ir.Value]


def _is_separable(dense: Dense, dims: list | None) -> bool:
    """Whether a product with a stack of matrices is one product for each of them."""
    of_x = dims_of(dense.x)
    if dims is None or of_x is None or dense.weights.ndim != 3 or len(dims) != 3 or not 2 <= len(of_x) <= 3:
        return False
    return len(dense.weights) <= MOST_MATRICES and (len(of_x) == 2 or of_x[0] in (1, len(dense.weights)))


def _for_each(builder: Builder, dense: Dense, dims: list | None, product: Product) -> ir.Value:
    """Emit a product, or one for each matrix of a stack, side by side: there are kernels for single matrices."""
    if dense.weights.ndim == 2 or dims is None:
        return product(builder, dense, dims)
    of_x, results = dims_of(dense.x) or [], []
    for index, weights in enumerate(dense.weights):
        x = dense.x
        if len(of_x) == 3 and of_x[0] == 1:
            x = builder.viewed(x, of_x[1:])
        elif len(of_x) == 3:
            place = builder.constant(np.array(index, np.int64), "index")
            x = builder.emit("Gather", [x, place], of_x[1:], ir.DataType.FLOAT, axis=0)
        made = product(builder, replace(dense, x=x, weights=weights, index=index), dims[1:])
        results.append(builder.viewed(made, [1, *dims[1:]]))
    return builder.emit("Concat", results, dims, ir.DataType.FLOAT, axis=0)


def _accuracy(builder: Builder) -> int:
    """Return the level at which a product in 4 bits is computed; in a subgraph, ONNX Runtime 1.28 has other values at
    the quick one.
    """
    return ACCURACY if builder.node.graph is builder.root else 0


class _Groups:
    """Weights of products in 4 bits: one set of tensors for all uses of a weight."""

    def __init__(self, form: Int4) -> None:
        self.form = form
        self._stored = Stored()
        self._roundings: dict[ir.Value, str] = {}

    def by_operator(self, builder: Builder, dense: Dense, dims: list | None) -> ir.Value:
        """Emit a product as ONNX Runtime's own operator."""

        def parts(levels: Levels) -> list[tuple[np.ndarray, str]]:
            made = [(pairs(levels.levels), "int4"), (levels.scale.ravel(), "scale")]
            return made if self.form.symmetric else [*made, (pairs(levels.zero).ravel(), "zero_point")]

        depth, count = dense.weights.shape
        tensors = self._tensors(builder, dense, parts)
        attributes = {
            "K": depth, "N": count, "bits": 4, "block_size": self.form.size(depth), "accuracy_level": _accuracy(builder)
        }  # fmt: skip
        inputs = [dense.x, *tensors]
        result = builder.emit("MatMulNBits", inputs, dims, ir.DataType.FLOAT, RUNTIME_DOMAIN, **attributes)
        return self._finished(builder, result, dense, tensors, dims)

    def by_blocks(self, builder: Builder, dense: Dense, dims: list | None) -> ir.Value:
        """Emit a product with the standard's DequantizeLinear of blocks."""
        depth, count = dense.weights.shape

        def parts(levels: Levels) -> list[tuple[np.ndarray, str]]:
            whole = levels.levels.reshape(count, -1)[:, :depth].T
            made = [(signed(whole), "int4"), (levels.scale.T, "scale")]
            return made if self.form.symmetric else [*made, (signed(levels.zero.T), "zero_point")]

        tensors = self._tensors(builder, dense, parts)
        # ONNX Runtime looks for the weights only in the graph of the DequantizeLinear, so this one is not in a
        # subgraph.
        editor, root, size = builder.editor, builder.root, self.form.size(depth)
        if builder.node.graph is root:
            weights = builder.emit(
                "DequantizeLinear", tensors, [depth, count], ir.DataType.FLOAT, axis=0, block_size=size
            )
        else:
            constants = {value.producer() for value in tensors}
            last = next((node for node in reversed(root) if node in constants), None)
            weights = editor.insert(
                root, "DequantizeLinear", tensors, after=last, like=dense.held, shape=[depth, count],
                dtype=ir.DataType.FLOAT, axis=0, block_size=size,
            )  # fmt: skip
        result = builder.emit("MatMul", [dense.x, weights], dims, ir.DataType.FLOAT)
        return self._finished(builder, result, dense, tensors, dims)

    def _tensors(
        self, builder: Builder, dense: Dense, parts: Callable[[Levels], list[tuple[np.ndarray, str]]]
    ) -> list[ir.Value]:
        roundings: list[str] = []

        def make() -> list[tuple[np.ndarray, str]]:
            levels = quantized(dense.weights, self.form)
            roundings.append(f"{rounding_error(dense.weights, levels):.4f}")
            return parts(levels)

        tensors = self._stored.tensors(builder, dense, make)
        for rounding in roundings:
            self._roundings[tensors[0]] = rounding
        return tensors

    def _finished(
        self, builder: Builder, result: ir.Value, dense: Dense, tensors: list[ir.Value], dims: list | None
    ) -> ir.Value:
        """Record how far the weights of a product are from what they were, relative to their norm, and add its bias."""
        producer = result.producer()
        assert producer is not None
        producer.metadata_props[ROUNDING] = self._roundings[tensors[0]]
        return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)
