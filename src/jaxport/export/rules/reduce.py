"""Reductions and accumulations along an axis."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import rule
from jaxport.jaxprs import dims, jaxpr_as_fun


def reduced(op, op_type, x, axes):
    """Emit a reduction operator over `axes`, which are removed."""
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
    """Sum by a product with ones, which wraps exactly; the runtime sums 64-bit integers in double."""
    kept = [a for a in range(x.ndim) if a not in axes]
    matrix = x.transpose(*kept, *axes).reshape(*(x.shape[a] for a in kept), -1)
    return matrix @ jnp.ones(matrix.shape[-1], x.dtype)


@rule("reduce_prod")
def reduce_prod(op, x, *, axes):
    if not axes:
        return x
    return op.call(_product, x, axes=tuple(axes)) if x.dtype.kind in "iu" else reduced(op, "ReduceProd", x, axes)


def _product(x, *, axes):
    """Multiply halves until one element is left: the runtime's products of integers are those of floats."""
    kept = [a for a in range(x.ndim) if a not in axes]
    rows = x.transpose(*kept, *axes).reshape(*(x.shape[a] for a in kept), -1)
    if not dims.is_static(rows.shape[-1]):
        return _folded(x, jnp.ones((), x.dtype), axes=axes, combine=lax.mul)
    while (half := rows.shape[-1] // 2) > 0:
        rows = jnp.concatenate([rows[..., :half] * rows[..., half : 2 * half], rows[..., 2 * half :]], -1)
    return jnp.ones(rows.shape[:-1], x.dtype) if rows.shape[-1] == 0 else rows.squeeze(-1)


def extremum(op_type):
    position = {"ReduceMax": jnp.argmax, "ReduceMin": jnp.argmin}[op_type]

    def emits(op, x, *, axes):
        if not axes:
            return x
        as_signed = x.dtype == np.uint32 and op.has("BitwiseXor")
        # The runtime compares int64 by halves, with wrong results; only that is wider than uint32.
        if x.dtype.kind in "iu" and (x.dtype.itemsize == 8 or (x.dtype == np.uint32 and not as_signed)):
            return op.call(_at_position, x, axes=tuple(axes), position=position)
        if as_signed:  # ordered as int32: JAX has wider types by choice only
            half = op.const(1 << 31, np.uint32)
            signed = reduced(op, op_type, op.cast(op.BitwiseXor(x, half), np.int32), axes)
            return op.BitwiseXor(op.cast(signed, np.uint32), half)
        result = reduced(op, op_type, x, axes)
        if not jnp.issubdtype(x.dtype, np.floating) or not op.walker.keeps_nan:
            return result
        # A NaN anywhere makes the result NaN in JAX; the runtime only sees one that comes first.
        any_nan = reduced(op, "ReduceMax", op.cast(op.IsNaN(x), np.uint8), axes)
        return op.Where(op.cast(any_nan, np.bool_), op.const(np.nan, x.dtype), result)

    emits.__qualname__ = f"extremum {op_type}"
    return emits


def _at_position(x, *, axes, position):
    """Return the element over some axes that `argmax` or `argmin` finds."""
    kept = [a for a in range(x.ndim) if a not in axes]
    rows = x.transpose(*kept, *axes).reshape(*(x.shape[a] for a in kept), -1)
    return jnp.take_along_axis(rows, position(rows, axis=-1, keepdims=True), -1).squeeze(-1)


rule("reduce_max")(extremum("ReduceMax"))
rule("reduce_min")(extremum("ReduceMin"))


def logical(op_type, combine):
    """Return a reduction by bits: an extremum of booleans, a fold over integers."""

    def emits(op, x, *, axes):
        if not axes:
            return x
        if x.dtype == bool:
            return op.cast(reduced(op, op_type, op.cast(x, np.uint8), axes), np.bool_)
        first = np.array(-1 if op_type == "ReduceMin" else 0).astype(x.dtype)
        return op.call(_folded, x, op.const(first), axes=tuple(axes), combine=combine)

    emits.__qualname__ = f"logical {op_type}"
    return emits


rule("reduce_and")(logical("ReduceMin", lax.bitwise_and))
rule("reduce_or")(logical("ReduceMax", lax.bitwise_or))


@rule("reduce_xor")
def reduce_xor(op, x, *, axes):
    return op.call(_parity if x.dtype == bool else _xor, x, axes=tuple(axes))


def _parity(x, *, axes):
    return lax.reduce_sum(x.astype(np.int32), axes) % 2 == 1


def _xor(x, *, axes):
    return _folded(x, jnp.zeros((), x.dtype), axes=axes, combine=lax.bitwise_xor)


@rule("reduce", irrelevant=("computation",))
def reduce(op, *operands, jaxpr, dimensions):
    return op.call(_folded, *operands, axes=tuple(dimensions), combine=jaxpr_as_fun(jaxpr))


def _folded(*operands, axes, combine):
    """Reduce by any function: fold the elements along `axes`, from the initial values on."""
    xs, firsts = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    kept = [a for a in range(xs[0].ndim) if a not in axes]
    shape = [xs[0].shape[a] for a in kept]
    count, size = math.prod(xs[0].shape[a] for a in axes), math.prod(shape)
    rows = [x.transpose(*axes, *kept).reshape(count, size) for x in xs]
    each = jax.vmap(combine)
    step = lambda done, row: (jax.tree.leaves(each(*done, *row)), None)
    results, _ = lax.scan(step, [jnp.broadcast_to(first, (size,)) for first in firsts], rows)
    return [result.reshape(shape) for result in results]
