"""What the constants of a model are, for those who read the file: parameters, statistics, or neither.

The metadata `jaxport.roles` of the model has a JSON object: `{"parameter": [names], "statistic": [names], "constant":
[names]}`, with the names of all floating-point initializers of the main graph and of the constants that functions hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from jaxport.blocks.tracing import TracedWeight
from jaxport.graph.editing import Namer, graphs, held, is_op, subgraphs
from jaxport.onnx_facts import ROLES


def role_of(weight: TracedWeight) -> str:
    """Return the role of an array of the traced callable: a statistic is what its modules hold and training leaves
    alone.
    """
    if weight.trainable:
        return "parameter"
    return "statistic" if weight.is_held else "constant"


def record(model: ir.Model) -> None:
    """Name the arrays of the user's model by their paths, and write the roles into the metadata."""
    initializers = [value for value in model.graph.initializers.values() if not value.is_graph_input()]
    inner = {value: function.name for function in model.functions.values() for value in _floats_of(function)}
    made = [value for graph in graphs(model) for node in graph for value in node.outputs if value not in inner]
    taken = {value.name for value in made} | {value.name for graph in graphs(model) for value in graph.inputs}
    taken |= {*model.graph.initializers}
    times = Counter(held(value) for value in (*initializers, *inner))
    names: dict[str, list[str]] = {}
    for value in initializers:
        array = held(value)
        if array is not None and times[array] == 1 and array.name not in taken:
            taken.add(array.name)
            value.name = array.name
    namer = Namer(taken)
    for value, function in inner.items():
        array = held(value)
        value.name = namer.unique(array.name if array is not None and times[array] == 1 else f"{function}.{value.name}")
    for value in (*initializers, *inner):
        array = held(value)
        if value.dtype is not None and value.dtype.is_floating_point():
            names.setdefault("constant" if array is None else array.role, []).append(value.name or "")
    if names:
        model.metadata_props[ROLES] = json.dumps(names, ensure_ascii=True, separators=(",", ":"))


def _floats_of(function: ir.Function) -> Iterator[ir.Value]:
    """Yield the constants of floating point that a function holds."""
    for graph in (function.graph, *subgraphs(function.graph)):
        for node in graph:
            value = node.outputs[0]
            if is_op(node, "Constant") and value.dtype is not None and value.dtype.is_floating_point():
                yield value
