"""Small constants that exporters compute in the graph, such as the scale of an attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxport.codegen.literals import LARGEST_LITERAL
from jaxport.importer.host import HostValue, RuntimeValue, is_dim
from jaxport.importer.recording import Step, Variable

__all__ = ["folded"]

FOLDED: dict[str, Callable[..., RuntimeValue]] = {
    "jnp.sqrt": np.sqrt,
    "lax.rsqrt": lambda x: 1 / np.sqrt(x),
    "jnp.reciprocal": np.reciprocal,
    "jnp.asarray": np.asarray,
    "*": np.multiply,
    "/": np.true_divide,
}
"""Functions of constants that are computed while the source is printed."""


def folded(step: Step) -> HostValue | None:
    """Return the small constant of float32 that a step computes from others."""
    function, out = FOLDED.get(step.name), step.outputs
    if function is None or step.kwargs or out.dtype != np.float32 or any(isinstance(x, Variable) for x in step.args):
        return None
    operands = [_plain(arg) if isinstance(arg, HostValue) else arg for arg in step.args]
    if any(operand is None for operand in operands) or not any(isinstance(arg, HostValue) for arg in step.args):
        return None
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    if step.name != "jnp.asarray" and any(array.dtype != np.float32 for array in arrays):
        return None
    with np.errstate(all="ignore"):
        array = np.asarray(function(*operands), np.float32)
    return HostValue(array) if array.shape == out.shape else None


def _plain(value: HostValue) -> np.ndarray | None:
    """Return a small constant as an array; None if it is large, or has sizes that are only names."""
    if value.size > LARGEST_LITERAL or (value.symbolic and any(is_dim(element) for element in value.data.ravel())):
        return None
    return value.data.astype(np.int64) if value.symbolic else value.data
