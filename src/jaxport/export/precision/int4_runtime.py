"""Weights in 4 bits for ONNX Runtime's own operators other than MatMulNBits.

1. Experts: the MoE that a mixture of experts became is a QMoE. Its kernel on CPUs divides the shares of the chosen
  experts by
   their sum even if it is told not to, unless it gets the shares beside the scores: then it takes them as they are.
2. A table whose transpose is the last matrix of the model: GatherBlockQuantized looks up in the tensor that MatMulNBits
  multiplies by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.constants import known
from jaxport.export.precision.dense import LARGE, Dense
from jaxport.export.precision.int4_levels import GROUPS, Int4, pairs, quantized, rounding_error
from jaxport.graph.editing import constant_of, dims_of, integer, is_op, permutation, source
from jaxport.graph.fusing import Builder, Fusion
from jaxport.onnx_facts import EXPERT_LAYER, QUANTIZED_EXPERT_LAYER, RESHAPING, RUNTIME_DOMAIN

#: The oldest release of ONNX Runtime that looks up rows in packed bytes.
PACKED_TABLES_SINCE = "1.28"
ROUNDING = "jaxport.rounding"
"""The key of the metadata of a product that says how far its weights of 4 bits are from those of the function."""


def is_expert_layer(node: ir.Node) -> bool:
    """Whether a node is ONNX Runtime's mixture of experts in floats."""
    return node.op_type == EXPERT_LAYER and node.domain == RUNTIME_DOMAIN


def chooses_experts(node: ir.Node) -> bool:
    """Whether the results of a node are the scores by which a mixture of experts chooses."""
    waiting, seen = list(node.outputs), set[ir.Value]()
    while waiting:
        value = waiting.pop()
        for user, place in value.uses():
            if is_expert_layer(user) and place == 1:
                return True
            if is_op(user, *RESHAPING, "Add", "Slice") and user.outputs[0] not in seen:
                seen.add(user.outputs[0])
                if len(seen) < len(GROUPS):
                    waiting.append(user.outputs[0])
    return False


class Experts:
    """Mixtures of experts in 4 bits."""

    def __init__(self, form: Int4) -> None:
        self.form = form

    def find(self, node: ir.Node) -> Fusion | str:
        """Return the fusion of a mixture of experts, or why its matrices stay as they are."""
        memory: dict[ir.Value, np.ndarray | None] = {}
        matrices = [known(source(node, place), memory, weights=True, largest=None) for place in (2, 4)]
        first, last = matrices
        if first is None or last is None or not all(np.isfinite(one).all() for one in matrices if one is not None):
            return "its matrices are not stored, or not finite"
        group = self._group(last.shape[1], last.shape[2])
        if group is None:
            return "the sizes of its experts are no multiples of a group"
        leaves = [source(node), source(node, 1), *(value for value in node.inputs[2:] if value is not None)]
        form = Int4(group=group, symmetric=self.form.symmetric)
        return Fusion(
            QUANTIZED_EXPERT_LAYER, node.outputs[0], leaves, lambda builder: _experts(builder, node, first, last, form)
        )

    def _group(self, *depths: int) -> int | None:
        """Return the size of the groups: both matrices have the same, and zero points more than one group of a
        column.
        """
        fitting = [
            size
            for size in GROUPS
            if size <= self.form.group
            and all(depth % size == 0 for depth in depths)
            and (self.form.symmetric or size < min(depths))
        ]
        return max(fitting, default=None)


def _experts(builder: Builder, node: ir.Node, first: np.ndarray, last: np.ndarray, form: Int4) -> ir.Value:
    """Emit a mixture of experts whose matrices are in 4 bits."""
    x, scores, *_ = node.inputs
    biases = [node.inputs[place] if place < len(node.inputs) else None for place in (3, 5)]
    errors, stored = [], []
    for matrices, place in ((first, 2), (last, 4)):
        tensors, error = _stacked(matrices, form)
        name = _name_behind(source(node, place))
        stored.append([builder.constant(array, f"{name}.{end}") for array, end in tensors])
        errors.append(error)
    (one, one_scale, *one_zero), (two, two_scale, *two_zero) = stored
    shares = None
    if not integer(node, "normalize_routing_weights", 0) and scores is not None:
        shares = builder.emit("Softmax", [scores], dims_of(scores), ir.DataType.FLOAT, axis=-1)
    operands = [x, scores, one, one_scale, biases[0], two, two_scale, biases[1], None, None, None]
    operands += [*(one_zero or [None]), *(two_zero or [None]), None, shares]
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Any] = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes |= {"expert_weight_bits": 4, "block_size": form.group}
    dims = dims_of(node.outputs[0])
    result = builder.emit(QUANTIZED_EXPERT_LAYER, operands, dims, ir.DataType.FLOAT, RUNTIME_DOMAIN, **attributes)
    producer = result.producer()
    assert producer is not None
    producer.metadata_props[ROUNDING] = f"{max(errors):.4f}"
    return result


