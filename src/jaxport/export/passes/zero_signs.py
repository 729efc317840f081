"""Keep -0.0 where ONNX Runtime's Where chooses it, for `nonfinite="exact"`.

The runtime's kernel makes 0.0 of a -0.0 in the second operand, and keeps one in the third. So what may be -0.0 comes
third:

    Where(c, x, 1.0)      Where(c == False, 1.0, x)
    Where(c, x, y)        Max(Where(c, -inf, y), Where(c == False, -inf, x))

The condition is compared with False, since the runtime makes `Where(c, y, x)` of `Where(Not(c), x, y)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Dim, Editor, begins_at, dims_of, is_op, nodes_of, numpy_dtype, substitute
from jaxport.graph.facts.knowledge import Knowledge


@begins_at({"Where"})
def zero_signs(model: ir.Model) -> str:
    """Rewrite choices whose second operand may be -0.0, in the graph, its subgraphs and its functions."""
    editor, knowledge, count = Editor(model), Knowledge(model, are_finite=False), 0
    for node in nodes_of(model, "Where"):
        if numpy_dtype(node.outputs[0]).kind not in "fV":
            continue
        opposite = node.inputs[0].producer() if node.inputs[0] is not None else None
        if is_op(opposite, "Not"):
            _set_inputs(node, opposite.inputs[0], node.inputs[2], node.inputs[1])
        _, chosen, other = (knowledge.of(value) for value in node.inputs)
        if not chosen.never_negative_zero:
            count += _rewritten(editor, node, keeps_both=not other.never_negative_zero)
    return f"{count} choices keep -0.0" if count else "nothing to do"


def _rewritten(editor: Editor, node: ir.Node, *, keeps_both: bool) -> bool:
    condition, chosen, other = node.inputs
    result, no = node.outputs[0], editor.constant(node.graph, np.asarray(False), "false")
    assert condition is not None
    shape = dims_of(condition)
    opposite = editor.insert(
        node.graph, "Equal", [condition, no], before=node, like=result, shape=shape, dtype=ir.DataType.BOOL
    )
    if not keeps_both:
        _set_inputs(node, opposite, other, chosen)
        return True
    lowest = editor.constant(node.graph, np.asarray(-np.inf, numpy_dtype(result)), "lowest")
    parts = [
        editor.insert(
            node.graph, "Where", [where, lowest, value], before=node, like=result, shape=_joined(shape, dims_of(value))
        )
        for where, value in ((condition, other), (opposite, chosen))
    ]
    return substitute(result, editor.insert(node.graph, "Max", parts, before=node, like=result, shape=dims_of(result)))


def _set_inputs(node: ir.Node, *inputs: ir.Value | None) -> None:
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def _joined(one: Sequence[Dim] | None, other: Sequence[Dim] | None) -> list[Dim] | None:
    """Return the dims of two operands that are broadcast together."""
    if one is None or other is None:
        return None
    rank = max(len(one), len(other))
    padded = ([*[1] * (rank - len(dims)), *dims] for dims in (one, other))
    return [b if a == 1 else a for a, b in zip(*padded, strict=True)]
