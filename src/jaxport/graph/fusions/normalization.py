"""Recognise LayerNormalization and RMSNormalization in the many ways to write them.

It is a product of factors in any order: `1 / sqrt(variance + epsilon)`, `x - mean(x)` (LayerNormalization) or `x`
(RMSNormalization), and a scale that varies along the normalized axes only; then a bias may be added.

1. The variance is `mean((x - mean(x))²)`, or `mean(x²) - mean(x)²`, perhaps clamped to be non-negative.
2. For RMSNormalization it is `mean(x²)`; the operator needs opset 23.

The normalized axes have to be the last ones, of known size. If the program uses the fast variance, the operator is more
exact. Normalization over positions, and groups of channels with them, is InstanceNormalization: see
`group_normalization`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import (
    Dim,
    constant_of,
    dims_of,
    is_weight,
    numpy_dtype,
    static_dims,
)
from jaxport.graph.fusing import Builder, Fusion, fuse, obstacle, same_but_for_ones
from jaxport.graph.fusions.group_normalization import grouped
from jaxport.graph.fusions.normalized import PRODUCT, SUM, Normalized, normalized
from jaxport.graph.fusions.softmax import axis_attribute
from jaxport.graph.matching import Seen


def normalization(model: ir.Model) -> str:
    """Recognise LayerNormalization, RMSNormalization, GroupNorm and InstanceNorm, in the graph, its subgraphs and functions."""
    opset = model.opset_imports[""]
    return fuse(model, lambda node: _find(node, opset), PRODUCT, SUM)


def _find(node: ir.Node, opset: int) -> Fusion | str | None:
    first: Fusion | str | None = None
    for match in normalized(node):
        fusion = _of(match, opset)
        if isinstance(fusion, Fusion):
            return fusion
        first = first or fusion
    inside = (value.producer() for value in node.inputs if value is not None)
    return None if first is None or any(any(normalized(each)) for each in inside) else first  # a factor is the match


def _of(match: Normalized, opset: int) -> Fusion | str:
    fusion = grouped(match, opset)
    if isinstance(fusion, Fusion):
        return fusion
    return fusion or _hindrance(match, match.scaled.result, opset) or _fusion(match)


def _hindrance(match: Normalized, product: ir.Value, opset: int) -> str | None:
    """Return why the operator cannot compute this, or None."""
    dims, x = dims_of(product) or [], match.x.entry
    if not all(isinstance(axis, int) for axis in match.axes):
        return "a part of an axis is normalized"
    first = min(axis for axis in match.axes if isinstance(axis, int))
    if any(axis not in match.axes and dim != 1 for axis, dim in enumerate(dims) if axis >= first):
        return "the normalized axes are not the last ones"
    if static_dims(dims[first:]) is None:
        return "the sizes of the normalized axes are open"
    if not same_but_for_ones(x, product):
        return f"`{x.name}` is broadcast to the shape of the result"
    bias = [] if match.scaled.bias is None else [match.scaled.bias]
    if len(match.scales) > 1 or not all(map(match.is_parameter, [*match.scales, *bias])):
        return "it is scaled along other axes than the normalized ones"
    return obstacle(match.op_type, x.dtype, opset, [match.epsilon])


def _fusion(match: Normalized) -> Fusion:
    result = product = match.scaled.result
    bias = None
    if match.op_type == "LayerNormalization":
        result, bias = match.scaled.with_bias(match.is_parameter)
    leaves = [match.x, *match.scales, *([bias] if bias else [])]
    dims = dims_of(product) or []
    first = min(axis for axis in match.axes if isinstance(axis, int))

    def build(builder: Builder) -> ir.Value:
        if match.scales:
            scale = _parameter(builder, match.scales[0], dims, first)
        else:
            shape = static_dims(dims[first:])
            assert shape is not None
            scale = builder.constant(np.ones(shape, numpy_dtype(match.x.entry)), "ones")
        x, shift = builder.viewed(match.x.entry, dims), [_parameter(builder, bias, dims, first)] if bias else []
        axis = axis_attribute(first, dims)
        return builder.emit(match.op_type, [x, scale, *shift], dims, axis=axis, epsilon=match.epsilon)

    return Fusion(match.op_type, result, [seen.value for seen in leaves], build)


def _parameter(builder: Builder, seen: Seen, dims: list[Dim], first: int) -> ir.Value:
    """Return a scale or bias in the shape of the normalized axes."""
    shape = dims[first:]
    array = constant_of(seen.value)
    wanted = [d if axis in seen.axes else 1 for axis, d in enumerate(dims)][first:]
    if array is None or (is_weight(seen.value) and static_dims(wanted) != static_dims(shape)):
        return builder.expanded(builder.viewed(seen.value, wanted), shape)
    if list(array.shape) == shape:
        return seen.value
    own, whole = static_dims(wanted), static_dims(shape)
    assert own is not None
    assert whole is not None
    return builder.constant(np.broadcast_to(array.reshape(own), whole), seen.value.name or "parameter", seen.value)
