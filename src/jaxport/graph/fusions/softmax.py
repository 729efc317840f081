"""Recognise Softmax and LogSoftmax from their definitions.

1. `e / sum(e)` with `e = exp(x - max(x))`: Softmax.
2. `s - log(sum(exp(s)))` with `s = x - max(x)`: LogSoftmax.

The maximum may be the exact one, which is NaN if an element is, or the runtime's: Softmax is NaN then in either case.
Sums and maxima over selected elements (`where=`) do not match, and neither does an exponential without the maximum
subtracted, which overflows when Softmax does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from jaxport.graph.editing import Dim, begins_at, dims_of
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle, same_but_for_ones
from jaxport.graph.matching import Axis, Part, Reduced, Seen, over
from jaxport.onnx_facts import VIEWS


@begins_at({"Div", "Sub"}, {"ReduceSum"})
def softmax(model: ir.Model) -> str:
    """Recognise Softmax and LogSoftmax, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    anchor = Anchor(at=("Div", "Sub"), below=("ReduceSum",), through=(*VIEWS, "Cast", "Log"))
    return fuse(model, lambda node: _find(node, opset), anchor)


def _find(node: ir.Node, opset: int) -> Fusion | str | None:
    seen = Seen.whole(node.outputs[0])
    if seen is None or seen.value is not node.outputs[0]:
        return None
    first, second = seen.operands("Div", "Sub") or (None, None)
    if first is None or second is None:
        return None
    if node.op_type == "Div":
        exponential, total, op_type = first, second, "Softmax"
    else:
        exponential, total, op_type = None, _operand(second, "Log"), "LogSoftmax"
    summed = None if total is None else _summed(total)
    if summed is None or not summed.is_op("Exp"):
        return None
    if exponential is None:
        axes = over_operand(summed, first)
        shifted = first
    else:
        axes = over(summed, exponential)
        shifted = _operand(exponential, "Exp")
    whole = None if axes is None or shifted is None else unshifted(shifted, axes)
    if axes is None or whole is None:
        return None
    x, axis = whole.entry, axes[0]
    if len(axes) > 1:
        return f"{op_type} is over one axis, this is over {len(axes)}"
    if not same_but_for_ones(x, node.outputs[0]):
        return f"`{x.name}` is broadcast to the shape of the result"
    if op_type == "LogSoftmax" and x.dtype is ir.DataType.DOUBLE:
        return "the runtime's LogSoftmax of DOUBLE loses NaN"
    hindrance = obstacle(op_type, x.dtype, opset)
    if hindrance is not None:
        return hindrance

    def build(builder: Builder) -> ir.Value:
        dims = dims_of(node.outputs[0]) or []
        return builder.emit(op_type, [builder.viewed(x, dims)], dims, axis=axis_attribute(axis, dims))

    return Fusion(op_type, node.outputs[0], [whole.value], build)


def axis_attribute(axis: Axis, dims: Sequence[Dim]) -> int:
    """Return an axis as people write it: -1 for the last one."""
    assert isinstance(axis, int)
    return -1 if axis == len(dims) - 1 else axis


def _operand(seen: Seen, op_type: str) -> Seen | None:
    operands = seen.operands(op_type)
    return operands[0] if operands else None


def _summed(seen: Seen) -> Seen | None:
    """Return the operand of a sum, also of one in a wider type, as JAX emits for half precision."""
    wide = None if seen.value.dtype is ir.DataType.FLOAT else _operand(seen, "Cast")
    if wide is None:
        return seen.reduced("ReduceSum")
    summed = wide.reduced("ReduceSum") if wide.value.dtype is ir.DataType.FLOAT else None
    return None if summed is None else _operand(summed, "Cast")


def over_operand(summed: Seen, of: Seen) -> tuple[Axis, ...] | None:
    """Return the axes of a sum whose operand is a function of `of`."""
    inside = summed.operands("Exp")
    return over(inside[0], of) if inside else None


def unshifted(seen: Seen, axes: tuple[Axis, ...]) -> Seen | None:
    """Return `x` if `seen` is `x - max(x)` over these axes."""
    operands = seen.operands("Sub")
    if operands is None:
        return None
    x, largest = operands
    greatest = maximum_of(largest)
    return x if greatest is not None and over(greatest, x) == axes else None


def maximum_of(seen: Seen) -> Seen | None:
    """Return the operand of a maximum: that of the runtime, or the exact one, which is NaN if an element is."""
    choice = seen.operands("Where")
    if choice is None:
        return seen.reduced("ReduceMax")
    any_nan, nan, largest = choice
    x, where = largest.reduced("ReduceMax"), _operand(any_nan, "Cast")
    flags = None if where is None else where.reduced("ReduceMax")
    flag = None if flags is None else _operand(flags, "Cast")
    of = None if flag is None else _operand(flag, "IsNaN")
    if x is None or of is None or nan.scalar is None or not math.isnan(nan.scalar) or x.value is not of.value:
        return None
    return x if [_place(a) for a in x.axes] == [_place(a) for a in of.axes] else None


def _place(axis: Axis) -> Axis:
    """Return a label in which the reductions that remove an axis do not differ."""
    if isinstance(axis, Part):
        return Part(_place(axis.whole), axis.place, axis.count)
    return axis.place if isinstance(axis, Reduced) else axis
