"""Write logsumexp without what only its maximum needs: to be NaN if an element is.

`log(sum(exp(x - m))) + m` is NaN by itself then, so `m` may be the runtime's own maximum, and only if it is infinite
does another number have to be subtracted. ONNX's ReduceLogSumExp does not say that a maximum is subtracted at all, and
overflows in runtimes that subtract none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import begins_at, dims_of, numpy_dtype
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, same_but_for_ones
from jaxport.graph.fusions.softmax import maximum_of
from jaxport.graph.matching import Seen, over
from jaxport.onnx_facts import VIEWS


@begins_at({"Add"}, {"Log"})
def log_sum_exp(model: ir.Model) -> str:
    """Recognise logsumexp as JAX computes it, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    return fuse(model, lambda node: _find(node, opset), Anchor(at=("Add",), below=("Log",), through=VIEWS))


def _find(node: ir.Node, opset: int) -> Fusion | None:
    result = node.outputs[0]
    whole = Seen.whole(result) if result.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else None
    match = whole.commuted("Add", lambda seen: seen.operands("Log")) if whole is not None else None
    if match is None:
        return None
    (total,), shift = match
    total = (total.operands("Abs") or [total])[0]
    exponential = total.reduced("ReduceSum")
    shifted = None if exponential is None else exponential.operands("Exp")
    difference = None if shifted is None else shifted[0].operands("Sub")
    greatest = _finite_maximum(shift)
    if exponential is None or difference is None or difference[1] != shift or greatest is None:
        return None
    x = difference[0]
    axes = x.reduced_by(total.node)
    if over(greatest, x) != axes or not same_but_for_ones(x.entry, exponential.entry):
        return None
    dims = dims_of(exponential.entry) or []
    places = sorted(axis.place for axis in axes)
    return Fusion(
        "LogSumExp",
        result,
        [x.value],
        lambda builder: _build(builder, builder.viewed(x.entry, dims), result, places, opset),
    )


def _finite_maximum(seen: Seen) -> Seen | None:
    """Return the operand of a maximum in place of which there is zero if it is infinite or NaN."""
    is_finite, largest, zero = seen.operands("Where") or (None, None, None)
    negated = None if is_finite is None else is_finite.operands("Not")
    tests = None if negated is None else negated[0].operands("Or")
    if largest is None or zero is None or zero.scalar != 0 or tests is None:
        return None
    if {test.node.op_type for test in tests if test.value.producer() is not None} != {"IsInf", "IsNaN"}:
        return None
    if any(test.node.attributes or test.operands("IsInf", "IsNaN") != [largest] for test in tests):
        return None
    return maximum_of(largest)


def _build(builder: Builder, x: ir.Value, result: ir.Value, axes: Sequence[int], opset: int) -> ir.Value:
    dims = dims_of(x) or []
    kept = [1 if axis in axes else dim for axis, dim in enumerate(dims)]
    vector, zero = builder.integers(axes, "axes"), builder.constant(np.zeros((), numpy_dtype(x)), "zero")
    if opset < 18:  # from this opset on, the axes of a maximum are an operand
        largest = builder.emit("ReduceMax", [x], kept, axes=axes, keepdims=1)
    else:
        largest = builder.emit("ReduceMax", [x, vector], kept, keepdims=1)
    is_infinite = builder.emit("IsInf", [largest], kept, ir.DataType.BOOL)
    shift = builder.emit("Where", [is_infinite, zero, largest], kept)
    exponential = builder.emit("Exp", [builder.emit("Sub", [x, shift], dims)], dims)
    total = builder.emit("ReduceSum", [exponential, vector], kept, keepdims=1)
    return builder.viewed(builder.emit("Add", [builder.emit("Log", [total], kept), shift], kept), dims_of(result) or [])
