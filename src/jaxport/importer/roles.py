"""Which inputs and initializers are data, which only decide shapes, and which are parameters to train."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from jaxport.importer.graph import Body, BodyFunction, Node
from jaxport.importer.registry import Operator

__all__ = ["parameters", "static_values"]

TRAINABLE = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


def static_values(body: Body, needed: Iterable[ir.Value] = ()) -> set[ir.Value]:
    """The values that have to be known while the program is traced: what `Host` inputs are computed from.

    Args:
      body: the graph, its outer values included in the result.
      needed: values of the body that have to be known for another reason.
    """
    static = set(needed)
    for node in reversed(body.nodes):
        wanted = [value for value in node.outputs if value in static]
        marks = [_mark(node, index) for index in range(len(node.inputs))]
        for value, mark in zip(node.inputs, marks, strict=True):
            if value is not None and (mark == "host" or (wanted and mark != "shape only")):
                static.add(value)
        for inner in node.bodies():
            # Which output belongs to which result is the operator's business: one that is needed needs all.
            static |= static_values(inner, inner.outputs if wanted else ())
            if not static.isdisjoint(inner.inputs):
                static.update(value for value in node.inputs if value is not None)
        if isinstance(node.target, BodyFunction):
            inside = static_values(node.target.body, node.target.body.outputs if wanted else ())
            given = zip(node.inputs, node.target.body.inputs, strict=False)
            static.update(value for value, formal in given if value is not None and formal in inside)
    return static


def _mark(node: Node, index: int) -> str | None:
    if isinstance(node.target, Operator):
        return node.target.input_mark(index)
    # What a function needs is found in its body.
    return "shape only"


def parameters(body: Body, static: set[ir.Value]) -> list[ir.Value]:
    """The initializers of the model's graph that are trainable: floating point tensors of rank one or more that no shape
    depends on.
    """
    return [
        value
        for value, tensor in body.initializers.items()
        if tensor.dtype in TRAINABLE and len(tensor.shape) > 0 and value not in static
    ]
