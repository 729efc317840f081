"""The calls of operators as blocks, so that an export writes the operators of the file instead of what they consist
of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxport.blocks.marking.recorder import Boundary, Recorder
from jaxport.importer.resolving.graph import Attribute, BoundNode
from jaxport.importer.resolving.registry import RANDOM_KEY, Operator, OperatorFunction
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.image_layout import HWIO, OIHW, order
from jaxport.onnx_facts import DECODERS, PRIMITIVES, STATISTICS
from jaxport.onnx_facts.operation import FEW, OPERATION, ArrayOperand, KnownOperand, Operation

WRITTEN = int | float | str | tuple | HostValue
"""The types of the attributes that an export can write: bodies are not among them."""


def boundary(node: BoundNode, inputs: Sequence[RuntimeValue], attributes: Mapping[str, Attribute]) -> Boundary:
    """Return the boundary of the call of a node with these inputs."""
    operation = _operation(node, inputs, attributes)
    options = {} if operation is None else {OPERATION: operation}
    return Boundary(f"onnx.{node.node.op_type}", options)


def call(
    recorder: Recorder,
    node: BoundNode,
    function: OperatorFunction,
    inputs: Sequence[RuntimeValue],
    attributes: Mapping[str, Attribute],
    keywords: dict[str, object],
) -> Any:
    """Call the function of a node: as a block if an export may write the operator itself.

    The block has arrays as arguments only: what is known on the host stays known inside.
    """
    if node.node.domain == "" and node.node.op_type in PRIMITIVES:
        return function(*inputs, **keywords)
    marked = boundary(node, inputs, attributes)
    if not marked.options:
        return function(*inputs, **keywords)
    arrays = {index: _array(x) for index, x in enumerate(inputs) if _is_array(node, index, x)}

    def of_arrays(*values: jax.Array) -> object:
        given = dict(zip(arrays, values, strict=True))
        return function(*(given.get(index, x) for index, x in enumerate(inputs)), **keywords)

    return recorder.call_function(marked, of_arrays, tuple(arrays.values()), {})


def is_alias(node: BoundNode) -> bool:
    """Whether a node gives a weight another name, as exporters write equal weights: what reads it reads the weight."""
    value = node.inputs[0] if node.inputs else None
    while node.node.op_type == "Identity" and value is not None:
        maker = value.producer()
        if maker is None or maker.op_type != "Identity":
            return value.is_initializer()
        value = maker.inputs[0]
    return False


def _is_array(node: BoundNode, index: int, x: RuntimeValue) -> bool:
    """Whether an input is an argument of the block: stored values that a decoder enlarges are, though they are
    known.
    """
    decoded = index == 0 and node.node.op_type in DECODERS
    return isinstance(x, jax.Array) or (decoded and isinstance(x, HostValue) and not x.symbolic)


def _array(x: RuntimeValue) -> RuntimeValue:
    return jnp.asarray(x.to_jax()) if isinstance(x, HostValue) else x


def _operation(
    node: BoundNode, inputs: Sequence[RuntimeValue], attributes: Mapping[str, Attribute]
) -> Operation | None:
    """Return the operator of a node; None if only its function tells what it computes with these inputs."""
    arrays = [index for index, x in enumerate(inputs) if _is_array(node, index, x)]
    if node.version is None or node.bound is not None or not arrays:
        return None
    if isinstance(node.target, Operator) and RANDOM_KEY in node.target.context.values():
        return None
    if not all(isinstance(value, WRITTEN) for value in attributes.values()):
        return None
    operands: list[ArrayOperand | KnownOperand | None] = []
    for index, x in enumerate(inputs):
        if isinstance(x, jax.Array):
            is_kernel = index == 1 and node.kernel_layout == HWIO and node.input_mark(index) != "shape only"
            operands.append(ArrayOperand(arrays.index(index), order(HWIO, OIHW) if is_kernel else None))
        elif isinstance(x, HostValue) and x.dtype != STRING:
            is_named = x.size > FEW or index in STATISTICS.get(node.node.op_type, ())
            operands.append(KnownOperand(x.data, x.dtype, x.name if is_named else ""))
        elif x is None:
            operands.append(None)
        else:
            return None
    written = tuple(
        (name, KnownOperand(x.data, x.dtype) if isinstance(x, HostValue) else x) for name, x in attributes.items()
    )
    return Operation(node.node.domain, node.node.op_type, node.version, written, tuple(operands), len(node.outputs))
