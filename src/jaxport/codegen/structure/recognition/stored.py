"""Tensors that a file has as integers, and that a node dequantizes for one operator alone.

DequantizeLinear(q, s) of a stored `q`, read by one product   →   the weight `q * s` of its layer, computed once
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from jaxport.codegen.tree import Op, Weight
from jaxport.importer.ops.quantization import dequantize
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Variable
from jaxport.importer.values.stored import tensor_value
from jaxport.jaxprs.dims import static

OPTIONS = ("axis", "block_size")

MOST_OPERANDS = 4
"""Of what has more operands, such as a sum, none is the weight of a layer."""


class StoredOperand(NamedTuple):
    """A tensor of integers, and the node that dequantizes it for one operator alone."""

    tensor: ir.Value
    node: ir.Node

    @property
    def name(self) -> str:
        return self.tensor.name or ""

    @property
    def arrays(self) -> list[np.ndarray]:
        """The integers, their scale, and their zero point if they have one."""
        return [
            tensor_value(part.const_value).data for part in self.node.inputs if part is not None and part.const_value
        ]

    @property
    def options(self) -> dict[str, int]:
        return {key: self.node.attributes[key].as_int() for key in OPTIONS if key in self.node.attributes}

    def values(self, order: Sequence[int] = ()) -> np.ndarray:
        """Return the dequantized tensor, perhaps with its axes in another order."""
        values = np.asarray(dequantize(*self.arrays, **self.options))
        return values.transpose(order) if order else values

    def order(self, value: Variable | HostValue, made: Mapping[Variable, Op]) -> list[int] | None:
        """Return the order in which a value has the axes of the dequantized tensor; None if it is another value."""
        rank = len(value.shape)
        plain, turned = [*range(rank)], [*range(rank)][::-1]
        if isinstance(value, HostValue):
            if value.symbolic:
                return None
            values = self.values()
            return next(
                (order for order in (plain, turned) if np.array_equal(values.transpose(order), value.data)), None
            )
        op, order = made.get(value), plain
        if op is not None and op.step.name in ("T", "jnp.transpose"):
            source, *axes = op.step.args
            order, op = [*axes[0]] if axes else turned, made.get(source)
        return order if op is not None and op.step.node is self.node else None


def stored_operands(node: object) -> Iterator[StoredOperand]:
    """Yield the operands of a node that the file has quantized, and that nothing else reads."""
    for operand in node.inputs[:MOST_OPERANDS] if isinstance(node, ir.Node) else ():
        source = operand.producer() if operand is not None else None
        if source is None or source.op_type != "DequantizeLinear" or len(operand.uses()) != 1:  # type: ignore[union-attr]
            continue
        tensor, scale = source.inputs[:2]
        if tensor is None or tensor.const_value is None or scale is None or scale.const_value is None:
            continue
        if len(tensor.uses()) == 1:
            yield StoredOperand(tensor, source)


def dequantized(value: object, node: object, made: Mapping[Variable, Op]) -> Weight | None:
    """Return the weight that an operand of a node is, if the file has it quantized, and nothing else reads that.

    `made` has the operators that make values.
    """
    if not isinstance(value, Variable | HostValue):
        return None
    for stored in stored_operands(node):
        if isinstance(value, HostValue):
            return Weight(stored.name, value.shape, value.dtype, lambda: value.data, trained=True)
        order = stored.order(value, made)
        if order is not None:
            return Weight(stored.name, static(value.shape), np.dtype(value.dtype), partial(stored.values, order))
    return None
