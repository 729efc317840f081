"""What accumulates along an axis.

ONNX has a cumulative sum, since opset 26 a cumulative product, and nothing for the rest: these double the length of
what each element has seen in every step, so there are log2(n) steps of four nodes, in a Loop where n is symbolic.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.export import dims
from jaxport.export.registry import rule

INT64 = np.dtype(np.int64)


@rule("cumsum")
def cumsum(op, x, *, axis, reverse):
    if x.dtype == np.uint64:  # which wraps as int64 does
        return op.cast(cumsum(op, op.cast(x, INT64), axis=axis, reverse=reverse), x.dtype)
    return op.CumSum(x, op.const(axis, INT64), reverse=int(reverse))


@rule("cumprod")
def cumprod(op, x, *, axis, reverse):
    if op.has("CumProd"):
        return op.CumProd(x, op.const(axis, INT64), reverse=int(reverse))
    return doubling(op, op.Mul, x, axis, reverse)


@rule("cummax")
def cummax(op, x, *, axis, reverse):
    return doubling(op, op.Max, x, axis, reverse)
