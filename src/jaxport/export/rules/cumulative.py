"""Accumulations along an axis.

ONNX has a cumulative sum, a cumulative product from opset 26 on, and nothing for the rest. For these each step doubles
the distance over which elements are combined, so that log2(n) steps of three nodes suffice, in a Loop if n is symbolic.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.export.emit.registry import rule
from jaxport.export.rules.windows import highest, lowest
from jaxport.jaxprs import dims

INT64 = np.dtype(np.int64)


@rule("cumsum")
def cumsum(op, x, *, axis, reverse):
    return op.CumSum(x, op.const(axis, INT64), reverse=int(reverse))


@rule("cumprod")
def cumprod(op, x, *, axis, reverse):
    if op.has("CumProd"):
        return op.CumProd(x, op.const(axis, INT64), reverse=int(reverse))
    return doubling(op, lambda op, x, y: op.Mul(x, y), 1, x, axis, reverse)


@rule("cummax")
def cummax(op, x, *, axis, reverse):
    return doubling(op, lambda op, x, y: op.Max(x, y), lowest(x.dtype), x, axis, reverse)


@rule("cummin")
def cummin(op, x, *, axis, reverse):
    return doubling(op, lambda op, x, y: op.Min(x, y), highest(x.dtype), x, axis, reverse)


@rule("cumlogsumexp")
def cumlogsumexp(op, x, *, axis, reverse):
    return doubling(op, lambda op, x, y: op.expanded(op.call(jnp.logaddexp, x, y)), -np.inf, x, axis, reverse)


def doubling(op, combine, identity, x, axis, reverse):
    """Return the combined prefixes of `x` along an axis; from the end if `reverse` is set."""

    def step(op, x, distance, shape=None):
        vector = op.unsqueeze(distance, (0,))
        first, end = (vector, (np.iinfo(INT64).max,)) if reverse else ((0,), op.Neg(vector))
        kept = op.emit("Slice", x, first, end, (axis,), results=[(x.dtype, shape)])
        side = np.zeros(2 * x.rank, INT64)
        side[axis + x.rank if reverse else axis] = 1
        pads = op.Mul(vector, op.const(side))
        return combine(op, x, op.emit("Pad", kept, pads, op.const(identity, x.dtype), results=[(x.dtype, x.shape)]))

    size = x.shape[axis]
    if dims.is_static(size):
        for exponent in range((int(size) - 1).bit_length() if size else 0):
            shape = [d - (1 << exponent) if a == axis else d for a, d in enumerate(x.shape)]
            x = step(op, x, op.const(1 << exponent, INT64), shape)
        return x
    count = op.dim(size)

    def body(op, iteration, go_on, x, distance):
        twice = op.Add(distance, distance)
        return op.Less(twice, count), step(op, x, distance), twice

    inputs = [(INT64, (), "iteration"), (np.bool_, (), "go_on"), (x.dtype, x.shape, "x"), (INT64, (), "distance")]
    one = op.const(1, INT64)
    start = op.Less(one, count)
    result, _ = op.emit(
        "Loop", None, start, x, one, body=op.graph(body, inputs), outputs=2, results=[(x.dtype, x.shape), (INT64, ())]
    )
    return result
