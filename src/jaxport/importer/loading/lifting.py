"""Constants as initializers of the main graph, wherever the file keeps them.

Exporters put weights into initializers or into `Constant` nodes, of the main graph, of a branch, or of a function: all
are the same to a runtime, and to those who train them. Functions get them as further inputs (`captures`). Integers stay
where they are: shapes and axes are of interest where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Namer, graphs, is_op, subgraphs
from jaxport.importer.loading.captures import Captures
from jaxport.importer.loading.claims import Role, claims
from jaxport.onnx_facts import KERNEL_PRODUCTS, MATRIX_PRODUCTS, WEIGHTS

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


class Hidden(NamedTuple):
    """A tensor of floats that is no initializer of the main graph: its value, the graph that has it, and the function,
    if any.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    graph: ir.Graph
    function: ir.Function | None


def has_hidden(model: ir.Model) -> bool:
    """Whether the model has tensors of floats that are no initializers of the main graph."""
    return next(_tensors(model.graph), None) is not None or bool(_in_functions(model, Captures(model)))


def lift(model: ir.Model) -> None:
    """Make the tensors of floats initializers of the main graph, in place.

    They have the names of their values. Before those of a function is the path of its only call, or else its name,
    unless the file claims a role for them.
    """
    captures, claimed = Captures(model), claims(model)
    in_graph, in_functions = list(_tensors(model.graph)), _in_functions(model, captures)
    inner = {hidden.value for hidden in (*in_graph, *in_functions) if hidden.graph is not model.graph}
    namer = Namer(_names(model, inner)) if inner else None
    taken: dict[ir.Function, dict[ir.Value, str]] = {}
    for hidden in (*in_graph, *in_functions):
        name, function = hidden.value.name or "", hidden.function
        wish = name if function is None or name in claimed else f"{captures.path(function)}.{name}"
        # Branches may use one name for several values.
        unique = namer.unique(wish) if namer is not None and hidden.value in inner else wish
        kind, shape = ir.TensorType(hidden.tensor.dtype), ir.Shape(hidden.tensor.shape.numpy())
        lifted = ir.Value(name=unique, type=kind, shape=shape, const_value=hidden.tensor)
        if function is None:
            _replace(hidden, lifted)
        else:
            taken.setdefault(function, {})[lifted] = name
            hidden.value.name = None
        model.graph.register_initializer(lifted)
    for hidden, value in zip(in_functions, captures.take(taken), strict=True):
        _replace(hidden, value)


def _replace(hidden: Hidden, by: ir.Value) -> None:
    name, node = hidden.value.name or "", hidden.value.producer()
    hidden.value.replace_all_uses_with(by)
    if node is not None:
        hidden.graph.remove(node, safe=True)
    else:
        del hidden.graph.initializers[name]


def _in_functions(model: ir.Model, captures: Captures) -> list[Hidden]:
    """Return the tensors of functions that may be weights, function by function."""
    claimed = claims(model)
    found = {f: [h for h in _tensors(f.graph, f) if _may_be_weight(h, claimed)] for f in captures.functions}
    if not captures.allow({function: len(tensors) for function, tensors in found.items()}):
        return []
    return [hidden for tensors in found.values() for hidden in tensors]


def _tensors(root: ir.Graph, function: ir.Function | None = None) -> Iterator[Hidden]:
    """Yield the tensors of floats of a graph and of its subgraphs, but for the initializers of the main graph."""
    for graph in [root, *subgraphs(root)]:
        for node in graph:
            value = node.outputs[0] if is_op(node, "Constant") and len(node.outputs) == 1 else None
            tensor = _tensor(node) if value is not None else None
            if value is None or tensor is None or tensor.dtype not in FLOATS:
                continue
            if value.name and value.uses() and not value.is_graph_output():
                yield Hidden(value, tensor, graph, function)
        for value in graph.initializers.values() if graph is not root or function is not None else ():
            tensor = value.const_value
            if tensor is None or tensor.dtype not in FLOATS or value.is_graph_input() or value.is_graph_output():
                continue
            if value.uses():
                yield Hidden(value, tensor, graph, function)


def _may_be_weight(hidden: Hidden, claimed: Mapping[str, Role]) -> bool:
    """Whether a tensor of a function is not a number that only belongs to a computation, which is recognised where it
    is.
    """
    value = hidden.value
    if hidden.tensor.size != 1 or claimed.get(value.name or "", "constant") != "constant":
        return True
    return any(index in WEIGHTS.get(node.op_type, ()) or _is_bias(value, node) for node, index in value.uses())


def _is_bias(value: ir.Value, node: ir.Node) -> bool:
    others = [other.producer() for other in node.inputs if other is not None and other is not value]
    return is_op(node, "Add") and any(is_op(maker, *MATRIX_PRODUCTS, *KERNEL_PRODUCTS) for maker in others)


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


def _names(model: ir.Model, hidden: Set[ir.Value]) -> Iterator[str | None]:
    """Yield the names of all values but the hidden ones, as often as graphs have them."""
    for graph in graphs(model):
        values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
        yield from (value.name for value in values if value not in hidden)
