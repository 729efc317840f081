"""Classify inputs and initializers: data, values that only decide shapes, and parameters to train."""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np
import onnx_ir as ir

from jaxport.importer.graph import Body, BodyFunction, BoundNode
from jaxport.importer.registry import Operator
from jaxport.importer.resolve import tensor_value
from jaxport.onnx_facts import ARITHMETIC, COMPARISONS, CONVOLUTIONS, MATRIX_PRODUCTS, SELECTIONS, SETTINGS

__all__ = ["kernels", "parameters", "static_values"]

TRAINABLE = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


def static_values(body: Body, needed: Iterable[ir.Value] = ()) -> set[ir.Value]:
    """Return the values that have to be known while the program is traced: those that `Host` inputs depend on.

    Args:
      body: the graph; the result includes its outer values.
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
            # Which output of a body is which result depends on the operator: one needed result needs all outputs.
            static |= static_values(inner, inner.outputs if wanted else ())
            if not static.isdisjoint(inner.inputs):
                static.update(value for value in node.inputs if value is not None)
        if isinstance(node.target, BodyFunction):
            inside = static_values(node.target.body, node.target.body.outputs if wanted else ())
            passed = zip(node.inputs, node.target.body.inputs, strict=False)
            static.update(value for value, formal in passed if value is not None and formal in inside)
    return static


def _mark(node: BoundNode, index: int) -> str | None:
    if isinstance(node.target, Operator):
        return node.target.input_mark(index)
    # What a function needs is read from its body.
    return "shape only"


_MOVED = SELECTIONS | {"Cast"}
"""Operators whose result has the role of their first input."""

_MASKED = ARITHMETIC - {"Div"} | {"Where"}
"""Operators that take masks."""

_TURNED = MATRIX_PRODUCTS | {"Concat", "Mul"}
"""Operators that compute angles from frequencies and positions."""

OUT_OF_RANGE = 1e4
"""The least magnitude of a mask's "minus infinity": no weight is as large."""


def parameters(body: Body, static: set[ir.Value]) -> list[ir.Value]:
    """Return the initializers of the model's graph that are trainable.

    They are floating point tensors of more than one element that no shape depends on, and that no node uses as a
    constant: as an exponent, a scale, a statistic, a mask, the frequencies of sines and cosines, or only to compare with.
    """
    candidates = {
        value: tensor
        for value, tensor in body.initializers.items()
        if tensor.dtype in TRAINABLE and tensor.size > 1 and value not in static
    }
    frozen, masked = _uses(body)
    angles = _only_for(body, {"Cos", "Sin"}, _MOVED | _TURNED)
    compared = _only_for(body, COMPARISONS, _MOVED)
    return [
        value
        for value, tensor in candidates.items()
        if value not in frozen | compared
        and not (value in masked and _is_mask(tensor))
        and not (value in angles and _is_vector(tensor))
    ]


def _only_for(body: Body, ends: Set[str], between: Set[str]) -> set[ir.Value]:
    """Return the values that only the operators `ends` read, directly or behind operators `between`."""
    others = {*body.outputs}
    used: set[ir.Value] = set()
    for node in reversed(body.nodes):
        operator = node.node.op_type
        leads = operator in ends or (
            operator in between and used.issuperset(node.outputs) and others.isdisjoint(node.outputs)
        )
        for value in node.inputs:
            if value is not None:
                (used if leads else others).add(value)
        for inner in node.bodies():
            others.update(inner.captured)
    return used - others


def _is_vector(tensor: ir.TensorProtocol) -> bool:
    return max(tensor.shape.numpy(), default=1) == tensor.size


def _uses(body: Body) -> tuple[set[ir.Value], set[ir.Value]]:
    """Return the values that are used as constants, and those that may be used as masks."""
    frozen: set[ir.Value] = set()
    masked: set[ir.Value] = set()
    for node in reversed(body.nodes):
        operator = node.node.op_type
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if index in SETTINGS.get(operator, ()):
                frozen.add(value)
            elif operator in _MASKED:
                masked.add(value)
            elif index == 0 and operator in _MOVED:
                for uses in (frozen, masked):
                    if not uses.isdisjoint(node.outputs):
                        uses.add(value)
        called = node.target.body if isinstance(node.target, BodyFunction) else None
        for inner in [*node.bodies(), *([called] if called else [])]:
            for uses, inside in zip((frozen, masked), _uses(inner), strict=True):
                uses |= inside
                if inner is called:
                    passed = zip(node.inputs, inner.inputs, strict=False)
                    uses.update(value for value, formal in passed if value is not None and formal in inside)
    return frozen, masked


def _is_mask(tensor: ir.TensorProtocol) -> bool:
    values = np.abs(tensor_value(tensor).data.astype(np.float64))
    return not bool((values < OUT_OF_RANGE).all())


def kernels(body: Body, candidates: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the values that are only kernels of two-dimensional convolutions, and may be kept in any layout."""
    uses: dict[ir.Value, bool] = {value: len(body.initializers[value].shape) == 4 for value in candidates}
    for value in body.outputs:
        uses[value] = False
    for node in body.nodes:
        for index, value in enumerate(node.inputs):
            if value in uses:
                convolves = isinstance(node.target, Operator) and node.target.name in CONVOLUTIONS
                uses[value] &= convolves and index == 1
        for inner in node.bodies():
            uses |= dict.fromkeys(inner.captured, False)
    return {value for value, only in uses.items() if only}
