"""What is given to a program and what it gives back, as the caller and as the evaluator have it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.importer.dtypes import STRING
from jaxport.importer.host import HostValue

__all__ = ["external", "internal", "of_python"]


def of_python(declared: ir.Value, given: Any, wanted: np.dtype | None) -> np.ndarray:
    """An input that is given as numbers of Python, or lists of such, in the declared type, if it has them."""
    try:
        array = np.asarray(given)
        if array.dtype.kind != "f" or wanted is None or not (wanted.kind == "b" or jnp.issubdtype(wanted, np.integer)):
            return np.asarray(given, dtype=wanted)
        why = "fractions are no integers"
    except (ValueError, TypeError, OverflowError) as error:
        why = str(error)
    raise InvalidArgument(
        f"the input `{declared.name}` cannot be {wanted}",
        where="the call of the program",
        why=why,
        instead="give an array of the declared type",
    )


def internal(value: Any) -> Any:
    """An input as the evaluator has it."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "OUST":
        return HostValue(np.asarray(value, dtype=object), STRING)
    return jnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def external(value: Any) -> Any:
    """An output as the caller gets it."""
    if isinstance(value, list):
        return [external(element) for element in value]
    if isinstance(value, dict):
        return {key: external(element) for key, element in value.items()}
    if isinstance(value, HostValue):
        return value.data if value.dtype == STRING else jnp.asarray(value.to_jax())
    return value
