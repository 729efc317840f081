"""Fold factors per channel into the weights before them: layer scale, and BatchNormalization by known statistics.

1. (x W + b) · factors, of a MatMul or a Conv, with or without a bias: x (W · factors) + b · factors.
2. BatchNormalization of a Conv, all of whose statistics are constants: the Conv alone.

Not a default pass, since the weights keep their names but not the values that they have in the model. Use it if the
file is only for a runtime: `to_onnx(fn, specs, passes=[*passes.DEFAULT, passes.channel_factors])`.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from jaxport.graph.editing import (
    Editor,
    constant_of,
    dims_of,
    graphs,
    is_op,
    operand,
    permutation,
    rank_of,
    source,
    substitute,
)
from jaxport.graph.fusing import report

EXACT = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def channel_factors(model: ir.Model) -> str:
    """Fold factors per channel into weights, in the graph, its subgraphs and its functions."""
    editor, made = Editor(model), collections.Counter()
    declined: dict[str, list[str | None]] = collections.defaultdict(list)
    for graph in graphs(model):
        for node in list(graph):
            scaled = _scaled(node) if node.graph is not None else None
            if scaled is None:
                continue
            hindrance = scaled.hindrance()
            if hindrance is None:
                made[node.op_type] += 1
                scaled.take_in(editor)
            else:
                declined[hindrance].append(node.outputs[0].name)
    if made:
        common.RemoveUnusedNodesPass()(model)
    return report({f"{name} taken into weights": count for name, count in made.items()}, declined)


@dataclass(frozen=True)
class Scaled:
    """A product with weights, and the scale and shift that follow it per channel.

    Attributes:
      product: a MatMul or a Conv.
      bias: the Add after the MatMul, or None.
      moved: the Transpose after the Conv, or None.
      last: the node that scales.
      factors, shift: one number per channel.
    """

    product: ir.Node
    bias: ir.Node | None
    moved: ir.Node | None
    last: ir.Node
    factors: np.ndarray
    shift: np.ndarray

    def hindrance(self) -> str | None:
        """Return why the factors cannot be folded, or None."""
        weights, offset = constant_of(self.product.inputs[1]), self.offset()
        nodes = [node for node in (self.product, self.bias, self.moved) if node is not None]
        if any(len(node.outputs[0].uses()) > 1 or node.outputs[0].is_graph_output() for node in nodes):
            return "what is scaled is used elsewhere too"
        if weights is None or offset is None:
            return "the weights are not constant"
        if len(source(self.product, 1).uses()) > 1:
            return "the weights are used elsewhere too"
        if self.last.outputs[0].dtype not in EXACT:
            return "it is in half precision"
        finite = all(np.isfinite(a).all() for a in (self.factors, self.shift, weights, offset))
        return None if finite else "a factor or weight is not finite"

    def offset(self) -> np.ndarray | None:
        """Return the bias, one number per channel; None if it is not constant."""
        node, place = (self.product, 2) if self.bias is None else (self.bias, 1)
        bias = operand(node, place)
        if bias is None or (self.bias is None and is_op(self.product, "MatMul")):
            return np.zeros_like(self.factors)
        return _per_channel(bias, len(self.factors), len(dims_of(node.outputs[0]) or ()), -1 if self.bias else None)

    def take_in(self, editor: Editor) -> None:
        """Multiply the weights, and remove the node that scales."""
        weights, offset = constant_of(self.product.inputs[1]), self.offset()
        assert weights is not None
        assert offset is not None
        along = self.factors if is_op(self.product, "MatMul") else self.factors.reshape(-1, *[1] * (weights.ndim - 1))
        editor.replace_constant(self.product, 1, weights * along)
        offset = offset * self.factors + self.shift
        if self.bias is not None:
            editor.replace_constant(self.bias, 1, offset)
        elif operand(self.product, 2) is not None:
            editor.replace_constant(self.product, 2, offset)
        elif offset.any():
            self.product.resize_inputs(3)
            self.product.replace_input_with(2, editor.constant(self.product.graph, offset, f"{self.product.name}/bias"))
        substitute(self.last.outputs[0], source(self.last))


def _scaled(node: ir.Node) -> Scaled | None:
    """Return the product with weights whose channels a node scales."""
    if is_op(node, "BatchNormalization"):
        before = source(node).producer()
        vectors = [array for value in node.inputs[1:] if (array := constant_of(value)) is not None]
        if not is_op(before, "Conv") or before.graph is not node.graph or len(vectors) < 4:
            return None
        scale, bias, mean, variance = vectors
        factors = scale / np.sqrt(variance + node.attributes["epsilon"].as_float())
        return Scaled(before, None, None, node, factors, bias - mean * factors)
    if not is_op(node, "Mul"):
        return None
    before, bias, moved = source(node).producer(), None, None
    if is_op(before, "Transpose") and is_op(source(before).producer(), "Conv"):
        before, moved = source(before).producer(), before
    elif is_op(before, "Add") and is_op(source(before).producer(), "MatMul"):
        before, bias = source(before).producer(), before
    dims, array = dims_of(node.outputs[0]), constant_of(node.inputs[1])
    if array is None or dims is None or dims != dims_of(source(node)) or not is_op(before, "MatMul", "Conv"):
        return None
    axis = -1 if is_op(before, "MatMul") else 1 if moved is None else permutation(moved).index(1)
    channels, matrix = dims[axis], not is_op(before, "MatMul") or rank_of(before.inputs[1]) == 2
    if before.graph is not node.graph or not isinstance(channels, int) or not matrix:
        return None
    factors = _per_channel(node.inputs[1], channels, len(dims), axis)
    return None if factors is None else Scaled(before, bias, moved, node, factors, np.zeros_like(factors))


def _per_channel(value: ir.Value | None, channels: int, rank: int, axis: int | None) -> np.ndarray | None:
    """Return a constant that varies along one axis only (None: a vector) as a vector with a number per channel."""
    array = constant_of(value)
    if array is None or array.ndim > rank:
        return None
    shape = [1] * (rank - array.ndim) + list(array.shape) if axis is not None else list(array.shape)
    sizes = [size for place, size in enumerate(shape) if axis is None or place != axis % rank]
    if (axis is None and shape != [channels]) or (axis is not None and any(size != 1 for size in sizes)):
        return None
    return np.broadcast_to(array.ravel(), (channels,))
