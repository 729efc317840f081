"""An operator of a model that was imported, as the options of the block that its call is tell it to an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

OPERATION = "onnx"
"""The key of the operation among a block's options."""

FEW = 16
"""Constants with at most this many elements need no name."""


@dataclass(frozen=True)
class ArrayOperand:
    """An operand that is an array.

    Attributes:
      index: its position among the arguments of the block.
      axes: how its axes are to be transposed for the operator, if its axes have another order in the program.
    """

    index: int
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class KnownOperand:
    """An operand whose elements were known while JAX traced: sizes, axes, bounds, zero points.

    Attributes:
      data: its elements; an array of objects if some are dims.
      dtype: its dtype in the model.
      name: its name, if it is a tensor of the model.

    >>> KnownOperand(np.arange(2), np.dtype("int64")) == KnownOperand(np.array([0, 1]), np.dtype("int64"))
    True
    """

    data: np.ndarray
    dtype: np.dtype
    name: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KnownOperand) or self._kind != other._kind:
            return False
        if self.data is other.data:
            return True
        if object in (self.data.dtype, other.data.dtype):
            return self.data.tolist() == other.data.tolist()
        return self.data.tobytes() == other.data.tobytes()

    def __hash__(self) -> int:
        return hash(self._kind)

    @property
    def _kind(self) -> tuple:
        return self.dtype, self.data.shape, self.name


@dataclass(frozen=True)
class Operation:
    """One node of a model: what an export needs to write it again.

    Attributes:
      domain: the domain of the operator, empty for ONNX's own.
      name: the operator.
      version: the version of the domain's opset.
      attributes: its attributes as Python values and arrays.
      operands: what each input is; None for those left out.
      outputs: the number of its outputs.
    """

    domain: str
    name: str
    version: int
    attributes: Sequence[tuple[str, Any]]
    operands: Sequence[ArrayOperand | KnownOperand | None]
    outputs: int = 1


def operation_of(options: Mapping[str, Any]) -> Operation | None:
    """Return the operation in the options of a block; one that was written and read again is described, but lost.

    >>> operation_of({"other": 1}) is None
    True
    """
    operation = options.get(OPERATION)
    return operation if isinstance(operation, Operation) else None
