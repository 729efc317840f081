"""Primitives that no ONNX model can compute, each with the reason and what the user can do instead."""

from __future__ import annotations

import warnings

from jaxport.export.emit.registry import rule

_ACROSS = "communicates with other devices; export the function that a single device would run on all the data"
_KERNEL = "is a kernel for one kind of device; pass `rules={%r: lambda op, *xs, **_: op.call(reference, *xs)}`"
_CUDNN = "calls an NVIDIA library; use `implementation='xla'`"
_COLLECTIVES = """
    all_gather all_gather_reduced all_to_all pbroadcast ppermute psum psum_invariant reduce_scatter unreduced_psum
    unreduced_reduce_scatter
""".split()

_KERNELS = "bitcast core_map mosaic_gpu_p mpmd_map pallas_call roll tpu_custom_call".split()

REASONS = {
    # Native code
    "ffi_call": (
        "calls native code, which ONNX cannot hold; pass `rules={'ffi_call': ...}` with an equivalent JAX function"
    ),
    **{name: _KERNEL % name for name in _KERNELS},
    **{f"dot_product_attention_{which}_wrapper": _CUDNN for which in ("fwd", "bwd", "fp8_fwd", "fp8_bwd")},
    **dict.fromkeys(("after_all", "create_token"), "orders effects, which ONNX does not have; pass arrays instead"),
    "unreachable": "raises a Python error if it is reached; return a value instead",
    "check": "raises a Python error; export `checkify.checkify(fn)`, which returns it",
    # Generators of XLA
    "rng_uniform": "draws from XLA's own generator, which ONNX does not have; use `jax.random.uniform`",
    # Derivatives
    "custom_lin": "is the forward derivative of a `custom_vjp` function, which JAX cannot run either; "
    "define it with `custom_jvp`",
    # Several devices
    **dict.fromkeys(("full_to_shard", "shard_to_full", "xla_pmap"), _ACROSS),
    **dict.fromkeys(("psend", "precv", "ragged_all_to_all", "pbroadcast_dynamic", "ag_start", "ag_done"), _ACROSS),
    **{f"{name}_{half}": _ACROSS for name in _COLLECTIVES for half in ("start", "done")},
}


def refuses(why):
    """Return a rule that refuses."""

    def refuse(op, *operands, **_):
        op.refuse(why)

    refuse.__qualname__ = "refuse"
    return refuse


for _primitive, _why in REASONS.items():
    rule(_primitive, broadcasts=True)(refuses(_why))


#: The modules of libraries whose callbacks check values while the program runs: they raise an error, and compute
#: nothing.
CHECKS = frozenset({"equinox._errors"})
CHECK_LEFT_OUT = "a check is left out: where it raises an error in JAX, the model returns a result nevertheless"


def is_check(callback) -> bool:
    """Whether a callback raises an error for the program, and returns nothing that it uses."""
    return getattr(getattr(callback, "callback_func", callback), "__module__", None) in CHECKS


def without_check(branches):
    """Return the branch that is taken if a check passes, where the other one of two always raises; else None."""
    if len(branches) != 2:
        return None
    # Not within other equations: a branch that checks something itself computes, too.
    raises = [any(is_check(equation.params.get("callback")) for equation in branch.jaxpr.eqns) for branch in branches]
    return branches[raises.index(False)] if sorted(raises) == [False, True] else None


@rule("pure_callback", "io_callback", broadcasts=True)
def callback(op, *operands, callback, **_):
    """Refuse a Python callback; one that checks is left out with the branch around it, if the user wants that."""
    if is_check(callback):
        op.refuse('is a check that raises a Python error; `to_onnx(checks="discard")` leaves it out')
    op.refuse("runs Python on the host; pass its result in as an input, or write it with jax.numpy")


@rule("dce_sink", broadcasts=True)
def sink(op, *xs, **_):
    return []


@rule("debug_callback", "debug_print", "inspect_sharding", broadcasts=True)
def leave_out(op, *operands, **_):
    where = f" at {op.place.source}" if op.place.source else ""
    warnings.warn(f"`{op.place.primitive}`{where} is not in the exported model: it only shows values", stacklevel=2)
    return []
