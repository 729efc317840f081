"""The client dialect, and the composites that are named after it."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import jax
import jax.numpy as jnp
from jax import lax

from jaxport.stablehlo.registry import define, plain

plain(
    chlo__acos=lax.acos, chlo__acosh=lax.acosh, chlo__asin=lax.asin, chlo__asinh=lax.asinh, chlo__atan=lax.atan,
    chlo__atanh=lax.atanh, chlo__bessel_i1e=lax.bessel_i1e, chlo__conj=jnp.conj, chlo__cosh=lax.cosh,
    chlo__digamma=lax.digamma, chlo__erf=lax.erf, chlo__erf_inv=lax.erf_inv, chlo__erfc=lax.erfc,
    chlo__is_inf=jnp.isinf,
    chlo__is_neg_inf=jnp.isneginf, chlo__is_pos_inf=jnp.isposinf, chlo__lgamma=lax.lgamma,
    chlo__next_after=lax.nextafter,
    chlo__polygamma=lax.polygamma, chlo__sinh=lax.sinh, chlo__square=lax.square, chlo__tan=lax.tan, chlo__zeta=lax.zeta,
)  # fmt: skip

_BROADCAST = {
    "add": lax.add, "and": lax.bitwise_and, "atan2": lax.atan2, "complex": lax.complex, "divide": lax.div,
    "maximum": lax.max, "minimum": lax.min,
    "multiply": lax.mul, "next_after": lax.nextafter, "or": lax.bitwise_or, "polygamma": lax.polygamma,
    "power": lax.pow,
    "remainder": lax.rem, "shift_left": lax.shift_left, "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical, "subtract": lax.sub, "xor": lax.bitwise_xor, "zeta": lax.zeta,
}  # fmt: skip


def _aligned(x, y, dimensions):
    """Return two arrays of one shape: the smaller one's axes are the last, or those that are told."""
    if dimensions is not None and x.ndim != y.ndim:
        small, large = sorted((x, y), key=lambda each: each.ndim)
        others = [axis for axis in range(large.ndim) if axis not in dimensions]
        wide = lax.expand_dims(small, others)
        x, y = (wide, y) if small is x else (x, wide)
    return jnp.broadcast_arrays(x, y)


for _name, _function in _BROADCAST.items():

    def _broadcasting(x, y, *, broadcast_dimensions=None, function=_function):
        return function(*_aligned(x, y, broadcast_dimensions))

    define(f"chlo.broadcast_{_name}")(_broadcasting)


@define("chlo.broadcast_compare")
def broadcast_compare(x, y, *, comparison_direction, compare_type="", broadcast_dimensions=None):
    from jaxport.stablehlo.ops.arithmetic import compare

    x, y = _aligned(x, y, broadcast_dimensions)
    return compare(x, y, comparison_direction=comparison_direction, compare_type=compare_type)


@define("chlo.broadcast_select")
def broadcast_select(condition, x, y):
    return lax.select(*jnp.broadcast_arrays(condition, x, y))


@define("chlo.constant")
def constant(*, value):
    return value


@define("chlo.constant_like")
def constant_like(x, *, value):
    return jnp.full(x.shape, value, x.dtype)


@define("chlo.mulhi")
def mulhi(x, y):
    return lax.mulhi(x, y)


@define("chlo.top_k")
def top_k(x, *, k, axis=None, is_stable=True):
    del axis, is_stable  # the last axis, and in this order in any case
    return lax.top_k(x, k)


@define("chlo.ragged_dot")
def ragged_dot(x, y, sizes, *, ragged_dot_dimension_numbers, precision_config=(), result):
    of = lambda name: tuple(getattr(ragged_dot_dimension_numbers, name, ()))
    contracting = (of("lhs_contracting_dimensions"), of("rhs_contracting_dimensions"))
    batching = (of("lhs_batching_dimensions"), of("rhs_batching_dimensions"))
    numbers = lax.RaggedDotDimensionNumbers(
        (contracting, batching), of("lhs_ragged_dimensions"), of("rhs_group_dimensions")
    )
    precision = tuple(lax.Precision[name] for name in precision_config) or None
    return lax.ragged_dot_general(x, y, sizes, numbers, precision=precision, preferred_element_type=result.dtype)


@define("aten.gelu", "odml.gelu", "aten.gelu.default")
def gelu(x, *, approximate="none", **_):
    return jax.nn.gelu(x, approximate=approximate in ("tanh", True))