def _stacked(matrices: np.ndarray, form: Int4) -> tuple[list[tuple[np.ndarray, str]], float]:
    """Return matrices [E, N, K] in 4 bits with the ends of the tensors' names, and the largest relative error of
    one.
    """
    levels = [quantized(matrix.T, form) for matrix in matrices]
    error = max(rounding_error(matrix.T, stored) for matrix, stored in zip(matrices, levels, strict=True))
    count, columns, depth = matrices.shape
    packed = np.stack([pairs(one.levels) for one in levels]).reshape(count, columns, depth // 2)
    tensors = [(packed, "int4"), (np.stack([one.scale for one in levels]), "scale")]
    if not form.symmetric:
        tensors.append((np.stack([pairs(one.zero) for one in levels]), "zero_point"))
    return tensors, error


def _name_behind(value: ir.Value) -> str:
    """Return the name of the first weight that a value is computed from."""
    while constant_of(value) is None and (node := value.producer()) is not None:
        value = source(node)
    return value.name or "experts"


class TiedTables:
    """Tables in 4 bits that are looked up in, and that a product multiplies by the transpose of."""

    def __init__(self, form: Int4, where: Callable[[ir.Node], bool]) -> None:
        self.form, self._where = form, where
        self._stored: dict[ir.Value, list[ir.Value]] = {}
        self._errors: dict[ir.Value, str] = {}

    def find(self, node: ir.Node) -> Fusion | None:
        """Return the fusion of a node that looks up rows of such a table; None for any other node."""
        if not is_op(node, "Gather") or integer(node, "axis", 0) != 0 or not self.holds(source(node)):
            return None
        table, ids, dims = source(node), source(node, 1), dims_of(node.outputs[0])
        return Fusion(
            "GatherBlockQuantized", node.outputs[0], [table, ids], lambda builder: self._rows(builder, table, ids, dims)
        )

    def table_of(self, dense: Dense) -> ir.Value | None:
        """Return the table whose transpose a product multiplies by, if it is stored in 4 bits."""
        producer = dense.held.producer()
        if not is_op(producer, "Transpose") or permutation(producer) != (1, 0) or dense.turned:
            return None
        table = source(producer)
        return table if self.holds(table) and any(is_op(user, "Gather") for user in table.consumers()) else None

    def holds(self, table: ir.Value) -> bool:
        """Whether a value is a large table of finite floats, both looked up in and multiplied by."""
        array = constant_of(table) if table.is_initializer() and table.dtype is ir.DataType.FLOAT else None
        if array is None or array.ndim != 2 or array.size < LARGE or array.shape[1] % self.form.size(array.shape[1]):
            return False
        products = [
            user
            for transposed in table.consumers()
            if is_op(transposed, "Transpose") and permutation(transposed) == (1, 0)
            for user in transposed.outputs[0].consumers()
        ]
        fitting = bool(products) and all(is_op(one, "MatMul") and self._where(one) for one in products)
        return fitting and bool(np.isfinite(array).all())

    def _rows(self, builder: Builder, table: ir.Value, ids: ir.Value, dims: Sequence | None) -> ir.Value:
        packed, scale, *zero = self._tensors(builder, table)
        size = self.form.size(int(str((dims_of(table) or [0, 0])[1])))
        return builder.emit(
            "GatherBlockQuantized", [packed, ids, scale, *zero], dims, ir.DataType.FLOAT, RUNTIME_DOMAIN,
            bits=4, block_size=size, gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def product(self, builder: Builder, dense: Dense, table: ir.Value, dims: list | None, accuracy: int) -> ir.Value:
        """Emit a product with the transpose of a table."""
        packed, *others = self._tensors(builder, table)
        depth, count = dense.weights.shape
        size = self.form.size(depth)
        shape = [count, depth // size, size // 2]
        blocks = builder.emit("Reshape", [packed, builder.integers(shape, "shape")], shape, ir.DataType.UINT8)
        result = builder.emit(
            "MatMulNBits", [dense.x, blocks, *others], dims, ir.DataType.FLOAT, RUNTIME_DOMAIN,
            K=depth, N=count, bits=4, block_size=size, accuracy_level=accuracy,
        )  # fmt: skip
        producer = result.producer()
        assert producer is not None
        producer.metadata_props[ROUNDING] = self._errors[table]
        return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)

    def _tensors(self, builder: Builder, table: ir.Value) -> list[ir.Value]:
        """Return a table in 4 bits: the packed levels, the scales, and the zero points, a row for each of its rows."""
        if table not in self._stored:
            array = constant_of(table)
            assert array is not None
            levels = quantized(array.T, self.form)
            self._errors[table] = f"{rounding_error(array.T, levels):.4f}"
            made = [(pairs(levels.levels).reshape(len(array), -1), "int4"), (levels.scale, "scale")]
            if not self.form.symmetric:
                made.append((pairs(levels.zero), "zero_point"))
            self._stored[table] = [
                builder.editor.constant(builder.root, part, f"{table.name}.{end}") for part, end in made
            ]
        return self._stored[table]
