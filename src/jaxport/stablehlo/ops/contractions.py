"""Products, convolutions, and what else is linear in an array."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import jax.numpy as jnp
from jax import lax

from jaxport.stablehlo import host
from jaxport.stablehlo.registry import define


def _precision(precision_config):
    return tuple(lax.Precision[name] for name in precision_config) or None


@define("dot_general")
def dot_general(x, y, *, dot_dimension_numbers, precision_config=(), algorithm=None, result):
    del algorithm  # how exactly at least: the CPU computes in the type of the result
    of = lambda name: getattr(dot_dimension_numbers, f"{name}_dimensions", ())
    contracting, batching = (
        tuple(of(f"{side}_{kind}") for side in ("lhs", "rhs")) for kind in ("contracting", "batching")
    )
    return lax.dot_general(x, y, (contracting, batching), _precision(precision_config), result.dtype)


@define("dot")
def dot(x, y, *, precision_config=(), result):
    axes = (((x.ndim - 1,), (0,)), ((), ()))
    return lax.dot_general(x, y, axes, _precision(precision_config), result.dtype)


@define("einsum")
def einsum(x, y, *, einsum_config, precision_config=()):
    return jnp.einsum(einsum_config, x, y, precision=_precision(precision_config))


@define("unary_einsum")
def unary_einsum(x, *, einsum_config):
    return jnp.einsum(einsum_config, x)


def _order(labels, letters):
    """Return the positions of two letters and of the numbers among the labels of axes."""
    spatial = sorted((label for label in labels if label.isdigit()), key=int)
    return tuple(labels.index(label) for label in (*letters, *spatial))


@define("convolution")
def convolution(
    x,
    kernel,
    *,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
    window_strides=None,
    padding=None,
    lhs_dilation=None,
    rhs_dilation=None,
    window_reversal=(),
    precision_config=(),
    result,
):
    rank = x.ndim - 2
    ones, orders = (1,) * rank, tuple(map(_order, dimension_numbers, ("bf", "oi", "bf")))
    padding = [(0, 0)] * rank if padding is None else [tuple(pair) for pair in padding]
    turned = [axis for axis, is_turned in zip(orders[1][2:], window_reversal, strict=False) if is_turned]
    return lax.conv_general_dilated(
        x, lax.rev(kernel, turned) if turned else kernel, window_strides or ones, padding, lhs_dilation or ones,
        rhs_dilation or ones, lax.ConvDimensionNumbers(*orders), feature_group_count, batch_group_count,
        _precision(precision_config), result.dtype,
    )  # fmt: skip


@define("dynamic_conv")
def dynamic_conv(x, kernel, sizes, *, result, context, padding=None, **given):
    del padding
    flat = host.dims_of(sizes, context.where)
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    given = {name: value for name, value in given.items() if "." not in name}
    return convolution(host.as_jax(x), host.as_jax(kernel), padding=pairs, result=result, **given)


@define("cholesky")
def cholesky(a, *, lower=False):
    if lower:
        return lax.linalg.cholesky(a, symmetrize_input=False)
    turned = jnp.conj(jnp.swapaxes(a, -1, -2))
    return jnp.conj(jnp.swapaxes(lax.linalg.cholesky(turned, symmetrize_input=False), -1, -2))


@define("triangular_solve")
def triangular_solve(a, b, *, left_side, lower, unit_diagonal, transpose_a):
    return lax.linalg.triangular_solve(
        a, b, left_side=left_side, lower=lower, transpose_a=transpose_a in ("TRANSPOSE", "ADJOINT"),
        conjugate_a=transpose_a == "ADJOINT", unit_diagonal=unit_diagonal,
    )  # fmt: skip


@define("fft")
def fft(x, *, fft_type, fft_length):
    return lax.fft(x, fft_type, fft_length)
