"""Primitives that run a jaxpr once, or do nothing to their operands: they leave no trace in the graph."""

from __future__ import annotations

from jaxport.export.registry import rule

#: Primitives whose whole meaning is one jaxpr run on their operands, and the parameter that holds it. What else they
#: carry says how to differentiate, batch, partition or compile it.
BODIES = {
    "call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "composite": "jaxpr",
    "cudnn_fusion": "jaxpr",
    "compute_on": "jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_partitioning": "call",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "jit": "jaxpr",
    "linear_call": "callee",
    "remat2": "jaxpr",
    "remat_opt": "fwd_jaxpr",
}


def runs(parameter):
    """A rule that exports the jaxpr in one parameter in place."""

    def run(op, *operands, **parameters):
        return op.inline(parameters[parameter], *operands)

    run.__qualname__ = f"runs {parameter}"
    return run


for _primitive, _parameter in BODIES.items():
    rule(_primitive, broadcasts=True)(runs(_parameter))


@rule("custom_linear_solve", broadcasts=True)
def custom_linear_solve(op, *operands, const_lengths, jaxprs):
    before = const_lengths.matvec + const_lengths.vecmat
    consts = operands[before : before + const_lengths.solve]
    return op.inline(jaxprs.solve, *consts, *operands[sum(const_lengths) :])


@rule("optimization_barrier", "device_put", "shard_alike", broadcasts=True)
def identities(op, *operands, **_):
    return operands


@rule(
    "copy", "copy_p", "multiple_of", "name", "stage", "stop_gradient", "with_memory_space_constraint", broadcasts=True
)
def identity(op, x, **_):
    return x


@rule("tie", broadcasts=True)
def tie(op, x, y):
    return y
