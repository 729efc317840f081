"""What is done to the scores of an attention: scales, soft caps, sinks, and casts between float32 and half
precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from jaxport.graph.editing import constant_of, dims_of, integer, is_op, source
from jaxport.graph.fusions.softmax import unshifted
from jaxport.graph.matching import Axis, Seen, look

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

#: The opset from which on a Softmax is over a single axis.
SINGLE_AXIS = 13


@dataclass(frozen=True)
class Weighed:
    """The scores of a softmax, and its axis.

    Attributes:
      node: the softmax.
      scores: its operand, without a sink.
      keys: the label of its axis.
      sink: the scores behind those of the keys, if the weights of these are dropped.
    """

    node: ir.Node
    scores: Seen
    keys: Axis
    sink: Seen | None = None


def weighed_by(weights: Seen) -> Weighed | None:
    """Return the softmax that weights are, or its weights but for the last of each row."""
    if weights.is_op("Softmax"):
        keys = softmax_axis(weights)
        return Weighed(weights.node, _unshifted(look(source(weights.node), weights.axes), keys), keys)
    if not weights.is_op("Slice"):
        return None
    longer, dims = source(weights.node), dims_of(source(weights.node)) or ()
    bounds = [constant_of(value) for value in weights.node.inputs[1:]]
    if len(dims) != len(weights.axes) or any(bound is None or bound.size != 1 for bound in bounds[:1] + bounds[2:]):
        return None
    place = int(bounds[2].item()) % len(dims) if len(bounds) > 2 and bounds[2] is not None else 0
    keys = weights.axes[place]
    if keys is None or bounds[0] is None or bounds[0].item() != 0 or any(step != 1 for step in bounds[3:]):
        return None
    labels = [("and a sink", keys) if axis == place else label for axis, label in enumerate(weights.axes)]
    softmax = unrounded(look(longer, labels))
    if not softmax.is_op("Softmax") or softmax_axis(softmax) != labels[place]:
        return None
    both = unrounded(_unshifted(look(source(softmax.node), softmax.axes), labels[place]))
    if not both.is_op("Concat") or len(both.node.inputs) != 2:
        return None
    at = both.axes.index(labels[place])
    if integer(both.node, "axis", 0) % len(both.axes) != at or (dims_of(both.node.inputs[1]) or ())[at : at + 1] != [1]:
        return None
    if (dims_of(both.node.inputs[0]) or ())[at : at + 1] != (dims_of(weights.value) or ())[place : place + 1]:
        return None
    own = [keys if axis == at else label for axis, label in enumerate(both.axes)]
    scores, sink = (look(source(both.node, index), own) for index in range(2))
    return Weighed(softmax.node, scores, keys, sink)


def _unshifted(scores: Seen, keys: Axis) -> Seen:
    """Return the operand of a softmax before its maximum is subtracted, which the softmax does anyway."""
    return unshifted(scores, (keys,)) or scores


def softmax_axis(weights: Seen) -> Axis:
    """Return the axis of a Softmax; None if it is over several, as it may be before opset 13."""
    node, rank = weights.node, len(weights.axes)
    if node.version is not None and node.version < SINGLE_AXIS:
        return weights.axes[-1] if integer(node, "axis", 1) % rank == rank - 1 else None
    return weights.axes[integer(node, "axis", -1)]


def uncast(seen: Seen, *, narrowed: bool = False) -> Seen:
    """Return a half-precision value before its cast to float32, or to its own type; if it was in float32 before being
    `narrowed`, that.
    """
    while seen.is_op("Cast"):
        before, after, inner = source(seen.node).dtype, seen.value.dtype, look(source(seen.node), seen.axes)
        if after in HALVES and inner.is_op("Cast") and source(inner.node).dtype == after:
            seen = look(source(inner.node), inner.axes)  # widened for views that have no kernel in half precision
            continue
        keeps = before == after or (before in HALVES and after == ir.DataType.FLOAT)
        if not keeps and not (narrowed and before == ir.DataType.FLOAT and after in HALVES):
            break
        seen = inner
    return seen


def unrounded(seen: Seen) -> Seen:
    """Return a value of a computation before it is cast between float32 and half precision.

    Operators that have no kernel in half precision compute in float32, between casts; an operator that replaces several
    of them does not round in between.
    """
    return uncast(seen, narrowed=True)


def unscaled(seen: Seen) -> tuple[Seen, float]:
    """Return a value without its constant factors and divisors, and their product."""
    scale = 1.0
    while _is_used_once(product := unrounded(seen)) and _is_used_once(seen):
        divided, factor = product.operands("Div"), product.commuted("Mul", lambda operand: operand.scalar)
        if divided is not None and divided[1].scalar:
            seen, scale = divided[0], scale / divided[1].scalar
        elif factor is not None:
            seen, scale = factor[1], scale * factor[0]
        else:
            break
    return uncast(seen), scale


def _is_used_once(seen: Seen) -> bool:
    return len(seen.value.uses()) == 1 and not seen.value.is_graph_output()


def uncapped(seen: Seen) -> tuple[Seen, float]:
    """Return the operand of `cap * tanh(…)`, and the cap; the value itself and zero if it is none."""
    tangent, cap = unscaled(seen)
    inner = unrounded(tangent).operands("Tanh") if cap > 0 else None
    return (seen, 0.0) if inner is None else (inner[0], cap)


def uncast_value(value: ir.Value) -> ir.Value:
    """Return the value that is cast, perhaps several times."""
    while is_op(node := value.producer(), "Cast"):
        value = source(node)
    return value
