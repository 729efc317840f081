"""Products of groups of rows with a matrix each: `jax.lax.ragged_dot`, as mixtures of experts use it.

A runtime that computes sizes while it runs splits the rows into their groups, and multiplies each group by its own
matrix: no row is multiplied twice. Where each size has to be known, blocks of rows are multiplied: a block has rows of
a single group, and there are at most twice as many blocks as groups. Groups of the contracted axis, and batches of
groups, are multiplied by JAX's definition, in terms of masks and `dot_general`; on CPUs, JAX does so for all, and a
weight that is infinite is NaN in the rows of other groups, too.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.export.emit.legalize import dtype_of_kernel
from jaxport.export.emit.registry import rule
from jaxport.export.rules.control import row
from jaxport.jaxprs import dims
from jaxport.jaxprs.releases import ragged_dot_general_impl
from jaxport.onnx_facts import RUNTIME_DOMAIN

#: Up to so many groups have a product each.
MOST = 256


@rule("ragged_dot_general", irrelevant=("precision",))
def ragged_dot_general(op, x, y, group_sizes, *, ragged_dot_dimension_numbers, preferred_element_type):
    numbers = ragged_dot_dimension_numbers
    contracted = _contracted(numbers) if (x.rank, y.rank, group_sizes.rank) == (2, 3, 1) else None
    if contracted is None:
        parameters = {"ragged_dot_dimension_numbers": numbers, "preferred_element_type": preferred_element_type}
        return op.call(ragged_dot_general_impl, x, y, group_sizes, **parameters)
    dtype = op.out.dtype
    x, y = op.cast(x, dtype), op.cast(y, dtype)  # ONNX accumulates in the operands' own dtype
    y = op.transpose(y, (0, contracted, 3 - contracted))
    groups, columns = y.shape[0], y.shape[2]
    computes_sizes = op.walker.offers(RUNTIME_DOMAIN, "MoE")  # ONNX Runtime does, and only its targets have its domain
    if not dims.is_static(groups) or groups > MOST or not computes_sizes:
        return op.call(in_blocks, x, y, group_sizes)
    sizes = op.cast(op.call(sizes_of_parts, group_sizes, rows=x.shape[0]), np.int64)
    # One cast of all rows, and not one for each group.
    wide = dtype_of_kernel("MatMul", op.opset, dtype) if op.walker.legalize else dtype
    *parts, _ = op.Split(op.cast(x, wide), sizes, axis=0, outputs=groups + 1, results=[(wide, None)] * (groups + 1))
    products = [
        op.MatMul(part, op.cast(row(op, y, number), wide), results=[(wide, None)]) for number, part in enumerate(parts)
    ]
    shape = op.concat([op.slice(sizes, (groups,), (groups + 1,), (0,)), op.dims((columns,))], 0)
    zeros = op.Expand(op.const(0, wide), shape, results=[(wide, None)])
    return op.cast(op.Concat(*products, zeros, axis=0, results=[(wide, op.out.shape)]), dtype)


def _contracted(numbers):
    """Return the axis of the matrices that is summed over, if rows of a matrix are multiplied by them; else None."""
    (x_contracted, y_contracted), batch = numbers.dot_dimension_numbers
    ragged, grouped = (*numbers.lhs_ragged_dimensions,), (*numbers.rhs_group_dimensions,)
    along = ((*x_contracted,), *((*axes,) for axes in batch), ragged, grouped)
    is_plain = along == ((1,), (), (), (0,), (0,)) and len(y_contracted) == 1
    return y_contracted[0] if is_plain else None


def sizes_of_parts(group_sizes, *, rows):
    """Return how many rows each group has, and how many are behind the last one; there are no rows but these."""
    edges = jnp.pad(_ends(group_sizes, rows), (1, 0))
    return jnp.diff(edges, append=rows)


def _ends(group_sizes, rows):
    """Return the row behind the last one of each group."""
    return jnp.clip(jnp.cumsum(group_sizes.astype(jnp.int32)), 0, rows)


def _group_of(ends, places):
    """Return the group that each place belongs to; that of a place behind all groups is the last one."""
    return jnp.minimum((ends[None] <= places[:, None]).sum(1, dtype=ends.dtype), ends.shape[0] - 1)


def in_blocks(x, y, group_sizes):
    """Multiply blocks of rows, each by the matrix of its group, with sizes that are known."""
    rows, groups = x.shape[0], y.shape[0]
    ends, row = _ends(group_sizes, rows), jnp.arange(rows, dtype=jnp.int32)
    starts, own = jnp.pad(ends[:-1], (1, 0)), _group_of(ends, row)
    if dims.is_static(rows) and dims.is_static(groups) and rows <= groups:
        product = jnp.einsum("mk,mkn->mn", x, y[own])
    else:
        block = 1 + rows // groups
        count = (rows + groups * (block - 1)) // block  # enough, however the rows are divided among the groups
        behind = jnp.cumsum((ends - starts + block - 1) // block)
        first, place = behind - (ends - starts + block - 1) // block, jnp.arange(count, dtype=jnp.int32)
        group = _group_of(behind, place)
        taken = (starts - first * block)[group] + place * block
        taken = jnp.minimum(taken[:, None] + jnp.arange(block, dtype=jnp.int32), rows - 1)
        product = (x[taken] @ y[group]).reshape(count * block, y.shape[2])
        product = product[(first * block - starts)[own] + row]
    return jnp.where((row < ends[-1])[:, None], product, 0)
