"""Products of matrices and tensors."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import rule
from jaxport.jaxprs import dims


@rule("dot_general", irrelevant=("precision",))
def dot_general(op, x, y, *, dimension_numbers, preferred_element_type):
    (x_contracted, y_contracted), (x_batch, y_batch) = dimension_numbers
    if x_contracted:  # the sum is the same in any order
        lead = 0 if y.is_constant else 1 if x.is_constant else int(y.rank > x.rank)
        pairs = sorted(zip(x_contracted, y_contracted, strict=True), key=lambda pair: pair[lead])
        x_contracted, y_contracted = zip(*pairs, strict=True)
    dtype = op.out.dtype
    # A kernel of the model stays that of a product, with a single feature, too.
    is_outer = not x_contracted or (single(x, x_contracted) and x.held is None and y.held is None)
    x, y = op.cast(x, dtype), op.cast(y, dtype)  # ONNX accumulates in the operands' own dtype
    x_free = [a for a in range(x.rank) if a not in (*x_contracted, *x_batch)]
    y_free = [a for a in range(y.rank) if a not in (*y_contracted, *y_batch)]
    if is_outer and not x_batch and dtype != np.bool_:
        columns = op.reshape(
            op.transpose(x, (*x_free, *x_contracted)), (*(x.shape[a] for a in x_free), *[1] * len(y_free))
        )
        rows = op.reshape(op.transpose(y, (*y_contracted, *y_free)), [y.shape[a] for a in y_free])
        return op.cast(op.Mul(columns, rows), dtype)
    if x_batch:
        left = flattened(op, x, x_batch, x_free, x_contracted)
        right = flattened(op, y, y_batch, y_contracted, y_free)
        product = op.MatMul(left, right)
        product.shape = (*(x.shape[a] for a in x_batch), size(x, x_free), size(y, y_free))
        return op.cast(op.reshape(product, op.out.shape), dtype)
    straight = moved(x, x_free, x_contracted) + moved(y, y_contracted, y_free)
    crossed = moved(y, y_free, y_contracted) + moved(x, x_contracted, x_free) + bool(x_free and y_free)
    if straight < crossed or (straight == crossed and not x.is_constant and x.rank >= y.rank):
        product = times_matrix(op, x, x_free, x_contracted, y, y_contracted, y_free)
        return op.cast(op.reshape(product, op.out.shape), dtype)
    product = times_matrix(op, y, y_free, y_contracted, x, x_contracted, x_free)
    product = op.reshape(product, (*(y.shape[a] for a in y_free), *(x.shape[a] for a in x_free)))
    order = [*range(len(y_free), len(y_free) + len(x_free)), *range(len(y_free))]
    return op.cast(op.transpose(product, order), dtype)


def scaled_dot(x, y, x_scale, y_scale, *, dimension_numbers, preferred_element_type):
    """Multiply operands that have a scale for each block of their contracted axes; in bfloat16, as in JAX."""
    (x_contracted, y_contracted), _ = dimension_numbers
    x, y = scaled(x, x_scale, x_contracted), scaled(y, y_scale, y_contracted)
    return lax.dot_general(x, y, dimension_numbers, preferred_element_type=preferred_element_type)


rule("scaled_dot", via=scaled_dot)


def scaled_matmul(x, y, x_scale, y_scale, *, preferred_element_type):
    """Do the same over batches of rows; JAX has a kernel on NVIDIA's GPUs, and does this on AMD's."""
    dimension_numbers = (((2,), (2,)), ((0,), (0,)))
    options = {"dimension_numbers": dimension_numbers, "preferred_element_type": preferred_element_type}
    return [lax.scaled_dot(x, y, lhs_scale=x_scale, rhs_scale=y_scale, **options)]


rule("scaled_matmul_wrapper", via=scaled_matmul)


def scaled(x, scale, axes):
    """Return `x` times its scales in bfloat16."""
    scale = scale.astype(jnp.bfloat16)  # before the movement: runtimes have few kernels for the dtypes of scales
    for axis in axes:
        scale = jnp.repeat(scale, x.shape[axis] // scale.shape[axis], axis)
    return x.astype(jnp.bfloat16) * scale


def single(x, axes):
    """Whether some axes of `x` have one element."""
    return all(dims.same(x.shape[a], 1) for a in axes)


def size(x, axes):
    """Return the product of some dims of `x`."""
    return math.prod([x.shape[a] for a in axes])


def moved(x, rows, columns):
    """Return the cost of reordering the axes of `x`: nothing for a constant, little for a matrix."""
    in_order = [*rows, *columns] == sorted([*rows, *columns])
    return 0 if in_order or x.is_constant else min(x.rank, 3) - 1


def times_matrix(op, x, free, contracted, matrix, rows, columns):
    """Multiply `x`, keeping its free axes, by another operand as a matrix; the columns become one axis.

    The matrix is never a vector: ONNX Runtime 1.31 fuses a Transpose with a MatMul, and gets that one wrong.
    """
    x = op.transpose(x, (*free, *contracted))
    lead = x.shape[: len(free)]
    count, width = math.prod(x.shape[len(free) :]), size(matrix, columns)
    matrix = op.reshape(op.transpose(matrix, (*rows, *columns)), (count, width))
    product = op.MatMul(op.reshape(x, (*lead, count)), matrix)
    product.shape = (*lead, width)
    return product


def flattened(op, x, batch, rows, columns):
    """Return `x` as matrices: the batch axes, then the product of `rows`, then the product of `columns`."""
    x = op.transpose(x, (*batch, *rows, *columns))
    lead, tail = x.shape[: len(batch)], x.shape[len(batch) :]
    return op.reshape(x, (*lead, math.prod(tail[: len(rows)]), math.prod(tail[len(rows) :])))
