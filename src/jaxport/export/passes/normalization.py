"""LayerNormalization and RMSNormalization, from the many ways to write them.

The anchor is `1 / sqrt(variance + epsilon)`; the factors around it, in any order, are `x - mean(x)` (LayerNormalization)
or `x` (RMSNormalization), and scales that vary along the normalized axes alone; then a bias may be added.

1. The variance is `mean((x - mean(x))²)`, or `mean(x²) - mean(x)²`, perhaps kept from being negative.
2. For RMSNormalization it is `mean(x²)`; the operator came with opset 23.

The normalized axes have to be the last ones, of known size. With the fast variance the operator is the more exact one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.editing import Dim, constant_of, dims_of, is_op
from jaxport.export.passes.fusing import Builder, Fusion, fuse, obstacle, same_dims
from jaxport.export.passes.matching import Axis, Seen, close, over
from jaxport.export.passes.softmax import axis_attribute


def normalization(model: ir.Model) -> str:
    """Recognise LayerNormalization and RMSNormalization, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]

    def find(node: ir.Node) -> Fusion | str | None:
        return _find(node, opset) if is_op(node, "Sqrt", "Pow") else None

    return fuse(model, find)


@dataclass(frozen=True)
class Normalized:
    """What a product of factors normalizes.

    Attributes:
      op_type: the operator.
      x: what is normalized.
      axes: along which axes.
      epsilon: what is added to the variance.
      scales: the other factors.
    """

    op_type: str
    x: Seen
    axes: tuple[Axis, ...]
    epsilon: float
    scales: tuple[Seen, ...]

    def is_parameter(self, seen: Seen) -> bool:
        """Whether a value varies along the normalized axes alone, in their order."""
        along = [axis for axis in seen.axes if axis is not None]
        return along == [axis for axis in self.axes if axis in along]


def _find(anchor: ir.Node, opset: int) -> Fusion | str | None:
    reason = None
    for product in reversed(list(_products_above(anchor.outputs[0]))):
        found = _normalized(product, anchor)
        if found is not None:
            hindrance = _hindrance(found, product, opset)
            if hindrance is None:
                return _fusion(found, product)
            reason = reason or hindrance
    return reason


def _products_above(value: ir.Value) -> Iterator[ir.Value]:
    """The results of the multiplications and divisions that a value goes into, one after the other."""
    while not value.is_graph_output() and len(value.uses()) == 1:
        ((user, _),) = value.uses()
        if not is_op(user, "Mul", "Div", "Reciprocal", "Unsqueeze", "Squeeze", "Reshape"):
            return
        value = user.outputs[0]
        if is_op(user, "Mul", "Div"):
            yield value


def _normalized(product: ir.Value, anchor: ir.Node) -> Normalized | None:
    """What `product` normalizes, where `anchor` computes the deviation."""
    whole = Seen.whole(product)
    factors = [] if whole is None or whole.value is not product else list(_factors(whole, 1))
    deviations = [seen for seen, exponent in factors if seen.node is anchor and exponent == _divides(anchor)]
    others = [seen for seen, exponent in factors if seen.node is not anchor and exponent == 1]
    radicand = _radicand(deviations[0]) if len(deviations) == 1 and len(others) == len(factors) - 1 else None
    if radicand is None:
        return None
    variance, epsilon = radicand
    squared = _mean_square(variance)
    for index, seen in enumerate(others):
        scales = tuple(others[:index] + others[index + 1 :])
        centered = _centered(seen)
        if centered is not None and _is_variance(variance, seen, *centered):
            return Normalized("LayerNormalization", *centered, epsilon, scales)
        axes = None if squared is None else over(squared, seen)
        if axes is not None:
            return Normalized("RMSNormalization", seen, axes, epsilon, scales)
    return None


def _factors(seen: Seen, exponent: int) -> Iterator[tuple[Seen, int]]:
    """The factors of a product, as far as nothing else needs the products in between."""
    if seen.is_op("Reciprocal"):
        operands, exponents = seen.operands("Reciprocal"), [-exponent]
    else:
        operands, exponents = seen.operands("Mul", "Div"), [exponent, -exponent if seen.is_op("Div") else exponent]
    for given, power in zip(operands or (), exponents, strict=False):
        shared = len(given.value.uses()) > 1 or len(given.entry.uses()) > 1
        if not shared and given.is_op("Mul", "Div", "Reciprocal"):
            yield from _factors(given, power)
        elif given.scalar != 1:
            yield given, power


def _divides(anchor: ir.Node) -> int:
    """The exponent of the anchor as a factor: a square root divides, a power of -1/2 multiplies."""
    return -1 if anchor.op_type == "Sqrt" else 1


def _radicand(deviation: Seen) -> tuple[Seen, float] | None:
    """The variance, and the epsilon added to it, under the root."""
    under = (deviation.operands("Sqrt", "Pow") or [None])[0]
    if under is None or (deviation.is_op("Pow") and deviation.operands("Pow")[1].scalar != -0.5):
        return None
    found = under.commuted("Add", lambda seen: seen.scalar)
    return None if found is None else (found[1], float(found[0]))  # pyright: ignore[reportArgumentType]


