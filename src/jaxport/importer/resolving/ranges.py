"""Ranges of sizes: PyTorch writes `arange(n, dtype=float32)` as a Range of floats, whose end is a cast of a size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, is_op
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.values.dtypes import STRING, dtype_of

__all__ = ["count_ranges"]

DEEPEST = 20


def count_ranges(body: Body) -> None:
    """Compute ranges of floats whose bounds are casts of integers on the integers, and cast their elements.

    A size that only has a name stays one that way; as a float it would be an array, of which the length of no range can be
    known.
    """
    makers = {value: node for node in body.nodes for value in node.outputs if value is not None}
    for node in body.nodes:
        if is_op(node.node, "Range") and len(node.inputs) == 3:
            _count(body, node, makers)


def _count(body: Body, node: BoundNode, makers: Mapping[ir.Value, BoundNode]) -> None:
    origins = [_integers(value, makers) for value in node.inputs]
    kind = next((kind for kind, _ in filter(None, origins)), None)
    numbers = [constant_of(value) if value is not None else None for value in node.inputs]
    if kind is None or any(
        origin is None and not _is_whole(number) for origin, number in zip(origins, numbers, strict=True)
    ):
        return
    inputs = []
    for value, origin, number in zip(node.inputs, origins, numbers, strict=True):
        if origin is not None:
            inputs.append(origin[1])
            continue
        assert value is not None
        assert number is not None
        whole = ir.Value(name=f"{value.name}_integer")
        body.initializers[whole] = ir.tensor(number.astype(np.int64).reshape(()), name=whole.name)
        inputs.append(whole)
    node.inputs, node.output_types = tuple(inputs), (kind,)


def _is_whole(number: np.ndarray | None) -> bool:
    """Whether a constant is one whole number."""
    return (
        number is not None
        and number.size == 1
        and bool(np.isfinite(number).all())
        and float(number.item()).is_integer()
    )


def _integers(value: ir.Value | None, makers: Mapping[ir.Value, BoundNode]) -> tuple[np.dtype, ir.Value] | None:
    """Return the floating point type to which integers are cast for a value, and the integers."""
    for _ in range(DEEPEST):
        node = makers.get(value) if value is not None else None
        if node is None or not is_op(node.node, "Cast", "Identity") or node.inputs[0] is None:
            return None
        if node.node.op_type == "Cast":
            to = node.attributes.get("to")
            kind, source = dtype_of(to) if isinstance(to, int) else None, _dtype(node.inputs[0], makers)
            if kind is None or source is None or kind.kind != "f" or source.kind not in "iu":
                return None
            return kind, node.inputs[0]
        value = node.inputs[0]
    return None


def _dtype(value: ir.Value | None, makers: Mapping[ir.Value, BoundNode]) -> np.dtype | None:
    """Return the type of the elements of a value: the declared one, or that of what makes it."""
    for _ in range(DEEPEST):
        if value is None:
            return None
        if value.dtype is not None and value.dtype != ir.DataType.STRING:
            return value.dtype.numpy()
        node = makers.get(value)
        kind = None if node is None else node.output_types[[*node.outputs].index(value)]
        if node is None or not isinstance(kind, int):
            return kind if isinstance(kind, np.dtype) and kind != STRING else None
        value = node.inputs[kind]
    return None
