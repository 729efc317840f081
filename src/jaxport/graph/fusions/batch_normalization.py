"""Recognise BatchNormalization in evaluation: a product with `1 / sqrt(variance + epsilon)` of known statistics.

The factors are those of `normalized`, but mean and variance are weights along the axis of the channels. The operator
wants channels second. If they are elsewhere, it pays off for images, and next to a Transpose such as those around
convolutions.

Runtimes scale, then shift, so the result is exact to the rounding of `x`, not of `x - mean`. If the mean is many
standard deviations away from zero, that is much less exact; so mean and variance have to be constants, and the ratio
moderate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, dims_of, is_op, numpy_dtype
from jaxport.graph.fusing import Builder, Fusion, fuse, obstacle, same_dims
from jaxport.graph.fusions.normalized import PRODUCT, SUM, Scaling, scalings
from jaxport.graph.matching import Seen

MOST_DEVIATIONS = 30
"""The largest mean, in standard deviations: the result loses as many times the rounding error of its type."""


Known = Callable[[ir.Value], np.ndarray | None]
"""Returns the array of a value that does not depend on the inputs, or None."""


def batch_normalization(model: ir.Model, known: Known = constant_of) -> str:
    """Recognise BatchNorm that uses its running statistics, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    return fuse(model, lambda node: _find(node, opset, known), PRODUCT, SUM)


@dataclass(frozen=True)
class BatchNormalized:
    """A value that is normalized by known statistics.

    Attributes:
      x: the value.
      channel: the axis along which the statistics vary.
      mean: the mean; the variance is `scaled.variance`.
      scales: the other factors, at most one.
      scaled: all factors, and the result.
    """

    x: Seen
    channel: int
    mean: Seen
    scales: tuple[Seen, ...]
    scaled: Scaling


def _find(node: ir.Node, opset: int, known: Known) -> Fusion | str | None:
    match = next((match for scaled in scalings(node) if (match := _normalized(scaled)) is not None), None)
    if match is None:
        return None
    result = match.scaled.result
    if not same_dims(match.x.entry, result):
        return f"`{match.x.entry.name}` is broadcast to the shape of the result"
    if not _is_worth_moving(match.x.entry, match.channel):
        return "the channels are not the second axis"
    hindrance = obstacle("BatchNormalization", match.x.value.dtype, opset, [match.scaled.epsilon]) or _imprecision(
        match, known
    )
    return hindrance or _fusion(match, opset)


def _normalized(scaled: Scaling) -> BatchNormalized | None:
    (channel, *more) = [axis for axis in scaled.variance.axes if axis is not None] or [None]
    if more or not isinstance(channel, int):
        return None
    factors, bias = scaled.factors, [] if scaled.bias is None else [scaled.bias]
    if scaled.centered is not None:
        (x, mean), scales = scaled.centered, factors
    else:
        centered = [(seen, difference) for seen in factors if (difference := _centered(seen, channel)) is not None]
        if len(centered) != 1:
            return None
        scales = tuple(seen for seen in factors if seen is not centered[0][0])
        ((_, (x, mean)),) = centered
    if len(scales) > 1 or not all(_is_parameter(seen, channel) for seen in (mean, *scales, *bias)):
        return None
    return BatchNormalized(x, channel, mean, scales, scaled)


def _centered(seen: Seen, channel: int) -> tuple[Seen, Seen] | None:
    """Return `x` and the mean if `seen` is their difference."""
    x, mean = seen.operands("Sub") or (None, None)
    return None if x is None or mean is None or not _is_parameter(mean, channel) else (x, mean)


def _is_parameter(seen: Seen, channel: int) -> bool:
    """Whether a value varies along the channels only."""
    return [axis for axis in seen.axes if axis is not None] in ([], [channel])


def _imprecision(match: BatchNormalized, known: Known) -> str | None:
    """Return why scaling before shifting would be less exact than the program, or None."""
    mean, variance = known(match.mean.value), known(match.scaled.variance.value)
    if mean is None or variance is None:
        return "its mean and variance are not known"
    if match.x.value.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return "it is in half precision"
    with np.errstate(invalid="ignore", divide="ignore"):
        away = np.abs(mean.ravel()) / np.sqrt(variance.ravel() + match.scaled.epsilon)
    return None if (away <= MOST_DEVIATIONS).all() else "its mean is many deviations away from zero"


def _is_worth_moving(x: ir.Value, channel: int) -> bool:
    return channel == 1 or (channel > 1 and (len(dims_of(x) or []) > 3 or is_op(x.producer(), "Transpose")))


def _fusion(match: BatchNormalized, opset: int) -> Fusion | str:
    product, variance = match.scaled.result, match.scaled.variance
    result, bias = match.scaled.with_bias(lambda seen: _is_parameter(seen, match.channel))
    parameters = [*match.scales, match.mean, variance, *([bias] if bias else [])]
    dims, x = dims_of(product) or [], match.x.entry
    order = [0, match.channel, *(axis for axis in range(1, len(dims)) if axis != match.channel)]
    channels = dims[match.channel]
    if not isinstance(channels, int):
        return "the number of channels is not known"

    def build(builder: Builder) -> ir.Value:
        def vector(seen: Seen | None, number: int) -> ir.Value:
            if seen is None:
                return builder.constant(np.full(channels, number, numpy_dtype(x)), "ones" if number else "zeros")
            own = channels if match.channel in seen.axes else 1
            return builder.expanded(builder.viewed(seen.value, [own]), [channels])

        scale = match.scales[0] if match.scales else None
        vectors = [vector(scale, 1), vector(bias, 0), vector(match.mean, 0), vector(variance, 1)]
        first = [dims[axis] for axis in order]
        # Before opset 14 some evaluators take it for that of training: with this momentum they keep the statistics.
        attributes = {"epsilon": match.scaled.epsilon, **({"momentum": 1.0} if opset < 14 else {})}
        operands = [builder.transposed(x, order), *vectors]
        normal = builder.emit("BatchNormalization", operands, first, None, "", **attributes)
        return builder.transposed(normal, np.argsort(order).tolist())

    return Fusion("BatchNormalization", result, [match.x.value, *(seen.value for seen in parameters)], build)
