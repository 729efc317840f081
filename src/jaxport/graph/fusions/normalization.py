"""Recognise LayerNormalization and RMSNormalization in the many ways to write them.

It is a product of factors in any order: `1 / sqrt(variance + epsilon)`, `x - mean(x)` (LayerNormalization) or `x`
(RMSNormalization), and a scale that varies along the normalized axes only; then a bias may be added.

1. The variance is `mean((x - mean(x))²)`, or `mean(x²) - mean(x)²`, perhaps clamped to be non-negative.
2. For RMSNormalization it is `mean(x²)`; the operator needs opset 23.

In float16 the operator takes the place of the casts around it, too: it computes in float32. Where the runtime has no
kernel in half precision, the casts stay, and nothing is rounded between them.

The normalized axes have to be the last ones, of known size. If the program uses the fast variance, the operator is more
exact. Normalization over positions, and groups of channels with them, is InstanceNormalization: see
`group_normalization`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Dim, begins_at, constant_of, dims_of, is_op, is_weight, source, static_dims
from jaxport.graph.fusing import Builder, Fusion, fuse, obstacle, same_but_for_ones
from jaxport.graph.fusions.group_normalization import grouped
from jaxport.graph.fusions.normalized import PRODUCT, SUM, Normalized, normalized
from jaxport.graph.fusions.scores import HALVES
from jaxport.graph.fusions.softmax import axis_attribute
from jaxport.graph.matching import Seen


@begins_at({"Pow", "Sqrt"})
def normalization(model: ir.Model) -> str:
    """Recognise LayerNormalization, RMSNormalization, GroupNorm and InstanceNorm, in the graph, its subgraphs and
    functions.
    """
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
    return fusion or _hindrance(match, match.scaled.result, opset) or _fusion(match, opset)


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


def _fusion(match: Normalized, opset: int) -> Fusion:
    result = product = match.scaled.result
    bias = None
    if match.op_type == "LayerNormalization":
        result, bias = match.scaled.with_bias(match.is_parameter)
    parameters = [*match.scales, *([bias] if bias else [])]
    x, result = _without_casts(match.x.entry, result, parameters, match.op_type, opset)
    dims, dtype = dims_of(product) or [], x.dtype
    assert dtype is not None
    first = min(axis for axis in match.axes if isinstance(axis, int))

    def build(builder: Builder) -> ir.Value:
        if match.scales:
            scale = _parameter(builder, match.scales[0], dims, first)
        else:
            shape = static_dims(dims[first:])
            assert shape is not None
            scale = builder.constant(np.ones(shape, dtype.numpy()), "ones")
        operands = [scale, *([_parameter(builder, bias, dims, first)] if bias else [])]
        operands = [builder.viewed(x, dims), *(builder.cast(each, dtype) for each in operands)]
        normal = builder.emit(
            match.op_type, operands, dims, dtype, axis=axis_attribute(first, dims), epsilon=match.epsilon
        )
        return builder.cast(normal, result.dtype)

    return Fusion(match.op_type, result, [match.x.value, x, *(seen.value for seen in parameters)], build)


def _without_casts(
    x: ir.Value, result: ir.Value, parameters: Sequence[Seen], op_type: str, opset: int
) -> tuple[ir.Value, ir.Value]:
    """Return the half-precision value that is cast before it is normalized, and the result that is cast back.

    Return `x` and `result` themselves if nothing is cast, or the operator has no kernel for these.
    """
    before = x.producer()
    if not is_op(before, "Cast") or x.dtype is not ir.DataType.FLOAT:
        return x, result
    narrow, users = source(before), [] if result.is_graph_output() else list(result.consumers())
    half = narrow.dtype
    if half not in HALVES or half is None or obstacle(op_type, half, opset) is not None or dims_of(narrow) is None:
        return x, result
    if not all(_fits(seen.value, half) for seen in parameters):
        return x, result
    if result.dtype is half:
        return narrow, result
    back = users[0].outputs[0] if len(users) == 1 and is_op(users[0], "Cast") else None
    return (narrow, back) if back is not None and back.dtype is half else (x, result)


def _fits(value: ir.Value, half: ir.DataType) -> bool:
    """Whether a parameter is in half precision, or cast from it."""
    if value.dtype is half or (is_op(cast := value.producer(), "Cast") and source(cast).dtype is half):
        return True
    array = None if is_weight(value) else constant_of(value)  # the elements of a weight may change
    return array is not None and bool((array.astype(half.numpy()).astype(array.dtype) == array).all())


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
