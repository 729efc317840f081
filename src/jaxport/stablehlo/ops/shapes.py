"""Operations that move, repeat and cut arrays; sizes that are operands are known while JAX traces."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.stablehlo import host
from jaxport.stablehlo.registry import define


@define("broadcast_in_dim")
def broadcast_in_dim(x, *, broadcast_dimensions, result):
    return lax.broadcast_in_dim(x, result.shape, broadcast_dimensions)


@define("dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(
    x, sizes, *, broadcast_dimensions, known_expanding_dimensions=(), known_nonexpanding_dimensions=(), context
):
    del known_expanding_dimensions, known_nonexpanding_dimensions
    return lax.broadcast_in_dim(host.as_jax(x), host.dims_of(sizes, context.where), broadcast_dimensions)


@define("broadcast")
def broadcast(x, *, broadcast_sizes):
    return lax.broadcast(x, broadcast_sizes)


@define("reshape")
def reshape(x, *, result):
    return lax.reshape(x, result.shape)


@define("dynamic_reshape")
def dynamic_reshape(x, sizes, *, context):
    return lax.reshape(host.as_jax(x), host.dims_of(sizes, context.where))


@define("iota")
def iota(*, iota_dimension, result):
    return lax.broadcasted_iota(_real(result.dtype), result.shape, iota_dimension).astype(result.dtype)


@define("dynamic_iota")
def dynamic_iota(sizes, *, iota_dimension, result, context):
    shape = host.dims_of(sizes, context.where)
    return lax.broadcasted_iota(_real(result.dtype), shape, iota_dimension).astype(result.dtype)


def _real(dtype):
    return np.dtype(np.float32) if dtype.kind == "c" else dtype


@define("transpose")
def transpose(x, *, permutation):
    return lax.transpose(x, permutation)


@define("reverse")
def reverse(x, *, dimensions):
    return lax.rev(x, dimensions)


@define("concatenate")
def concatenate(*xs, dimension):
    return lax.concatenate(xs, dimension)


@define("slice")
def slice_(x, *, start_indices, limit_indices, strides):
    return lax.slice(x, start_indices, limit_indices, strides)


@define("real_dynamic_slice")
def real_dynamic_slice(x, starts, limits, strides, *, context):
    start = context.operation.operands[1]
    added = context.makers[2]
    if not host.is_known(starts) and added is not None and added.name == "stablehlo.add" and start in added.operands:
        (sizes,) = [context.values[value] for value in added.operands if value != start]
        return lax.dynamic_slice(x, list(starts), host.dims_of(sizes, context.where))
    return lax.slice(host.as_jax(x), *(host.dims_of(sizes, context.where) for sizes in (starts, limits, strides)))


@define("pad")
def pad(x, value, *, edge_padding_low, edge_padding_high, interior_padding):
    return lax.pad(x, value, list(zip(edge_padding_low, edge_padding_high, interior_padding, strict=True)))


@define("dynamic_pad")
def dynamic_pad(x, value, low, high, interior, *, context):
    rows = [host.dims_of(sizes, context.where) for sizes in (low, high, interior)]
    return lax.pad(host.as_jax(x), host.as_jax(value), list(zip(*rows, strict=True)))


@define("dynamic_slice")
def dynamic_slice(x, *starts, slice_sizes):
    return lax.dynamic_slice(x, starts, slice_sizes)


@define("dynamic_update_slice")
def dynamic_update_slice(x, update, *starts):
    return lax.dynamic_update_slice(x, update, starts)


@define("get_dimension_size")
def get_dimension_size(x, *, dimension):
    return jnp.asarray(x.shape[dimension], np.int32)


@define("tuple")
def tuple_(*xs):
    return tuple(xs)


@define("get_tuple_element")
def get_tuple_element(xs, *, index):
    return xs[index]


@define("create_token", "after_all")
def create_token(*tokens):
    return (None,)
