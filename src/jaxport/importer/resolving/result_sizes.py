"""Predict the size of an operation's result before computing it.

A node's inputs and attributes bound its result: no operator makes more elements than the product of its inputs' sizes
and of the numbers among its inputs and attributes. If that product is harmless, nothing more is checked. Otherwise the
operator is traced, which costs no memory, and the size of its result is checked against the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import onnx_ir as ir
from jax.core import Tracer

from jaxport.errors import AGAIN, ModelError
from jaxport.importer.limits import budget_in_force
from jaxport.importer.resolving.graph import Attribute, Body, BoundNode, describe
from jaxport.importer.values.host import HostValue, RuntimeValue, is_array

MOST_NUMBERS = 64
"""The largest input whose elements may be sizes, and are multiplied; of a larger one its own size counts."""

WIDEST = 16
"""Bytes of an element."""


def check_results(node: BoundNode, outputs: Sequence[Any]) -> None:
    """Refuse results that exceed the limits; under a trace they are not computed yet.

    Raises:
      ModelError: one is.
    """
    budget = budget_in_force()
    for output in outputs:
        for part in output if isinstance(output, list) else (output,):
            size = bytes_of(part)
            if size > budget.largest:
                budget.refuse(size, describe(node.node), f"the result of shape {list(part.shape)}")


def bytes_of(value: object) -> int:
    """Return the bytes of an array of any kind, not counting symbolic sizes; 0 for other values."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        return 0
    return math.prod(n for n in shape if isinstance(n, int)) * getattr(dtype, "itemsize", 8)


def foresee(
    node: BoundNode,
    inputs: Sequence[RuntimeValue],
    attributes: Mapping[str, Attribute],
    call: Callable[[list[RuntimeValue]], object],
) -> None:
    """Refuse an operation on arrays whose result would be larger than the limits allow.

    Args:
      node: the operation.
      inputs: the values of its inputs; under a trace nothing is checked, since `check_results` is in time.
      attributes: its attributes.
      call: computes it, given its inputs.

    Raises:
      ModelError: the result would be too large.
    """
    product = math.prod(map(_magnitude, (*inputs, *attributes.values())))
    if product * WIDEST <= budget_in_force().largest or any(isinstance(value, Tracer) for value in inputs):
        return
    key = tuple(map(_key, inputs))
    if key in node.foreseen:
        return
    arrays = {index: value for index, value in enumerate(inputs) if isinstance(value, jax.Array)}
    try:
        made = jax.eval_shape(lambda traced: call([traced.get(i, value) for i, value in enumerate(inputs)]), arrays)
    except Exception:  # noqa: BLE001  it needs the values of its inputs: they bound its result, or its own checks do
        return
    check_results(node, jax.tree.leaves(made))
    if None not in key:
        node.foreseen = (*node.foreseen[-3:], key)


def _magnitude(value: object) -> float:
    """Return the largest factor by which a value may multiply the size of a result."""
    if isinstance(value, HostValue) and value.size <= MOST_NUMBERS and value.dtype.kind in "iuf" and not value.symbolic:
        return math.prod(max(1.0, abs(number)) for number in map(float, value.data.ravel()) if number == number)
    if isinstance(value, HostValue | jax.Array):
        return max(1.0, float(math.prod(n for n in value.shape if isinstance(n, int))))
    if isinstance(value, bool | Body) or value is None:
        return 1.0
    if isinstance(value, int | float):
        return max(1.0, abs(float(value))) if value == value else 1.0
    return math.prod(map(_magnitude, value)) if isinstance(value, tuple | list) else 1.0


def _key(value: RuntimeValue) -> tuple[Hashable, ...] | None:
    if isinstance(value, HostValue):
        return (value.shape, value.data.tobytes()) if value.size <= MOST_NUMBERS and not value.symbolic else None
    return (value.shape, str(value.dtype)) if is_array(value) else ()


_WINDOW = frozenset({"dilations", "kernel_shape", "output_padding", "pads", "strides"})
LARGEST_STEP = 2**24
"""The largest reach or step of a window: no image is as large, and XLA aborts at some products of such numbers."""


def check_window(attribute: ir.Attr, node: ir.Node) -> None:
    """Refuse an attribute by which a window reaches too far.

    Raises:
      ModelError: it has a larger number than any image needs.
    """
    if attribute.name in _WINDOW and attribute.type == ir.AttributeType.INTS and not attribute.is_ref():
        wide = next((size for size in attribute.as_ints() if abs(size) > LARGEST_STEP), None)
        if wide is not None:
            raise ModelError(
                f"`{attribute.name}` has {wide:,}",
                where=describe(node),
                why=f"no window may be larger than {LARGEST_STEP:,}",
                instead=AGAIN,
            )
