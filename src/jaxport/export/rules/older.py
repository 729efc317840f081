"""Operators of older opsets as those of newer ones that compute the same: other names, attributes and layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from jaxport.export.emit.value import Value
from jaxport.jaxprs import Shape
from jaxport.onnx_facts import INITIAL_STATES
from jaxport.onnx_facts.operation import KnownOperand, Operation

Around = Callable[..., Value]


def _as_it_is(op, place, value, shape):
    return value


def _same_shape(place, shape):
    return shape


@dataclass(frozen=True)
class Renewed:
    """An operation of a newer opset, and what to do around it.

    Attributes:
      operation: the operation.
      operand: from an emitter, the place of an operand, the operand, and its shape, to the operand of the new
        operation.
      result: the same for results; the shape is that of the old operation's.
      shape: from the place of a result and the shape that it had, to the one that it has before `result`.
    """

    operation: Operation
    operand: Around = _as_it_is
    result: Around = _as_it_is
    shape: Callable[[int, Shape], Shape] = _same_shape


def renewed(operation: Operation, rank: int) -> Renewed:
    """Return the operation of a newer opset that computes the same, or the same one.

    Args:
      operation: an operation of the default domain.
      rank: the number of axes of its first operand.

    >>> older = Operation("", "GridSample", 16, [("mode", "bicubic")], [])
    >>> renewed(older, 4).operation
    Operation(domain='', name='GridSample', version=20, attributes=(('mode', 'cubic'),), operands=[], outputs=1)
    """
    until, renew = RENEWED.get(operation.name, (0, None))
    if operation.domain or renew is None or operation.version >= until:
        return Renewed(operation)
    return renew(operation, dict(operation.attributes), rank)


def _changed(operation, attributes, version, **changes):
    return replace(operation, version=version, attributes=tuple(attributes.items()), **changes)


def _grid_sample(operation, attributes, rank):
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = attributes.get("mode", "bilinear")
    return Renewed(_changed(operation, {**attributes, "mode": names.get(mode, mode)}, 20))


def _roi_align(operation, attributes, rank):
    return Renewed(_changed(operation, {**attributes, "coordinate_transformation_mode": "output_half_pixel"}, 16))


def _softmax(operation, attributes, rank):
    """Flatten the axes that version 12 and older normalize over, unless there is one."""
    axis = attributes.get("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis == rank - 1:
        return Renewed(_changed(operation, {"axis": -1}, 13))

    def flat(shape):
        return (*shape[:axis], math.prod(shape[axis:]))

    return Renewed(
        _changed(operation, {"axis": -1}, 13),
        lambda op, _place, value, shape: op.reshape(value, flat(shape)),
        lambda op, _place, value, shape: op.reshape(value, shape),
        lambda _place, shape: flat(shape),
    )


def _resize(operation, attributes, rank):
    """Before version 11, positions are those of the corners of elements, rounded down."""
    x, *rest = operation.operands
    scales = rest[0] if rest else KnownOperand(np.array(attributes["scales"], np.float32), np.dtype(np.float32))
    mode = attributes.get("mode", "nearest")
    changed = {"mode": {"bilinear": "linear"}.get(mode, mode), "coordinate_transformation_mode": "asymmetric"}
    if mode == "nearest":
        changed["nearest_mode"] = "floor"
    return Renewed(_changed(operation, changed, 11, name="Resize", operands=(x, None, scales)))


def _cast(operation, attributes, rank):
    return Renewed(_changed(operation, {"to": int(ir.DataType[attributes["to"].upper()])}, 6))


def _prelu(operation, attributes, rank):
    def slope(op, place, value, shape):
        return op.reshape(value, (math.prod(shape), *[1] * (rank - 2))) if place == 1 else value

    return Renewed(_changed(operation, {}, 7), slope)


def _top_k(operation, attributes, rank):
    count = KnownOperand(np.array([attributes.pop("k")]), np.dtype(np.int64))
    return Renewed(_changed(operation, attributes, 10, operands=(operation.operands[0], count)))


def _scatter(operation, attributes, rank):
    return Renewed(_changed(operation, attributes, 11, name="ScatterElements"))


def _recurrent(operation, attributes, rank):
    """Leave out whether the first output is wanted, which naming it says, and put the batch after the steps."""
    attributes.pop("output_sequence", None)
    batch_first = attributes.pop("layout", 0)
    changed = _changed(operation, attributes, max(operation.version, 7))
    if not batch_first:
        return Renewed(changed)
    states = INITIAL_STATES[operation.name]

    def moved(shape, axes):
        return tuple(shape[axis] for axis in axes)

    def operand(op, place, value, shape):
        return op.transpose(value, (1, 0, 2)) if place == 0 or place in states else value

    return Renewed(
        changed,
        operand,
        lambda op, place, value, _shape: op.transpose(value, (1, 0, 2) if place else (2, 0, 1, 3)),
        lambda place, shape: moved(shape, (1, 0, 2) if place else (1, 2, 0, 3)),
    )


#: By operator, the version from which on it is written as it is, and the function for older ones.
RENEWED: dict[str, tuple[float, Callable[..., Renewed]]] = {
    "Cast": (6, _cast),
    "GRU": (math.inf, _recurrent),
    "GridSample": (20, _grid_sample),
    "Hardmax": (13, _softmax),
    "LSTM": (math.inf, _recurrent),
    "LogSoftmax": (13, _softmax),
    "PRelu": (7, _prelu),
    "RNN": (math.inf, _recurrent),
    "Resize": (11, _resize),
    "RoiAlign": (16, _roi_align),
    "Scatter": (11, _scatter),
    "Softmax": (13, _softmax),
    "TopK": (10, _top_k),
    "Upsample": (10, _resize),
}
