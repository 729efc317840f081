"""Conversions of a program's inputs and outputs between the caller's form and the evaluator's."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.importer.dtypes import STRING
from jaxport.importer.host import HostValue, RuntimeValue

__all__ = ["external", "internal", "of_python"]


def of_python(declared: ir.Value, given: RuntimeValue, wanted: np.dtype | None) -> np.ndarray:
    """Convert an input given as Python numbers, or lists of them, to the declared type, if it has them."""
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


def internal(value: RuntimeValue) -> RuntimeValue:
    """Convert an input to the evaluator's form."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "OUST":
        return HostValue(np.asarray(value, dtype=object), STRING)
    return jnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def external(value: RuntimeValue) -> RuntimeValue:
    """Convert an output to the caller's form."""
    if isinstance(value, list):
        return [external(element) for element in value]
    if isinstance(value, dict):
        return {key: external(element) for key, element in value.items()}
    if isinstance(value, HostValue):
        return value.data if value.dtype == STRING else jnp.asarray(value.to_jax())
    return value
