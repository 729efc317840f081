"""Common subexpression elimination: nodes that compute the same thing are merged.

Two nodes are the same if operator, attributes and operands are, in any order for commutative operators; small constants
are compared by content. A subgraph also reuses what the graphs around it have computed before.
"""

from __future__ import annotations

import collections

import onnx_ir as ir

from jaxport.graph.editing import SMALL, bodies, constant_of, held, is_weight, memory_of, roots, substitute
from jaxport.onnx_facts import COMMUTATIVE, RANDOM

Known = collections.ChainMap[tuple, ir.Node]


def repeated(model: ir.Model) -> str:
    """Eliminate common subexpressions in the graph, its subgraphs and its functions."""
    removed = sum(_shared(root, collections.ChainMap()) for root in roots(model))
    return f"{removed} nodes removed" if removed else "nothing to do"


def _shared(graph: ir.Graph, known: Known) -> int:
    removed = 0
    for node in list(graph):
        if node.graph is None:
            continue
        inner = bodies(node)
        for subgraph in inner:
            removed += _shared(subgraph, known.new_child())
        if inner or node.op_type in RANDOM:
            continue
        key = _key(node)
        first = known.get(key)
        if first is None or first.graph is None:  # it may have been removed together with its only user
            known[key] = node
        else:
            substituted = [substitute(old, new) for old, new in zip(node.outputs, first.outputs, strict=True)]
            removed += all(substituted)
    return removed


def _key(node: ir.Node) -> tuple:
    """Return a key that nodes share if and only if they compute the same results."""
    operands = [_operand_key(value) for value in node.inputs]
    if node.op_type in COMMUTATIVE:
        operands.sort(key=hash)
    attributes = [(name, _attribute_key(node, attribute)) for name, attribute in node.attributes.items()]
    return (node.op_identifier(), len(node.outputs), tuple(operands), tuple(sorted(attributes)))


def _operand_key(value: ir.Value | None) -> object:
    array = constant_of(value)
    if value is not None and is_weight(value):  # an equal weight is another one
        return value if array is None else (held(value), str(array.dtype), *memory_of(array))
    if array is None or array.nbytes > SMALL or array.dtype == object:
        return value
    return (array.dtype, array.shape, array.tobytes())


def _attribute_key(node: ir.Node, attribute: ir.Attr) -> object:
    if attribute.type is ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return node if tensor.nbytes > SMALL else (str(tensor.dtype), str(tensor.shape), tensor.tobytes())
    return str(attribute.value)
