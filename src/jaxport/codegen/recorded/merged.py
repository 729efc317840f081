"""What ONNX Runtime's optimizers merge, taken apart into operators that the other fusions know.

Before and after:

    Attention(x, kernel, bias)   →   MultiHeadAttention(*Split(x @ kernel + bias))
    FusedMatMul(a, b, transB=1, alpha=0.125)   →   (a @ bᵀ) * 0.125
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.codegen.recorded.fusions import RUNTIME, combined
from jaxport.graph.editing import Dim, dims_of, numpy_dtype, operand, operator_name, source, sources, static_dims
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse


def products(model: ir.Model) -> str:
    """Replace ONNX Runtime's FusedMatMul of activations by what it fuses, which the other fusions know."""
    return fuse(model, _product)


def _product(node: ir.Node) -> Fusion | None:
    result, dims = node.outputs[0], [dims_of(value) or () for value in node.inputs]
    options = {name: attribute.value for name, attribute in node.attributes.items()}
    if operator_name(node) != f"{RUNTIME}.FusedMatMul" or min(map(len, dims)) < 3:
        return None
    if options.get("transBatchA") or options.get("transBatchB") or result.dtype is not ir.DataType.FLOAT:
        return None

    def build(builder: Builder) -> ir.Value:
        def operand(place: int, name: str) -> ir.Value:
            *batch, row, column = range(len(dims[place]))
            order = [*batch, column, row] if options.get(name) else [*batch, row, column]
            return builder.transposed(source(node, place), order)

        product = builder.emit("MatMul", [operand(0, "transA"), operand(1, "transB")], dims_of(result))
        alpha = builder.constant(np.asarray(options.get("alpha", 1), np.float32), "alpha")
        return builder.emit("Mul", [product, alpha], dims_of(result))

    return Fusion("MatMul", result, sources(node), build)


def unmerged(model: ir.Model) -> str:
    """Replace what ONNX Runtime merges into its attention by operators: projections, biases, and masks of keys.

    What is left is its MultiHeadAttention of queries, keys, values, and perhaps a term of the scores.
    """
    return fuse(model, _unmerged, Anchor(at=("Attention", "MultiHeadAttention"), domain=RUNTIME))


def _unmerged(node: ir.Node) -> Fusion | None:
    merged = Merged.of(node)
    if merged is None:
        return None
    return Fusion("MultiHeadAttention", node.outputs[0], [value for value in node.inputs if value], merged.emit)


