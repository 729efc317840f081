"""Primitives that run a jaxpr once, or return their operands: they leave no trace in the graph."""

from __future__ import annotations

from jaxport.export.emit.registry import rule
from jaxport.export.rules import images
from jaxport.jaxprs import closed_call_p
from jaxport.jaxprs.releases import RESIZE

#: Calls that JAX passes to its compiler or to Python, so that their implementation cannot be traced, and the parameter
#: that holds the jaxpr. Other primitives that only call a jaxpr need no rule: `prepare.implementations` traces them.
BODIES = {
    "call": "call_jaxpr",
    "checkpoint": "jaxpr",
    closed_call_p.name: "call_jaxpr",
    "composite": "jaxpr",
    "compute_on": "jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_partitioning": "call",
    "custom_vjp_call": "call_jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
}


def runs(parameter):
    """Return a rule that exports the jaxpr in one parameter in place."""

    def run(op, *operands, **parameters):
        return op.inline(parameters[parameter], *operands)

    run.__qualname__ = f"runs {parameter}"
    return run


for _primitive, _parameter in BODIES.items():
    if _primitive != "jit":  # its rule is below
        rule(_primitive, broadcasts=True)(runs(_parameter))


@rule("jit", broadcasts=True)
def jit(op, *operands, jaxpr, name, **_):
    made = images.enlarged(op, operands, jaxpr) if name == RESIZE else None
    return op.inline(jaxpr, *operands) if made is None else made


@rule("call_exported", broadcasts=True)
def call_exported(op, *operands, exported):
    from jaxport.stablehlo.program import program_of

    made = op.call(program_of(exported).flat, *operands)
    return made if isinstance(made, list | tuple) else [made]


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
