"""Sorting and selecting the largest, by TopK, the only ONNX operator that orders.

TopK is stable in both directions, but orders NaN and the unsigned integers of 64 bits wrongly or not at all. So values
are replaced by keys that TopK orders as JAX orders the values, and several keys are ordered by one TopK each, starting
from the least significant one.

JAX sorts NaN last, and -0.0 and 0.0 as equal. The order of `top_k` is total, that of the bits: 0.0 is above -0.0, NaN
above infinity, and NaN with a sign below everything. Before BitCast no operator sees that sign. Then it is what the
program says: NaN has none, and a negation gives it one.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.export.emit import intervals
from jaxport.export.emit.registry import rule
from jaxport.export.rules import window_starts
from jaxport.jaxprs import dims
from jaxport.onnx_facts import SELECTIONS


@rule("sort", broadcasts=True, irrelevant=("is_stable",))
def sort(op, *xs, dimension, num_keys):
    whole = [op.expanded(x) for x in xs[:num_keys]]
    keys = [key for x in whole for key in order_keys(op, x)]
    values, order = ranked(op, keys, dimension, op.outs[0].shape[dimension], largest=False)
    if keys == [whole[0]]:  # TopK returns the key itself
        return [values, *(taken(op, x, order, dimension) for x in xs[1:])]
    return [taken(op, x, order, dimension) for x in xs]


@rule("top_k", irrelevant=("is_stable",))
def top_k(op, x, *, k, axis):
    return chosen(op, x, k, axis, total_order(op, x), largest=True)


@rule("approx_top_k", irrelevant=("recall_target", "reduction_input_size_override"))
def approx_top_k(op, x, *, k, reduction_dimension, is_max_k, aggregate_to_topk):
    axis = reduction_dimension % x.rank
    if dims.surely_differ(op.outs[0].shape[axis], k):
        op.refuse("keeps more than `k` elements; leave `aggregate_to_topk=True`")
    return chosen(op, x, k, axis, order_keys(op, x), largest=is_max_k)


def position(op_type):
    def emits(op, x, *, axes, index_dtype):
        where = {"axis": axes[0], "keepdims": 0}
        if not jnp.issubdtype(x.dtype, np.floating):
            return op.cast(op.emit(op_type, order_keys(op, x)[0], **where), index_dtype)
        # The first NaN wins in JAX; the runtime's comparisons with it are all false.
        if not op.walker.keeps_nan:
            return op.cast(op.emit(op_type, x, **where), index_dtype)
        nan = op.cast(op.IsNaN(x), np.uint8)
        any_nan = op.cast(op.ReduceMax(nan, (axes[0],), keepdims=0), np.bool_)
        return op.cast(op.Where(any_nan, op.ArgMax(nan, **where), op.emit(op_type, x, **where)), index_dtype)

    emits.__qualname__ = f"position by {op_type}"
    return emits


rule("argmax")(position("ArgMax"))
rule("argmin")(position("ArgMin"))


def chosen(op, x, k, axis, keys, *, largest):
    """Return the first `k` values along an axis in the order of keys, and their positions."""
    values, order = ranked(op, keys, axis, k, largest=largest)
    values = values if keys == [x] else op.GatherElements(x, order, axis=axis)
    return values, op.cast(order, op.outs[1].dtype)


def order_keys(op, x):
    """Return keys that TopK orders as JAX sorts `x`, the most significant first: NaN is largest, and equal to NaN."""
    if x.dtype == np.uint64:
        return [op.cast(op.Add(x, op.const(1 << 63, np.uint64)), np.int64)]
    if x.dtype == np.uint32 and op.has("BitwiseXor"):  # runtimes would order it as int64, which JAX has by choice only
        return [op.cast(op.BitwiseXor(x, op.const(1 << 31, np.uint32)), np.int32)]
    if x.dtype.kind == "b":
        return [op.cast(x, np.uint8)]
    if not jnp.issubdtype(x.dtype, np.floating) or not op.walker.keeps_nan:
        return [x]
    nan, number = with_infinity(op, x)
    return [number, op.cast(nan, np.uint8)]


def total_order(op, x):
    """Return keys that TopK orders as `top_k` orders `x`, the most significant first."""
    if not jnp.issubdtype(x.dtype, np.floating) or not op.walker.keeps_nan:
        return order_keys(op, x)
    sign = -1 if nan_has_sign(x) else 1
    nan, number = with_infinity(op, x, sign)
    if intervals.is_finite(x) and intervals.is_never_negative_zero(x):  # scores and shares
        return [number]
    if op.has("BitCast"):
        integer = np.dtype(f"int{8 * x.dtype.itemsize}")
        bits = op.BitCast(x, to=integer)
        reversed_bits = op.BitwiseXor(bits, op.const(np.iinfo(integer).max, integer))
        return [op.Where(op.Less(bits, op.const(0, integer)), reversed_bits, bits)]
    # The reciprocals of both zeros are infinities, that of infinity is zero.
    return [number, op.Where(nan, op.const(sign * np.inf, x.dtype), op.Reciprocal(x))]


def with_infinity(op, x, sign=1):
    """Return where `x` is NaN, and `x` with an infinity there."""
    nan = op.IsNaN(x)
    return nan, op.Where(nan, op.const(sign * np.inf, x.dtype), x)


def nan_has_sign(x):
    """Whether an odd number of operators that change the sign is between `x` and the value whose NaN it has."""
    origin, signed = x.origin, False
    while origin is not None and origin.op_type in {"Neg", "Sigmoid", "Cast", *SELECTIONS}:
        signed ^= origin.op_type in ("Neg", "Sigmoid")  # XLA's logistic is 1 / (1 + exp(-x))
        origin = origin.operands[0].origin
    return signed


def ranked(op, keys, axis, count, *, largest):
    """Return the values of the first key in order, and the positions that they come from."""
    values = order = None
    for number, key in reversed(list(enumerate(keys))):
        key = key if order is None else op.GatherElements(key, order, axis=axis)
        size = count if number == 0 else key.shape[axis]
        shape = (*key.shape[:axis], size, *key.shape[axis + 1 :])
        results = [(key.dtype, shape), (np.int64, shape)]
        values, places = op.emit("TopK", key, (size,), axis=axis, largest=int(largest), outputs=2, results=results)
        order = places if order is None else op.GatherElements(order, places, axis=axis)
    return values, order


def taken(op, x, order, axis):
    """Return `x` in a new order along an axis; for an iota, the order itself."""
    place = axis - (order.rank - x.rank)
    if (
        all(dims.same(d, 1) for a, d in enumerate(x.shape) if a != place)
        and place >= 0
        and not dims.same(x.shape[place], 1)
    ):
        if window_starts.is_iota(x):
            return op.cast(order, x.dtype)
        if order.rank > 1:
            return op.Gather(op.reshape(x.stored(), (x.shape[place],)), order)
    return op.GatherElements(op.expanded(x), order, axis=axis)