@dataclass(frozen=True)
class Merged:
    """An attention of ONNX Runtime.

    Attributes:
      operands: the queries, the keys and the values; or the one value that they are projected from.
      kernel: the matrix of the projection, if there is one.
      widths: the sizes of queries, keys and values along the last axis.
      bias: one vector for all of them.
      mask: a number for each key of a batch, or for each query and key, positive if it is visible; or how many are.
      term: what is added to the scores.
      hidden: what is added to the scores of hidden keys.
    """

    operands: Sequence[ir.Value]
    kernel: ir.Value | None
    widths: Sequence[int]
    bias: ir.Value | None
    mask: ir.Value | None
    term: ir.Value | None
    hidden: float

    @classmethod
    def of(cls, node: ir.Node) -> Merged | None:
        """Return the attention that a node computes; None if nothing is merged into it, or more than this."""
        options = {name: attribute.value for name, attribute in node.attributes.items()}
        first, second, third, fourth, fifth, term = (operand(node, place) for place in range(6))
        if node.op_type == "Attention":  # the fifth is a cache
            operands, kernel, bias, mask, is_cached = [first], second, third, fourth, fifth is not None
            widths = options.get("qkv_hidden_sizes") or [_last_size(kernel) // 3] * 3
        else:
            operands, kernel, bias, mask, is_cached = [first, second, third], None, fourth, fifth, False
            widths = [*map(_last_size, operands)]
        if is_cached or any(node.inputs[6:]) or options.get("do_rotary") or 0 in widths:
            return None
        if node.outputs[0].dtype is not ir.DataType.FLOAT or not (kernel or bias or mask):
            return None
        sequences = [value for value in operands if value is not None and len(dims_of(value) or ()) == 3]
        low = max(options.get("mask_filter_value", -10000.0), float(np.finfo(np.float32).min))
        merged = cls(sequences, kernel, widths, bias, mask, term, low)
        is_whole = len(sequences) == len(operands) and (mask is None or merged.mask_dims is not None)
        return merged if is_whole else None

    @property
    def mask_dims(self) -> list[Dim] | None:
        """The shape in which the mask broadcasts to the scores; None if it has another form."""
        batch, queries = (dims_of(self.operands[0]) or [0, 0])[:2]
        keys = (dims_of(self.operands[-1]) or [0, 0])[1]
        forms = [
            ([batch], [batch, 1, 1, 1]),
            ([batch, keys], [batch, 1, 1, keys]),
            ([batch, queries, keys], [batch, 1, queries, keys]),
        ]
        return next((wide for own, wide in forms if own == dims_of(self.mask)), None)

    def emit(self, builder: Builder) -> ir.Value:
        """Emit the operators and ONNX Runtime's MultiHeadAttention of what they compute; return the result."""
        attributes = builder.node.attributes
        kept = {name: attributes[name].value for name in ("num_heads", "scale", "unidirectional") if name in attributes}
        terms = [value for value in (self.term, self._emit_mask(builder)) if value is not None]
        inputs = [*self._emit_operands(builder), None, None, combined(builder, "Add", terms)]
        dims = dims_of(builder.node.outputs[0])
        return builder.emit("MultiHeadAttention", inputs, dims, domain=RUNTIME, **kept)

    def _emit_operands(self, builder: Builder) -> Sequence[ir.Value]:
        def parts_of(value: ir.Value) -> list[ir.Value]:
            outer = (dims_of(value) or ())[:-1]
            stamps = [(value.dtype, [*outer, width]) for width in self.widths]
            return builder.emit_many("Split", [value, builder.integers(self.widths, "widths")], stamps, axis=len(outer))

        def added(value: ir.Value, bias: ir.Value | None) -> ir.Value:
            return value if bias is None else builder.emit("Add", [value, bias], dims_of(value))

        if self.kernel is not None:
            dims = [*(dims_of(self.operands[0]) or ())[:2], sum(self.widths)]
            return parts_of(added(builder.emit("MatMul", [self.operands[0], self.kernel], dims), self.bias))
        biases = [None] * 3 if self.bias is None else parts_of(self.bias)
        return [*map(added, self.operands, biases)]

    def _emit_mask(self, builder: Builder) -> ir.Value | None:
        dims = self.mask_dims
        if self.mask is None or dims is None:
            return None
        mask, dtype = builder.viewed(self.mask, dims), numpy_dtype(self.mask)
        numbers = [builder.constant(np.asarray(number, np.float32), "number") for number in (0, self.hidden)]
        zero, one = (builder.constant(np.asarray(number, dtype), "number") for number in (0, 1))
        least = zero
        if len(dims_of(self.mask) or ()) == 1:  # a key is visible if fewer than so many are before it
            keys = (dims_of(self.operands[-1]) or [0, 0])[1]
            count = builder.cast(builder.viewed(builder.shape([keys]), []), self.mask.dtype)
            least, dims = builder.emit("Range", [zero, count, one], [keys], self.mask.dtype), [dims[0], 1, 1, keys]
        visible = builder.emit("Greater", [mask, least], dims, ir.DataType.BOOL)
        return builder.emit("Where", [visible, *numbers], dims)


def _last_size(value: ir.Value | None) -> int:
    """Return the size of the last axis; zero if it is not known."""
    (size,) = static_dims((dims_of(value) or [None])[-1:]) or [0]
    return size
