"""Element types: ONNX's numbers and names for them, and the types that JAX uses."""

from __future__ import annotations

import jax
import numpy as np
import onnx_ir as ir

from jaxport.errors import AGAIN, ModelError

STRING = np.dtype(object)
"""The dtype of a tensor of strings: NumPy holds Python strings as objects."""

_NAMES = {"double": ir.DataType.DOUBLE, "float": ir.DataType.FLOAT}
_WIDE = {np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")}


def dtype_of(code: int, where: str = "") -> np.dtype:
    """Return the NumPy dtype of an ONNX element type, given as its number (`Cast.to`, `TensorProto.data_type`).

    Args:
      code: the number.
      where: the name of the place in errors.

    Raises:
      ModelError: ONNX has no such number.

    >>> dtype_of(1), dtype_of(16)
    (dtype('float32'), dtype(bfloat16))
    """
    try:
        return np.dtype(ir.DataType(code).numpy())
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{code} is not an ONNX element type",
            where=where,
            why=f"the numbers run from 1 to {max(map(int, ir.DataType))}",
            instead=f"{AGAIN}; the file may be damaged",
        ) from error


def from_type_string(text: str) -> np.dtype | None:
    """Return the dtype that a schema's type string names, or None if it is not a tensor type, or one that onnx_ir
    lacks.

    >>> from_type_string("tensor(int64)"), from_type_string("seq(tensor(int64))")
    (dtype('int64'), None)
    >>> from_type_string("tensor(of_a_newer_onnx)")
    """
    if not text.startswith("tensor("):
        return None
    name = text.removeprefix("tensor(").removesuffix(")")
    known = _NAMES.get(name) or ir.DataType.__members__.get(name.upper())  # onnx may be newer than onnx_ir
    return None if known is None else np.dtype(known.numpy())


def canonical(dtype: np.dtype) -> np.dtype:
    """Return the dtype that arrays of `dtype` have in JAX: the 32-bit type if 64-bit types are off.

    >>> canonical(np.dtype("int64"))
    dtype('int32')
    """
    if dtype in _WIDE and not jax.config.read("jax_enable_x64"):
        return np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    return dtype
