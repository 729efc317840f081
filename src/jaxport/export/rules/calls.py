"""Primitives that hold a jaxpr and run it once: they leave no trace in the graph."""

from __future__ import annotations

from jaxport.export.registry import rule


@rule("jit", "pjit", "closed_call", "core_call", "remat2", broadcasts=True)
def call(op, *operands, jaxpr, **_):
    return op.inline(jaxpr, *operands)


@rule("checkpoint", "remat", broadcasts=True, irrelevant=("prevent_cse", "differentiated", "policy"))
def checkpoint(op, *operands, jaxpr):
    return op.inline(jaxpr, *operands)


@rule("custom_jvp_call", broadcasts=True, irrelevant=("jvp_jaxpr_fun", "jvp", "num_consts", "symbolic_zeros", "name"))
def custom_jvp_call(op, *operands, call_jaxpr):
    return op.inline(call_jaxpr, *operands)


@rule(
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    broadcasts=True,
    irrelevant=("fwd_jaxpr_thunk", "bwd", "num_consts", "out_trees", "symbolic_zeros", "name"),
)
def custom_vjp_call(op, *operands, call_jaxpr):
    return op.inline(call_jaxpr, *operands)


@rule("composite", broadcasts=True, irrelevant=("name", "attributes", "version"))
def composite(op, *operands, jaxpr):
    return op.inline(jaxpr, *operands)


@rule("custom_lin", "optimization_barrier", "pvary", broadcasts=True)
def identity(op, *operands, **_):
    return operands


@rule("copy", "copy_p", "stop_gradient", broadcasts=True)
def copy(op, x):
    return x
