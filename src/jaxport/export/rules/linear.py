"""Products of matrices and tensors."""

from __future__ import annotations

import math

from jaxport.export.registry import rule


@rule("dot_general", irrelevant=("precision",))
def dot_general(op, x, y, *, dimension_numbers, preferred_element_type):
    (x_contracted, y_contracted), (x_batch, y_batch) = dimension_numbers
    dtype = op.out.dtype
    x, y = accumulated(op, x, dtype), accumulated(op, y, dtype)
    x_free = [a for a in range(x.rank) if a not in (*x_contracted, *x_batch)]
    y_free = [a for a in range(y.rank) if a not in (*y_contracted, *y_batch)]
    if not x_batch and len(x_contracted) == 1 and y.rank == 2 and x_contracted[0] == x.rank - 1:
        # x [..., K] times a matrix: MatMul takes all leading axes of x as they are.
        product = op.MatMul(x, y if y_contracted[0] == 0 else op.transpose(y, (1, 0)))
        product.shape = op.out.shape
        return op.cast(product, dtype)
    batch = [x.shape[a] for a in x_batch]
    left = flattened(op, x, x_batch, x_free, x_contracted)
    right = flattened(op, y, y_batch, y_contracted, y_free)
    product = op.MatMul(left, right)
    product.shape = (*batch, size(x, x_free), size(y, y_free))
    return op.cast(op.reshape(product, op.out.shape), dtype)


def accumulated(op, x, dtype):
    """An operand in the dtype that the product is accumulated in, which ONNX does in the operands' own."""
    return op.cast(x, dtype)


def size(x, axes):
    """The product of some dims of `x`."""
    return math.prod([x.shape[a] for a in axes])


def flattened(op, x, batch, rows, columns):
    """`x` as matrices: the batch axes, then the product of `rows`, then the product of `columns`."""
    x = op.transpose(x, (*batch, *rows, *columns))
    lead = x.shape[: len(batch)]
    tail = x.shape[len(batch) :]
    shape = (*lead, math.prod(tail[: len(rows)]), math.prod(tail[len(rows) :]))
    return op.reshape(x, shape)
