"""Compute only the first elements of a value along an axis.

The mask of a static cache has a column for each row of the buffer, of which attention reads those up to the last row
that is written. They are computed from the first elements of what the mask is computed from, so that its cost does not
depend on the length of the buffer:

    slice(where(pad(mask, rows - total) != 0, 0, low), total)      where(mask != 0, 0, low)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from jaxport.graph.editing import (
    Dim,
    constant_of,
    dims_of,
    integer,
    is_op,
    number_of,
    permutation,
    source,
    sources,
    static_dims,
)
from jaxport.graph.fusing import Builder, is_view
from jaxport.onnx_facts import ELEMENTWISE, RESHAPING

#: The operand, the widths and the value of a Pad; a further input says along which axes.
MOST_INPUTS = 3


@dataclass(eq=False)
class Narrowing:
    """The first elements of values.

    Attributes:
      builder: inserts operators.
      size: how many elements.
      count: returns this number as a vector of one element of an integer type.
    """

    builder: Builder
    size: Dim
    count: Callable[[ir.DataType], ir.Value]
    made: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)

    def first(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the first elements of a value along an axis; the value itself if it has one element there, or as
        many.
        """
        dims = dims_of(value)
        assert dims is not None
        if dims[axis] in (1, self.size):
            return value
        if (value, axis) not in self.made:
            found = self._computed(value, axis, dims)
            self.made[value, axis] = self._sliced(value, axis, dims) if found is None else found
        return self.made[value, axis]

    def _computed(self, value: ir.Value, axis: int, dims: list[Dim]) -> ir.Value | None:
        """Return the first elements, computed from those of operands; None if they can only be sliced."""
        node = value.producer()
        if node is None or node.domain or constant_of(value) is not None:
            return None
        before = [dims_of(operand) for operand in node.inputs]
        if is_op(node, *ELEMENTWISE) and None not in before:
            places = [axis - len(dims) + len(own or ()) for own in before]
            operands = [one if at < 0 else self.first(one, at) for one, at in zip(sources(node), places, strict=True)]
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            return self.builder.emit(node.op_type, operands, self._narrow(dims, axis), value.dtype, **attributes)
        own = before[0] if before else None
        if is_op(node, *RESHAPING) and own is not None and is_view(own, dims):
            place = [at for at, dim in enumerate(own) if dim != 1][sum(dim != 1 for dim in dims[:axis])]
            return self.builder.viewed(self.first(source(node), place), self._narrow(dims, axis))
        if is_op(node, "Transpose") and own is not None:
            order = permutation(node)
            return self.builder.transposed(self.first(source(node), order[axis]), order) if order else None
        if is_op(node, "Gather") and integer(node, "axis", 0) == 0 and before[1] is not None and axis < len(before[1]):
            operands = [source(node), self.first(source(node, 1), axis)]
            return self.builder.emit("Gather", operands, self._narrow(dims, axis), value.dtype, axis=0)
        if is_op(node, "Range") and number_of(source(node)) == 0 and number_of(source(node, 2)) == 1:
            end = self.builder.viewed(self.count(value.dtype or ir.DataType.INT64), [])
            operands = [source(node), end, source(node, 2)]
            return self.builder.emit("Range", operands, [self.size], value.dtype)
        if is_op(node, "Concat") and integer(node, "axis", 0) % len(dims) == axis and own == self._narrow(dims, axis):
            return source(node)
        if is_op(node, "Pad") and own == self._narrow(dims, axis) and _starts_at_zero(node):
            return source(node)
        return None

    def _sliced(self, value: ir.Value, axis: int, dims: list[Dim]) -> ir.Value:
        builder = self.builder
        bounds = [builder.integers([0], "start"), self.count(ir.DataType.INT64), builder.integers([axis], "axis")]
        return builder.emit("Slice", [value, *bounds], self._narrow(dims, axis), value.dtype)

    def _narrow(self, dims: list[Dim], axis: int) -> list[Dim]:
        return [self.size if at == axis else dim for at, dim in enumerate(dims)]


def _starts_at_zero(pad: ir.Node) -> bool:
    """Whether a Pad is known to put elements behind those of its operand only."""
    widths, rank = source(pad, 1), len(dims_of(source(pad)) or ())
    parts = sources(concat) if is_op(concat := widths.producer(), "Concat") else [widths]
    numbers: list[int | None] = []
    for part in parts:
        array, size = constant_of(part), static_dims(dims_of(part))
        if array is None and (size is None or len(size) != 1):
            return False
        numbers += array.tolist() if array is not None else [None] * (size or [0])[0]
    return len(pad.inputs) <= MOST_INPUTS and "mode" not in pad.attributes and numbers[:rank] == [0] * rank
