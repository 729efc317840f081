"""Constant folding while emitting: movements of constant data, and arithmetic on small integers.

Data that is only moved (a transposed or reshaped weight) stays a NumPy view, so nothing is copied, and weights are
moved only as long as that is so. Computed values are
folded only if they are small, and integers or booleans, whose arithmetic is exact. JAX itself computes floating-point
primitives of small constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxport.export.emit.value import Value
from jaxport.graph.editing import SMALL
from jaxport.jaxprs import JaxprEqn, Parameters, PythonFunction, dims
from jaxport.onnx_facts.integers import quotient


def _slice(
    x: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> np.ndarray:
    where = [slice(None)] * x.ndim
    along = range(len(starts)) if axes is None else axes.tolist()
    strides = [1] * len(starts) if steps is None else steps.tolist()
    for axis, start, end, step in zip(along, starts.tolist(), ends.tolist(), strides, strict=True):
        before_first = step < 0 and end < -x.shape[axis]
        where[axis] = slice(start, None if before_first else end, step)
    return x[tuple(where)]


def _reshape(x: np.ndarray, shape: np.ndarray, *, allowzero: int = 0) -> np.ndarray:
    return x.reshape([x.shape[i] if d == 0 and not allowzero else d for i, d in enumerate(shape.tolist())])


#: Operators that only move data: folded for constants of any size, as views where NumPy can.
MOVES: dict[str, PythonFunction] = {
    "Identity": lambda x: x,
    "Transpose": lambda x, *, perm: np.transpose(x, perm),
    "Reshape": _reshape,
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes.tolist())),
    "Squeeze": lambda x, axes=None: np.squeeze(x, None if axes is None else tuple(axes.tolist())),
}

#: Operators folded for small integers and booleans.
COMPUTES: dict[str, PythonFunction] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": quotient,
    "Neg": np.negative,
    "Abs": np.abs,
    "Max": np.maximum,
    "Min": np.minimum,
    "Clip": lambda x, low=None, high=None: x if low is high is None else np.clip(x, low, high),
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Where": np.where,
    "Concat": lambda *xs, axis: np.concatenate(xs, axis),
    "Gather": lambda x, indices, *, axis=0: np.take(x, indices, axis),
    "Slice": _slice,
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))),
}


def fold(
    op_type: str, operands: Sequence[Value | None], attributes: Parameters, dtype: DTypeLike, *, copies: bool = False
) -> Value | None:
    """Return the constant that an operator computes, or None if the graph has to compute it.

    Args:
      op_type: an operator of the default domain with one result.
      operands: its operands; nothing is folded unless all are constants.
      attributes: its attributes as Python values.
      dtype: the dtype of the result, known from the schema.
      copies: whether a weight is moved even if that copies it.
    """
    if not operands or any(x is not None and not x.is_constant for x in operands):
        return None
    first, *others = operands
    if op_type in MOVES and first is not None:
        rest = [None if x is None else x.constant for x in others]
        moved = first.moved(lambda x: MOVES[op_type](x, *rest, **attributes))
        # The pass `constants` knows whether other forms of a weight are used, from which a copy would be untied.
        return moved if first.held is None or copies or moved.shares_memory(first) else None
    exact = all(x is None or x.dtype.kind in "iub" for x in operands) and np.dtype(dtype).kind in "iub"
    arrays = [None if x is None else x.constant for x in operands] if exact else []
    if op_type == "Cast" and exact:
        result = arrays[0].astype(dtype)  # pyright: ignore[reportOptionalMemberAccess]
    elif op_type in COMPUTES and exact and sum(a.nbytes for a in arrays if a is not None) <= SMALL:
        try:
            with np.errstate(over="ignore"):
                result = np.asarray(COMPUTES[op_type](*arrays, **attributes)).astype(dtype)
        except (ZeroDivisionError, IndexError, ValueError):
            return None  # the error or value is left to the runtime
    else:
        return None
    return Value(dtype, result.shape, constant=result) if result.nbytes <= 8 * SMALL else None


CHOICES = frozenset({"eq", "ge", "gt", "le", "lt", "ne", "select_n"})
"""Primitives that compute no float that is not an operand."""


def computed(equation: JaxprEqn, operands: Sequence[Value]) -> list[Value] | None:
    """Return the results of a primitive on small constants, computed by JAX; None if that is left to the graph.

    Values that depend on a parameter, which has a name, are left to the pass `constants`. Positions along an axis stay
    a Range, which passes recognise.

    >>> equation = jax.make_jaxpr(lambda x: jnp.exp(x))(np.float32(0)).eqns[0]
    >>> [value.constant.tolist() for value in computed(equation, [Value(np.float32, (), constant=np.float32(0))])]
    [1.0]
    """
    avals: list[Any] = [variable.aval for variable in equation.outvars]
    if equation.effects or any(not x.is_constant or x.name for x in operands):
        return None
    if not operands and equation.primitive.name != "jit":  # of which nothing but positions comes from nothing
        return None
    if not all(hasattr(aval, "dtype") and dims.all_static(aval.shape) for aval in avals):
        return None
    shapes = [x.logical_shape or () for x in operands]
    if not all(map(dims.all_static, shapes)):
        return None
    # Integers, truth values and what chooses or compares floats, or numbers: passes that match larger computations
    # inspect larger constants.
    kinds = "iubf" if equation.primitive.name in CHOICES else "iub"
    for value, shape in zip((*avals, *operands), (*(aval.shape for aval in avals), *shapes), strict=True):
        dtype, count = np.dtype(value.dtype), math.prod(shape)
        if count > 1 and (dtype.kind not in kinds or count * dtype.itemsize > SMALL):
            return None
    # A constant may have one element in place of equal ones.
    arrays = [
        np.reshape(x.constant, shape) if np.size(x.constant) == math.prod(shape) else np.broadcast_to(x.constant, shape)  # pyright: ignore[reportArgumentType, reportCallIssue]
        for x, shape in zip(operands, shapes, strict=True)
    ]
    try:
        with jax.enable_x64(True):  # the operands keep their dtypes
            made = equation.primitive.bind(*map(jnp.asarray, arrays), **equation.params)
    except Exception:  # noqa: BLE001  prepared for a rule, and nothing that JAX itself would run
        return None
    results = [np.asarray(y) for y in (made if equation.primitive.multiple_results else [made])]
    if any(y.dtype != aval.dtype or y.shape != aval.shape for y, aval in zip(results, avals, strict=True)):
        return None
    return [Value(y.dtype, y.shape, constant=y) for y in results]


#: The neutral element of either operand. A float plus 0.0 is not among them: it loses the sign of -0.0.
NEUTRAL: dict[str, PythonFunction] = {
    "Add": lambda dtype: 0 if dtype.kind in "iu" else None,
    "Mul": lambda _: 1,
    "And": lambda _: True,
    "Or": lambda _: False,
    "Max": lambda dtype: np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf,
    "Min": lambda dtype: np.iinfo(dtype).max if dtype.kind in "iu" else np.inf,
}
#: The same for operators that have a neutral element only as their second operand.
NEUTRAL_SECOND: dict[str, PythonFunction] = {"Sub": lambda _: 0, "Div": lambda _: 1}


def without_neutral(op_type: str, operands: Sequence[Value | None]) -> Value | None:
    """Return the operand that an operator returns unchanged, or None if it computes something.

    >>> x = Value(np.int32, (3,))
    >>> without_neutral("Add", [x, Value(np.int32, (), constant=np.int32(0))]) is x
    True
    """
    if len(operands) != 2 or (op_type not in NEUTRAL and op_type not in NEUTRAL_SECOND):
        return None
    first, second = operands
    pairs = [(first, second), (second, first)] if op_type in NEUTRAL else [(first, second)]
    for kept, other in pairs:
        if kept is None or other is None or not other.is_constant or kept.shape is None:
            continue
        if other.name:  # a parameter stays even while it has its initial value
            continue
        if other.constant is None or other.constant.size > SMALL:
            continue
        neutral = (NEUTRAL.get(op_type) or NEUTRAL_SECOND[op_type])(other.dtype)
        aligned = zip(reversed(other.constant.shape), reversed(kept.shape), strict=False)
        inside = other.constant.ndim <= len(kept.shape) and all(n == 1 or d is n or d == n for n, d in aligned)
        if inside and neutral is not None and other.constant.size and bool((other.constant == neutral).all()):
            return kept
    return None
