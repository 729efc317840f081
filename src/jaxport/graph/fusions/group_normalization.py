"""Recognise normalization over groups of channels and all positions, as InstanceNormalization or GroupNormalization.

As in `normalized`, it is a product with `1 / sqrt(variance + epsilon)`. The axes that are not normalized are those of
batches and channels, or of batches and groups of channels:

1. Whole channels: InstanceNormalization.
2. Groups of channels: the same, with the elements of each group in one row.

Runtimes compute InstanceNormalization faster than reductions or GroupNormalization. It wants channels before positions:
the Transposes for that cancel with those of the convolutions around it. For a reader GroupNormalization (opset 21) says
more: `group_normalization` recognises it where exporters write InstanceNormalization of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import reshaped, target
from jaxport.graph.axis_groups import product
from jaxport.graph.editing import Dim, constant_of, dims_of, is_op, numpy_dtype, source, sources
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle, same_but_for_ones, same_dims
from jaxport.graph.fusions.normalized import Normalized
from jaxport.graph.matching import Part, Seen, joined
from jaxport.onnx_facts import VIEWS


@dataclass(frozen=True)
class Grouping:
    """A grouping of channels.

    Attributes:
      channel: the axis of the channels.
      groups: the number of groups.
      whole: whether each channel is a group of its own.
    """

    channel: int
    groups: int
    whole: bool

    def is_parameter(self, seen: Seen) -> bool:
        """Whether a value varies along the channels only, perhaps divided into groups."""
        axes = [axis for axis in seen.axes if axis is not None]
        return not axes or joined(axes) == self.channel or axes == [self.channel]


def group_normalization(model: ir.Model) -> str:
    """Recognise GroupNormalization written with InstanceNormalization, in the graph, its subgraphs and its
    functions.
    """
    opset = model.opset_imports[""]
    anchor = Anchor(at=("Add",), below=("InstanceNormalization",), through=(*VIEWS, "Mul"))
    return fuse(model, lambda node: _of_rows(node, opset), anchor)


def _of_rows(node: ir.Node, opset: int) -> Fusion | str | None:
    """Match `reshape(instance_normalization(reshape(x), 1, 0)) * scale + bias`, with a scale and a bias per channel."""
    result = Seen.whole(node.outputs[0])
    bias, product = (None if result is None else result.commuted("Add", _per_channel)) or (None, None)
    scale, normal = (None if product is None else product.commuted("Mul", _per_channel)) or (None, None)
    if bias is None or scale is None or normal is None or not is_op(shaped := normal.entry.producer(), "Reshape"):
        return None
    instances = source(shaped).producer()
    rows = source(instances).producer() if is_op(instances, "InstanceNormalization") else None
    if instances is None or rows is None or not is_op(rows, "Reshape"):
        return None
    x, own = source(rows), [Seen.whole(value) for value in sources(instances)[1:]]
    if [None if seen is None else seen.scalar for seen in own] != [1, 0] or not same_dims(x, node.outputs[0]):
        return None
    dims, of_rows = dims_of(x) or [], dims_of(rows.outputs[0]) or []
    if len(dims) < 3 or len(of_rows) != 3 or dims[0] != of_rows[0]:
        return None
    channels, groups = dims[1], of_rows[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        return None
    epsilon = instances.attributes["epsilon"].as_float() if "epsilon" in instances.attributes else 1e-5

    def build(builder: Builder) -> ir.Value:
        vectors = [_vector(builder, seen.value, channels) for seen in (scale, bias)]
        return builder.emit("GroupNormalization", [x, *vectors], dims, num_groups=groups, epsilon=epsilon)

    hindrance = obstacle("GroupNormalization", x.dtype, opset)
    return hindrance or Fusion("GroupNormalization", node.outputs[0], [x, scale.value, bias.value], build)


def _vector(builder: Builder, value: ir.Value, size: int) -> ir.Value:
    """Return a value of one element per channel as a vector."""
    value = builder.owned(value)
    if dims_of(value) == [size]:
        return value
    return builder.emit("Reshape", [value, builder.integers([size], "shape")], [size], value.dtype)


def _per_channel(seen: Seen) -> Seen | None:
    """Return a value that varies along the second axis alone."""
    return seen if [axis for axis in seen.axes if axis is not None] == [1] else None


def grouped(match: Normalized, opset: int) -> Fusion | str | None:
    """Return the fusion of a normalization over positions, why it is declined, or None if it is none."""
    result = match.scaled.result
    grouping = _grouping(match, dims_of(result) or [])
    bias = [] if match.scaled.bias is None else [match.scaled.bias]
    if grouping is None or not all(map(grouping.is_parameter, [*match.scales, *bias])):
        return None
    if not same_but_for_ones(match.x.entry, result):
        return f"`{match.x.entry.name}` is broadcast to the shape of the result"
    return obstacle("InstanceNormalization", match.x.value.dtype, opset) or _fusion(match, grouping)


def _grouping(match: Normalized, dims: list[Dim]) -> Grouping | None:
    """Return the grouping of the channels, or None if this is no normalization over positions."""
    others = {axis for axis, d in enumerate(dims) if d != 1} - {0}
    parts = [axis for axis in match.axes if isinstance(axis, Part)]
    if match.op_type != "LayerNormalization" or 0 in match.axes or len(dims) < 3:
        return None
    if parts:
        (part, *more) = parts
        fits = not more and (part.place, part.count) == (1, 2) and others - {part.whole} == {*match.axes} - {part}
        channel, groups = part.whole, match.sizes.get(Part(part.whole, 0, 2))
    else:
        channel, *more = others - set(match.axes) or (None,)
        groups = dims[channel] if isinstance(channel, int) else None
        fits = not more and (len(match.axes) > 1 or any(channel in scale.axes for scale in match.scales))
    if not fits or not isinstance(channel, int) or not isinstance(groups, int):
        return None
    return Grouping(channel, groups, whole=not parts)


def _fusion(match: Normalized, grouping: Grouping) -> Fusion | str:
    value, (result, bias) = match.scaled.result, match.scaled.with_bias(grouping.is_parameter)
    parameters = [*match.scales, *([bias] if bias else [])]
    dims, x = dims_of(value) or [], match.x.entry
    order = [0, grouping.channel, *(axis for axis in range(1, len(dims)) if axis != grouping.channel)]
    first = [dims[axis] for axis in order]
    rows = first if grouping.whole else [first[0], grouping.groups, _row(first[1:], grouping.groups)]
    if target(first, rows) is None:
        return "its shapes cannot be told before it runs"

    def build(builder: Builder) -> ir.Value:
        dtype = numpy_dtype(x)
        moved = builder.transposed(builder.viewed(x, dims), order)
        one = builder.constant(np.ones(grouping.groups, dtype), "ones")
        zero = builder.constant(np.zeros(grouping.groups, dtype), "zeros")
        normal = builder.emit(
            "InstanceNormalization", [reshaped(builder, moved, rows), one, zero], rows, epsilon=match.epsilon
        )
        if target(rows, first) is not None:
            normal = reshaped(builder, normal, first)
        else:  # several positions are open
            shape = builder.emit("Shape", [moved], [len(first)], ir.DataType.INT64)
            normal = builder.emit("Reshape", [normal, shape], first)
        normal = builder.transposed(normal, np.argsort(order).tolist())
        for scale in match.scales:
            normal = builder.emit("Mul", [normal, _beside(builder, scale, dims, grouping)], dims)
        return builder.emit("Add", [normal, _beside(builder, bias, dims, grouping)], dims) if bias else normal

    return Fusion("InstanceNormalization", result, [match.x.value, *(seen.value for seen in parameters)], build)


def _beside(builder: Builder, seen: Seen, dims: list[Dim], grouping: Grouping) -> ir.Value:
    """Return a value that varies along the channels, as it broadcasts to some dims."""
    own = dims_of(seen.entry)
    if (
        own is not None
        and len(own) <= len(dims)
        and all(d in (1, e) for d, e in zip(own[::-1], dims[::-1], strict=False))
    ):
        return seen.entry
    channels = dims[grouping.channel]
    if all(axis is None for axis in seen.axes) or not isinstance(channels, int):
        return builder.viewed(builder.owned(seen.value), [1])
    wanted = [channels, *(1 for _ in dims[grouping.channel + 1 :])]
    array = constant_of(seen.value)
    if array is not None:
        return builder.constant(array.reshape(wanted), seen.value.name or "parameter", seen.value)
    return builder.viewed(_vector(builder, seen.value, channels), wanted)


def _row(dims: list[Dim], groups: int) -> Dim:
    """Return the number of elements in a group."""
    channels, *positions = dims
    return product([channels // groups if isinstance(channels, int) else channels, *positions])
