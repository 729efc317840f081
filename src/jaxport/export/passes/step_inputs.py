"""Leave out what only matters for inputs that no caller gives a step of a decoder.

1. Tokens are rows of the tables that they look up, counted from either end. JAX moves others into the table, or returns
  NaN for
   them: with `n` rows, `Where(Equal(ids, Clip(ids, -n, n - 1)), Gather(table, Clip(ids, -n, n - 1)), nan)` is
   `Gather(table, ids)`, which ONNX Runtime refuses to compute for such tokens.
2. Masks and positions fit into 32 bits: `Cast(Cast(mask, int32), bool)` is `Cast(mask, bool)`, and
  `Equal(Cast(mask, int32), 0)` is
   `Equal(mask, 0)`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.export.generation import decoders
from jaxport.graph.editing import Editor, constant_of, dims_of, integer, is_op, number_of, set_dtype, source, substitute
from jaxport.graph.fusions.scores import uncast_value
from jaxport.onnx_facts import COMPARISONS, RESHAPING


def step_inputs(model: ir.Model) -> str:
    """Look up tokens, and convert masks and positions, as the inputs of a decoder's step allow it."""
    inputs = {value.name: value for value in model.graph.inputs}
    if not decoders.is_step(inputs):
        return "nothing to do"
    tokens = inputs.get(decoders.TOKENS)
    lookups = 0 if tokens is None else sum(_looked_up(clip, tokens) for clip in _clips(tokens))
    editor = Editor(model)
    converted = sum(_converted(inputs[name], editor) for name in decoders.COUNTED if name in inputs)
    texts = [(lookups, "lookups of tokens"), (converted, "conversions")]
    return ", ".join(f"{count} {name}" for count, name in texts if count) or "nothing to do"


def _clips(tokens: ir.Value) -> list[ir.Node]:
    """Return the nodes that limit tokens to a range."""
    found, values = [], [tokens]
    for value in values:
        users = list(value.consumers())
        found += [user for user in users if is_op(user, "Clip")]
        values += [user.outputs[0] for user in users if is_op(user, "Cast")]
    return found


def _looked_up(clip: ir.Node, tokens: ir.Value) -> int:
    """Look up tokens where a Clip limits them to the rows of a table; return how often."""
    limits, result, count = [number_of(value) for value in clip.inputs[1:]], clip.outputs[0], 0
    if len(limits) < 2 or limits[0] is None or limits[1] is None:
        return 0
    for user in list(result.consumers()):
        if not is_op(user, "Gather") or user.inputs[1] is not result or integer(user, "axis", 0) != 0:
            continue
        if (dims_of(source(user)) or [None])[0] == limits[1] + 1 == -limits[0]:
            user.replace_input_with(1, tokens)
            count += 1
    if count:
        for user in list(result.consumers()):
            if is_op(user, "Equal") and all(
                uncast_value(each) in (tokens, result) for each in user.inputs if each is not None
            ):
                _hold(user.outputs[0])
    return count


def _hold(condition: ir.Value) -> None:
    """Replace what is chosen where a condition holds, which is everywhere."""
    for user in list(condition.consumers()):
        result = user.outputs[0]
        if is_op(user, *RESHAPING):
            _hold(result)
        elif is_op(user, "Where") and user.inputs[0] is condition:
            chosen, other = source(user, 1), constant_of(user.inputs[2])
            is_nan = other is not None and bool(np.isnan(other.astype(np.float64)).all())
            if is_nan and dims_of(chosen) == dims_of(result) and not result.is_graph_output():
                substitute(result, chosen)


def _converted(given: ir.Value, editor: Editor) -> int:
    """Use an input of 64 bits itself where it is converted to 32 bits before; return how often."""
    if given.dtype is not ir.DataType.INT64:
        return 0
    users = [user for user in given.consumers() if is_op(user, "Cast")]
    return sum(_convert(user.outputs[0], given, editor) for user in users if user.outputs[0].dtype is ir.DataType.INT32)


def _convert(narrow: ir.Value, wide: ir.Value, editor: Editor) -> int:
    """Let conversions of a value and comparisons with numbers read another one, through views that nothing else
    reads.
    """
    count = 0
    for user in list(narrow.consumers()):
        if is_op(user, *RESHAPING) and user.inputs[0] is narrow and not user.outputs[0].is_graph_output():
            readers = list(user.outputs[0].consumers())
            if all(_takes_wide(reader) for reader in readers):
                user.replace_input_with(0, wide)
                set_dtype(user.outputs[0], ir.DataType.INT64)
                count += sum(_take_wide(reader, user.outputs[0], user.outputs[0], editor) for reader in readers)
        elif _takes_wide(user):
            count += _take_wide(user, narrow, wide, editor)
    return count


def _takes_wide(node: ir.Node) -> bool:
    """Whether a node computes the same of integers of 64 bits."""
    if is_op(node, "Cast"):
        return node.outputs[0].dtype is not ir.DataType.INT64
    return is_op(node, *COMPARISONS) and any(constant_of(value) is not None for value in node.inputs)


def _take_wide(node: ir.Node, narrow: ir.Value, wide: ir.Value, editor: Editor) -> int:
    """Let a node read a value of 64 bits, and a constant beside it."""
    for index, value in enumerate(node.inputs):
        array = constant_of(value)
        if value is narrow:
            node.replace_input_with(index, wide)
        elif array is not None:
            node.replace_input_with(index, editor.constant(node.graph, array.astype(np.int64), "number"))
    return 1
