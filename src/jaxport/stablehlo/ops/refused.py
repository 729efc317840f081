"""Operations that no function on one device computes, each with the reason."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import jax.numpy as jnp
import numpy as np

from jaxport.stablehlo.registry import define

_ACROSS = (
    "communicates with other devices; write the artifact of the function that one device would run on all the data"
)
_OUTSIDE = "exchanges values with the host while it runs; pass them as arguments and results"
_PLACE = "asks which device runs it; write the artifact for one device"
_BOUNDED = "has a size up to a bound, which JAX does not have; write the artifact with names for sizes"
_QUANTIZED = "computes with quantized types; run `stablehlo-legalize-quant-to-math` first"

REASONS = {
    **dict.fromkeys("async_start async_done".split(), _ACROSS),
    **dict.fromkeys("infeed outfeed send recv".split(), _OUTSIDE),
    **dict.fromkeys("uniform_quantize uniform_dequantize".split(), _QUANTIZED),
    "set_dimension_size": _BOUNDED,
    **dict.fromkeys(
        "@xla_python_cpu_callback @xla_ffi_python_cpu_callback @xla_ffi_partitioned_python_cpu_callback "
        "@xla_python_gpu_callback @xla_ffi_python_gpu_callback".split(),
        "runs Python on the host; pass its result in as an argument",
    ),
    **dict.fromkeys(
        "@tpu_custom_call @mosaic_gpu_v2 @__gpu$xla.gpu.triton".split(),
        "is a kernel for one kind of device; define it with `@jaxport.stablehlo_op`",
    ),
    "@tf.call_tf_function": "calls a graph of TensorFlow, which is not in the artifact",
}


def _unless_alone(given, module):
    """Return why a collective is refused; "" if each device is a group of its own."""
    groups = given.get("replica_groups", ())
    return "" if groups and all(len(group) == 1 for group in groups) else _ACROSS


def _unless_own(given, module):
    return "" if set(given["source_target_pairs"]) <= {(0, 0)} else _ACROSS


def _unless_one(given, module):
    return "" if module.devices == 1 else _PLACE


@define("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "reduce_scatter", refused=_unless_alone)
def as_they_are(*xs, **_):
    return xs


@define("collective_permute", refused=_unless_own)
def collective_permute(x, *, source_target_pairs, **_):
    return x if source_target_pairs else jnp.zeros_like(x)


@define("partition_id", "replica_id", refused=_unless_one)
def place():
    return jnp.zeros((), np.uint32)


def _refusing(why: str):
    def refuse(*operands, **_):
        raise AssertionError(why)

    return refuse


for _name, _why in REASONS.items():
    define(_name, refused=_why)(_refusing(_why))
