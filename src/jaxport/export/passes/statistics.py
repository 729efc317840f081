"""Batch normalization by running statistics, which may be computed from those that the model keeps.

Equinox keeps sums from which the mean and the variance follow by a division. The operator gets the mean and the
variance themselves: they take the places, and the paths, of the statistics that they are computed from.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.constants import known
from jaxport.graph.editing import Editor, begins_at, held, is_weight, nodes_of, source
from jaxport.graph.fusions import batch_normalization as fusion


@begins_at({"BatchNormalization", "Pow", "Sqrt"})
def batch_normalization(model: ir.Model) -> str:
    """Recognise BatchNorm that uses its running statistics, in the graph, its subgraphs and its functions."""
    memory: dict[ir.Value, np.ndarray | None] = {}
    report = fusion.batch_normalization(model, lambda value: known(value, memory, weights=True))
    editor = Editor(model)
    for node in nodes_of(model, "BatchNormalization"):
        for place in (3, 4):
            value = source(node, place)
            kept = None if value.is_initializer() else _only_statistic(value)
            array = known(value, memory, weights=True) if kept is not None else None
            if array is not None and kept is not None:
                node.replace_input_with(place, editor.constant(node.graph, array, kept.name or "statistic", kept))
    return report


def _only_statistic(value: ir.Value) -> ir.Value | None:
    """Return the statistic that a value is computed from, if it is computed from one and no other weight."""
    found: set[ir.Value] = set()
    seen, waiting = {value}, [value]
    while waiting:
        last = waiting.pop()
        node = last.producer()
        if is_weight(last):
            found.add(last)
        for operand in () if node is None else node.inputs:
            if operand is not None and operand not in seen:
                seen.add(operand)
                waiting.append(operand)
    array = held(next(iter(found))) if len(found) == 1 else None
    return next(iter(found)) if array is not None and array.role == "statistic" else None
