"""Values that are known while JAX traces: constants, and the sizes of arrays, whose symbols they may hold."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.export import is_symbolic_dim

from jaxport.errors import Refusal, ValueNotKnown
from jaxport.jaxprs import Dim, InconclusiveDimensionOperation, PythonFunction
from jaxport.stablehlo.tree import HloOperation, TensorType, Value

MOST, FEW = 1024, 16
"""The most elements of values that are computed here, and of those that are sizes."""


def is_known(value: object) -> bool:
    """Whether a value is known: an array of NumPy, of sizes if its dtype is `object`."""
    return isinstance(value, np.ndarray)


def as_jax(value: Value) -> Any:
    """Return a value for a function of JAX: sizes that have names become arrays."""
    if not isinstance(value, np.ndarray) or value.dtype != object:
        return value
    parts = [jax.numpy.asarray(size, np.int32) for size in value.ravel()]
    return jax.numpy.stack(parts).reshape(value.shape) if value.ndim else parts[0]


def dims_of(value: Value, where: str) -> tuple[Dim, ...]:
    """Return a vector of sizes.

    Raises:
      ValueNotKnown: it is computed from values of arrays.
    """
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value)  # an array that no trace has made
        except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
            raise ValueNotKnown(
                "sizes are computed from values",
                [Refusal("size", where, "close over the values as NumPy arrays instead of passing them")],
            ) from None
    return tuple(size if is_symbolic_dim(size) else int(size) for size in value.ravel())


def sizes_of(sizes: Sequence[Dim], shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return sizes as a known value."""
    made = np.empty(len(sizes), object)
    made[:] = list(sizes)
    return _settled(made.reshape(shape or (len(sizes),)), np.dtype(np.int32))


def _settled(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return value if any(map(is_symbolic_dim, value.ravel())) else value.astype(dtype)


def _divide(x: Dim, y: Dim) -> Dim:
    if is_symbolic_dim(x) or is_symbolic_dim(y):
        return x // y  # of sizes, which are not negative
    return 0 if y == 0 else int(np.sign(x)) * int(np.sign(y)) * (abs(int(x)) // abs(int(y)))


def _sign(x: Dim) -> Dim:
    return 1 if is_symbolic_dim(x) and x >= 1 else int(x > 0) - int(x < 0)


def _maximum(x: Dim, y: Dim) -> Dim:
    return jax.core.max_dim(x, y) if is_symbolic_dim(x) or is_symbolic_dim(y) else max(x, y)


def _minimum(x: Dim, y: Dim) -> Dim:
    return jax.core.min_dim(x, y) if is_symbolic_dim(x) or is_symbolic_dim(y) else min(x, y)


def _is_zero(x: Dim) -> bool:
    """Whether a number is zero; the equality of symbols is false where they leave it open."""
    if not is_symbolic_dim(x):
        return bool(x == 0)
    for sign in (1, -1):
        try:
            if sign * x >= 1:
                return False
        except InconclusiveDimensionOperation:
            continue
    raise InconclusiveDimensionOperation(f"Symbolic dimension comparison '{x}' == '0' is inconclusive.")


_COMPARED = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": lambda x, y: _is_zero(x - y),
    "NE": lambda x, y: not _is_zero(x - y),
}
_ELEMENTWISE: dict[str, PythonFunction] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _divide,
    "remainder": lambda x, y: (
        x % y if is_symbolic_dim(x) and not is_symbolic_dim(y) and y > 0 else x - y * _divide(x, y)
    ),
    "negate": operator.neg,
    "maximum": _maximum,
    "minimum": _minimum,
    "sign": _sign,
    "and": operator.and_,
    "or": operator.or_,
    "not": lambda x: not x if isinstance(x, bool | np.bool_) else ~x,
    "select": lambda condition, x, y: x if condition else y,
    "clamp": lambda low, x, high: _minimum(_maximum(x, low), high),
}


def _broadcast(x: np.ndarray, kind: TensorType, dimensions: Sequence[int]) -> np.ndarray:
    shape = [1] * len(kind.shape)
    for axis, size in zip(dimensions, x.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), kind.shape)


def compute(operation: HloOperation, operands: Sequence[Value]) -> np.ndarray | None:
    """Return the result of an operation on whole numbers that are all known; None if it is to be computed by JAX."""
    kind = operation.types[0] if len(operation.types) == 1 else None
    if not isinstance(kind, TensorType) or kind.dtype.kind not in "iub" or kind.bytes > MOST * kind.dtype.itemsize:
        return None
    name, given = operation.name.removeprefix("stablehlo."), operation.attributes
    if name == "get_dimension_size":
        return sizes_of([operands[0].shape[given["dimension"]]], ()).reshape(())
    if name == "iota" and None not in kind.shape:
        axis = given["iota_dimension"]
        line = np.arange(kind.shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(kind.shape))])
        return np.broadcast_to(line, kind.shape).astype(kind.dtype)
    if not operands or not all(isinstance(x, np.ndarray) and x.dtype.kind in "iubO" for x in operands):
        return None
    match name:
        case "reshape" if None not in kind.shape:
            return operands[0].reshape(kind.shape)
        case "concatenate":
            return np.concatenate(operands, given["dimension"])
        case "slice":
            rows = zip(given["start_indices"], given["limit_indices"], given["strides"], strict=True)
            return operands[0][tuple(slice(*row) for row in rows)]
        case "broadcast_in_dim":
            return _broadcast(operands[0], kind, given["broadcast_dimensions"])
        case "convert":
            return operands[0] if operands[0].dtype == object else operands[0].astype(kind.dtype)
        case "compare":
            return _elementwise(_COMPARED[given["comparison_direction"]], operands, kind)
        case _ if name in _ELEMENTWISE:
            return _elementwise(_ELEMENTWISE[name], operands, kind)
    return None


def _elementwise(function: PythonFunction, operands: Sequence[np.ndarray], kind: TensorType) -> np.ndarray:
    arrays = np.broadcast_arrays(*operands) if any(x.ndim == 0 for x in operands) else operands
    made = np.empty(arrays[0].shape, object)
    rows = zip(*(x.ravel().tolist() for x in arrays), strict=True)
    made.ravel()[:] = values = [function(*row) for row in rows]
    if any(map(is_symbolic_dim, values)):
        return made
    bits = 8 * kind.dtype.itemsize
    wrapped = [int(v) & ((1 << bits) - 1) for v in values] if kind.dtype.kind != "b" else [bool(v) for v in values]
    unsigned = np.array(wrapped, f"u{kind.dtype.itemsize}" if kind.dtype.kind in "iu" else bool)
    return unsigned.view(kind.dtype).reshape(made.shape) if kind.dtype.kind in "iu" else unsigned.reshape(made.shape)