def mean_of(seen: Seen) -> Seen | None:
    """The operand of a mean: the sum of known many elements divided by their number, or ReduceMean."""
    averaged = seen.reduced("ReduceMean")
    if averaged is not None:
        return averaged
    operands = seen.operands("Div") or seen.operands("Mul") or ()
    for index, total in enumerate(operands):
        factor, summed = operands[1 - index].scalar, total.reduced("ReduceSum")
        if factor and summed is not None and not (seen.is_op("Div") and index):
            count = _size(summed, total)
            expected = factor if seen.is_op("Div") else 1 / factor
            if count is not None and close(count, expected, seen.value.dtype):
                return summed
    return None


def _size(summed: Seen, total: Seen) -> int | None:
    """The number of elements that go into each sum."""
    dims = dims_of(summed.value)
    reduced = [
        d for d, axis in zip(dims or (), summed.axes, strict=True) if axis not in total.axes and axis is not None
    ]
    return math.prod(reduced) if all(isinstance(d, int) for d in reduced) else None


def _square_of(seen: Seen) -> Seen | None:
    """`x`, where `seen` is x²."""
    operands = seen.operands("Mul")
    if operands is not None:
        return operands[0] if operands[0] == operands[1] else None
    base, exponent = seen.operands("Pow") or (None, None)
    return base if exponent is not None and exponent.scalar == 2 else None


def _mean_square(seen: Seen) -> Seen | None:
    averaged = mean_of(seen)
    return None if averaged is None else _square_of(averaged)


def _centered(seen: Seen) -> tuple[Seen, tuple[Axis, ...]] | None:
    """`x` and the axes of the mean, where `seen` is x - mean(x)."""
    x, mean = seen.operands("Sub") or (None, None)
    averaged = None if mean is None else mean_of(mean)
    axes = None if averaged is None else over(averaged, x)
    return None if axes is None else (x, axes)  # pyright: ignore[reportReturnType]


def _is_variance(variance: Seen, centered: Seen, x: Seen, axes: tuple[Axis, ...]) -> bool:
    """Whether `variance` is that of `x` along `axes`, where `centered` is x - mean(x)."""
    clamped = variance.commuted("Max", lambda seen: seen.scalar == 0)
    variance = variance if clamped is None else clamped[1]
    deviation = _mean_square(variance)
    if deviation is not None:
        return over(deviation, centered) == axes
    squares, square = variance.operands("Sub") or (None, None)
    squared = None if squares is None else _mean_square(squares)
    mean = None if square is None else _square_of(square)
    averaged = None if mean is None else mean_of(mean)
    return squared is not None and averaged is not None and over(squared, x) == over(averaged, x) == axes


def _hindrance(found: Normalized, product: ir.Value, opset: int) -> str | None:
    """Why the operator cannot compute this, or None."""
    dims, x = dims_of(product) or [], found.x.entry
    first = min(axis for axis in found.axes if isinstance(axis, int))
    if any(axis not in found.axes and dim != 1 for axis, dim in enumerate(dims) if axis >= first):
        return "the normalized axes are not the last ones"
    if not same_dims(x, product):
        return f"`{x.name}` is broadcast to the shape of the result"
    if len(found.scales) > 1 or not all(map(found.is_parameter, found.scales)):
        return "it is scaled along other axes than the normalized ones"
    return obstacle(found.op_type, x.dtype, opset, [found.epsilon])


def _fusion(found: Normalized, product: ir.Value) -> Fusion:
    result, bias = product, None
    if found.op_type == "LayerNormalization" and not product.is_graph_output() and len(product.uses()) == 1:
        ((user, place),) = product.uses()
        if is_op(user, "Add") and same_dims(user.outputs[0], product):
            added = (Seen.whole(user.outputs[0]).operands("Add") or (None, None))[1 - place]
            if added is not None and found.is_parameter(added):
                result, bias = user.outputs[0], added
    given = [found.x, *found.scales, *([bias] if bias else [])]
    dims = dims_of(product) or []
    first = min(axis for axis in found.axes if isinstance(axis, int))

    def build(builder: Builder) -> ir.Value:
        if found.scales:
            scale = _parameter(builder, found.scales[0], dims, first)
        else:
            dtype = found.x.entry.dtype.numpy()  # pyright: ignore[reportOptionalMemberAccess]
            scale = builder.constant(np.ones([int(d) for d in dims[first:]], dtype), "ones")
        inputs = [found.x.entry, scale, *([_parameter(builder, bias, dims, first)] if bias else [])]
        axis = axis_attribute(first, found.x.entry)
        return builder.emit(found.op_type, inputs, dims, axis=axis, epsilon=found.epsilon)

    return Fusion(found.op_type, result, [seen.value for seen in given], build)


def _parameter(builder: Builder, seen: Seen, dims: list[Dim], first: int) -> ir.Value:
    """A scale or bias in the shape of the normalized axes."""
    shape = dims[first:]
    array = constant_of(seen.value)
    wanted = [d if axis in seen.axes else 1 for axis, d in enumerate(dims)][first:]
    if array is None:
        return builder.expanded(builder.viewed(seen.value, wanted), shape)
    if list(array.shape) == shape:
        return seen.value
    return builder.constant(np.broadcast_to(array.reshape(wanted), shape), seen.value.name or "parameter")
