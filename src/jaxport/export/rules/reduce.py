"""Reductions and what accumulates along an axis."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.export.registry import rule


def reduced(op, op_type, x, axes):
    """A reduction operator over `axes`, which vanish."""
    return op.emit(op_type, x, tuple(int(a) for a in axes), keepdims=0)


@rule("reduce_sum")
def reduce_sum(op, x, *, axes):
    if not axes:
        return x
    if x.dtype.kind in "iu" and x.dtype.itemsize < 8:
        # The runtime's sums of integers saturate; in int64 they are exact, and the cast wraps as JAX does.
        return op.cast(reduced(op, "ReduceSum", op.cast(x, np.int64), axes), x.dtype)
    if x.dtype.kind in "iu":
        return op.call(_sum_by_matmul, x, axes=tuple(axes))
    return reduced(op, "ReduceSum", x, axes)


def _sum_by_matmul(x, *, axes):
    """A product with ones wraps exactly, where the runtime sums 64-bit integers in double."""
    kept = [a for a in range(x.ndim) if a not in axes]
    matrix = x.transpose(*kept, *axes).reshape(*(x.shape[a] for a in kept), -1)
    return matrix @ np.ones(matrix.shape[-1], x.dtype)


@rule("reduce_prod")
def reduce_prod(op, x, *, axes):
    return reduced(op, "ReduceProd", x, axes) if axes else x


def extremum(op_type):
    position = {"ReduceMax": jnp.argmax, "ReduceMin": jnp.argmin}[op_type]

    def emits(op, x, *, axes):
        if not axes:
            return x
        if x.dtype.kind in "iu" and x.dtype.itemsize == 8:  # the runtime compares int64 by halves, with wrong results
            return op.call(_at_position, x, axes=tuple(axes), position=position)
        if x.dtype == np.uint32:  # nothing wider but int64
            return op.cast(reduced(op, op_type, op.cast(x, np.float64), axes), np.uint32)
        result = reduced(op, op_type, x, axes)
        if x.dtype.kind not in "fV":
            return result
        # A NaN anywhere makes the result NaN in JAX; the runtime sees only one that comes first.
        any_nan = reduced(op, "ReduceMax", op.cast(op.IsNaN(x), np.uint8), axes)
        return op.Where(op.cast(any_nan, np.bool_), op.const(np.nan, x.dtype), result)

    emits.__qualname__ = f"extremum {op_type}"
    return emits


def _at_position(x, *, axes, position):
    """The element over some axes that `argmax` or `argmin` finds."""
    kept = [a for a in range(x.ndim) if a not in axes]
    rows = x.transpose(*kept, *axes).reshape(*(x.shape[a] for a in kept), -1)
    return jnp.take_along_axis(rows, position(rows, axis=-1, keepdims=True), -1).squeeze(-1)


rule("reduce_max")(extremum("ReduceMax"))
rule("reduce_min")(extremum("ReduceMin"))


@rule("reduce_and")
def reduce_and(op, x, *, axes):
    return op.cast(reduced(op, "ReduceMin", op.cast(x, np.uint8), axes), np.bool_) if axes else x


@rule("reduce_or")
def reduce_or(op, x, *, axes):
    return op.cast(reduced(op, "ReduceMax", op.cast(x, np.uint8), axes), np.bool_) if axes else x
