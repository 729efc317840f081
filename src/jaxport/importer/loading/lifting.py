"""Constants as initializers of the main graph, wherever the file keeps them.

Exporters put weights into initializers or into `Constant` nodes, of the main graph or of a branch: all are the same to a
runtime, and to those who train them. Integers stay where they are: shapes and axes are of interest where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Namer, graphs, is_op, subgraphs

__all__ = ["has_hidden", "lift"]

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


class Hidden(NamedTuple):
    """A tensor of floats that is no initializer of the main graph: its value, and the graph that has it."""

    value: ir.Value
    tensor: ir.TensorProtocol
    graph: ir.Graph


def has_hidden(model: ir.Model) -> bool:
    """Whether the model has tensors of floats that are no initializers of the main graph."""
    return next(_hidden(model), None) is not None


def lift(model: ir.Model) -> None:
    """Make the tensors of floats initializers of the main graph, under the names that their values have, in place."""
    found = list(_hidden(model))
    inner = [hidden for hidden in found if hidden.graph is not model.graph]
    namer = Namer(_names(model)) if inner else None
    for value, tensor, graph in found:
        name = value.name or ""
        if graph is not model.graph and namer is not None:  # branches may use one name for several values
            name = namer.unique(name)
        lifted = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        value.replace_all_uses_with(lifted)
        node = value.producer()
        if node is not None:
            graph.remove(node, safe=True)
        else:
            del graph.initializers[value.name or ""]
        model.graph.register_initializer(lifted)


def _hidden(model: ir.Model) -> Iterator[Hidden]:
    for graph in [model.graph, *subgraphs(model.graph)]:
        for node in graph:
            value = node.outputs[0] if is_op(node, "Constant") and len(node.outputs) == 1 else None
            tensor = _tensor(node) if value is not None else None
            if value is None or tensor is None or tensor.dtype not in FLOATS:
                continue
            if value.name and value.uses() and not value.is_graph_output():
                yield Hidden(value, tensor, graph)
        for value in graph.initializers.values() if graph is not model.graph else ():
            tensor = value.const_value
            if tensor is None or tensor.dtype not in FLOATS or value.is_graph_input() or value.is_graph_output():
                continue
            if value.uses():
                yield Hidden(value, tensor, graph)


def _tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a `Constant`, however it is written; None if it is none of floats."""
    for name in ("value", "value_float", "value_floats"):
        attribute = node.attributes.get(name)
        if attribute is None or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            return attribute.as_tensor()
        return ir.tensor(np.array(attribute.value, np.float32))
    return None


def _names(model: ir.Model) -> Iterator[str | None]:
    """Yield the names of all values, as often as graphs have them, but for the hidden ones of inner graphs."""
    hidden = {found.value for found in _hidden(model) if found.graph is not model.graph}
    for graph in graphs(model):
        values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
        yield from (value.name for value in values if value not in hidden)
