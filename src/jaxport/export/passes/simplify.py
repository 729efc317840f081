"""Algebraic simplification: replace a value by a simpler one that is equal.

1. `not not x`: x. `cast(b) == 0` of a boolean: not b; `cast(b) == 1`: b.
2. Where with a constant condition, or the same value in both branches: the branch.
3. An identity operand (x + 0, x · 1, x and true, …): the other one.
4. An operand expanded to the shape of the result, which the others have anyway: the value before the Expand.
5. Concat: the operands that have elements.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from jaxport.export.emit import folding
from jaxport.graph.editing import (
    PARAMETER,
    Editor,
    constant_of,
    dims_of,
    discard,
    integer,
    is_op,
    is_weight,
    nodes_of,
    size_in,
    source,
    sources,
    substitute,
)
from jaxport.graph.fusing import same_dims
from jaxport.graph.matching import Seen
from jaxport.onnx_facts import BROADCASTING, VIEWS


def simplify(model: ir.Model) -> str:
    """Simplify nodes in the graph, its subgraphs and its functions."""
    editor, changed = Editor(model), 0
    for node in nodes_of(model, *RULES, *_NEUTRAL, *BROADCASTING):
        if node.graph is not None and len(node.outputs) == 1:
            changed += _spread(editor, node) + _replaced(node)
    return f"{changed} nodes simplified" if changed else "nothing to do"


def _replaced(node: ir.Node) -> bool:
    rule = RULES.get(node.op_type) or (_neutral if node.op_type in _NEUTRAL else None)
    value = None if rule is None else rule(node)
    return value is not None and same_dims(value, node.outputs[0]) and substitute(node.outputs[0], value)


def _not(node: ir.Node) -> ir.Value | None:
    before = source(node).producer()
    return source(before) if is_op(before, "Not") else None


def _equal(node: ir.Node) -> ir.Value | None:
    """Simplify a cast boolean compared with a number: return the boolean for 1, make the node Not for 0."""
    for place in (0, 1):
        cast, array = source(node, place).producer(), constant_of(node.inputs[1 - place])
        if not is_op(cast, "Cast") or source(cast).dtype != ir.DataType.BOOL or array is None or array.size != 1:
            continue
        if float(array.ravel()[0]) == 1:
            return source(cast)
        if float(array.ravel()[0]) == 0 and same_dims(source(cast), node.outputs[0]):
            node.op_type = "Not"
            node.resize_inputs(1)
            node.replace_input_with(0, source(cast))
            return None
    return None


def _where(node: ir.Node) -> ir.Value | None:
    condition, chosen, other = node.inputs
    array = constant_of(condition)
    if chosen is other or _holds(condition):
        return chosen
    if array is None or not array.size or array.any() != array.all():
        return None
    return chosen if array.all() else other


def _holds(condition: ir.Value | None) -> bool:
    """Whether a condition is that a size is positive."""
    node = None if condition is None else condition.producer()
    bound = constant_of(node.inputs[1]) if is_op(node, "Greater") and size_in(node.inputs[0]) else None
    return bound is not None and bound.size == 1 and float(bound.item()) <= 0


def _concat(node: ir.Node) -> ir.Value | None:
    """Drop the operands that are known to have no elements; return the other one if there is only one."""
    axis, operands = integer(node, "axis", 0), sources(node)
    kept = [value for value in operands if not ((dims := dims_of(value)) and dims[axis] == 0)]
    if not kept or len(kept) == len(operands):
        return None
    if len(kept) == 1:
        return kept[0]
    for index, value in enumerate(kept):
        node.replace_input_with(index, value)
    node.resize_inputs(len(kept))
    for value in operands:
        discard(value.producer())
    return None


_NEUTRAL = {**folding.NEUTRAL, **folding.NEUTRAL_SECOND}


def _neutral(node: ir.Node) -> ir.Value | None:
    for place in (1, 0) if node.op_type in folding.NEUTRAL else (1,):
        array = constant_of(node.inputs[place]) if len(node.inputs) == 2 else None
        if array is None or not array.size or source(node, place).meta.get(PARAMETER):
            continue  # a parameter stays even while it has its initial value
        neutral = _NEUTRAL[node.op_type](array.dtype)
        if neutral is not None and array.flat[0] == neutral and bool((array == neutral).all()):
            return node.inputs[1 - place]
    return None


RULES: dict[str, Callable[[ir.Node], ir.Value | None]] = {
    "Not": _not, "Equal": _equal, "Where": _where, "Concat": _concat
}  # fmt: skip


def _spread(editor: Editor, node: ir.Node) -> bool:
    """Replace expanded operands by the values before the Expand."""
    if node.op_type not in BROADCASTING or not any(map(_is_expanded, node.inputs)):
        return False
    result, changed = Seen.whole(node.outputs[0]), False
    dims = dims_of(node.outputs[0])
    if result is None or dims is None or result.value is not node.outputs[0]:
        return False
    for place, x in enumerate(node.inputs):
        if not _is_expanded(x) or not _spans(node, place, dims):
            continue
        seen = (result.operands(node.op_type) or [None] * len(node.inputs))[place]
        if x is None or seen is None:
            continue
        along = [axis for axis in seen.axes if isinstance(axis, int)]
        if any(axis is not None and axis not in along for axis in seen.axes) or along != sorted(along):
            continue
        own, array = dims_of(seen.value) or [], constant_of(seen.value)
        # Without an operand of the result's rank, its first axes, of one element, would be gone.
        others = (dims_of(other) for at, other in enumerate(node.inputs) if at != place and other is not None)
        is_whole = any(other is not None and len(other) == len(dims) for other in others)
        if array is not None and not along:
            name = (seen.value.name if is_weight(seen.value) else "") or "scalar"
            shape = () if is_whole else (1,) * len(dims)
            value = editor.constant(node.graph, array.reshape(shape), name, seen.value)
        else:
            first = min(along, default=len(dims)) if is_whole else 0
            wanted = [d if axis in along else 1 for axis, d in enumerate(dims)][first:]
            value = seen.value if own == wanted else editor.viewed(node.graph, seen.value, wanted, before=node)
        node.replace_input_with(place, value)
        discard(x.producer())
        changed = True
    return changed


def _is_expanded(value: ir.Value | None) -> bool:
    """Whether an Expand is among the views that lead to a value."""
    while value is not None and is_op(node := value.producer(), *VIEWS):
        if node.op_type == "Expand":
            return True
        value = node.inputs[0]
    return False


def _spans(node: ir.Node, left_out: int, dims: list) -> bool:
    """Whether the other operands give the result its dims."""
    missing = {axis for axis, d in enumerate(dims) if d != 1}
    for place, value in enumerate(node.inputs):
        own = None if value is None or place == left_out else dims_of(value)
        for axis, d in enumerate(reversed(own or ())):
            if d != 1:
                missing.discard(len(dims) - 1 - axis)
    return not missing
