"""The calls of operators as blocks, so that an export writes the operators of the file instead of what they consist of."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jaxport.blocks import Boundary, Recorder
from jaxport.importer.dtypes import STRING
from jaxport.importer.graph import BoundNode
from jaxport.importer.host import Attribute, HostValue, RuntimeValue
from jaxport.importer.image_layout import HWIO, OIHW, order
from jaxport.importer.registry import RANDOM_KEY, Operator, OperatorFunction
from jaxport.onnx_facts import PRIMITIVES
from jaxport.onnx_facts.operation import OPERATION, ArrayOperand, KnownOperand, Operation

__all__ = ["boundary", "call"]

WRITTEN = int | float | str | tuple | HostValue
"""The types of the attributes that an export can write: bodies are not among them."""


def boundary(node: BoundNode, inputs: Sequence[RuntimeValue], attributes: dict[str, Attribute]) -> Boundary:
    """Return the boundary of the call of a node with these inputs."""
    operation = _operation(node, inputs, attributes)
    options = {} if operation is None else {OPERATION: operation}
    return Boundary(f"onnx.{node.node.op_type}", options)


def call(
    recorder: Recorder,
    node: BoundNode,
    function: OperatorFunction,
    inputs: Sequence[RuntimeValue],
    attributes: dict[str, Attribute],
    keywords: dict[str, RuntimeValue],
) -> RuntimeValue:
    """Call the function of a node: as a block if an export may write the operator itself.

    The block has arrays as arguments only: what is known on the host stays known inside.
    """
    if node.node.domain == "" and node.node.op_type in PRIMITIVES:
        return function(*inputs, **keywords)
    marked = boundary(node, inputs, attributes)
    if not marked.options:
        return function(*inputs, **keywords)

    def of_arrays(*arrays: RuntimeValue) -> RuntimeValue:
        given = iter(arrays)
        return function(*(next(given) if isinstance(x, jax.Array) else x for x in inputs), **keywords)

    return recorder.call_function(marked, of_arrays, tuple(x for x in inputs if isinstance(x, jax.Array)), {})


def _operation(node: BoundNode, inputs: Sequence[RuntimeValue], attributes: dict[str, Attribute]) -> Operation | None:
    """Return the operator of a node; None if only its function tells what it computes with these inputs."""
    if node.version is None or node.bound is not None or not any(isinstance(x, jax.Array) for x in inputs):
        return None
    if isinstance(node.target, Operator) and RANDOM_KEY in node.target.context.values():
        return None
    if not all(isinstance(value, WRITTEN) for value in attributes.values()):
        return None
    operands: list[ArrayOperand | KnownOperand | None] = []
    count = 0
    for index, x in enumerate(inputs):
        if isinstance(x, jax.Array):
            is_kernel = index == 1 and node.kernel_layout == HWIO
            operands.append(ArrayOperand(count, order(HWIO, OIHW) if is_kernel else None))
            count += 1
        elif isinstance(x, HostValue) and x.dtype != STRING:
            operands.append(KnownOperand(x.data, x.dtype))
        elif x is None:
            operands.append(None)
        else:
            return None
    written = tuple(
        (name, KnownOperand(x.data, x.dtype) if isinstance(x, HostValue) else x) for name, x in attributes.items()
    )
    return Operation(node.node.domain, node.node.op_type, node.version, written, tuple(operands))
