"""Primitives that run a jaxpr once, or return their operands: they leave no trace in the graph."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.export.emit.intervals import within
from jaxport.export.emit.registry import rule
from jaxport.export.rules import images
from jaxport.jaxprs import closed_call_p
from jaxport.jaxprs.releases.names import RESIZE
from jaxport.jaxprs.walk import equations_within

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
    if name == RESIZE:
        made = images.enlarged(op, operands, jaxpr)
    else:
        made = _divided(op, operands, jaxpr, name) if name in DIVISIONS else None
    return op.inline(jaxpr, *operands) if made is None else made


DIVISIONS = {"floor_divide": jnp.floor_divide, "remainder": jnp.remainder}
"""Functions of integers, which JAX computes by truncation, and a choice by signs."""


def _divided(op, operands, jaxpr, name):
    """Return quotient or remainder of signed integers by a positive number, of which ONNX rounds down the remainder alone."""
    if len(operands) != 2:
        return None
    x, divisor = operands
    if not divisor.is_constant or divisor.constant is None or x.dtype.kind != "i":
        return None
    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in jaxpr.in_avals]
    first = next(equations_within(jax.make_jaxpr(DIVISIONS[name])(*avals).jaxpr))
    is_jax = str(first.params.get("jaxpr")) == str(jaxpr)  # and no function of the same name
    if not is_jax or divisor.dtype != x.dtype or np.min(divisor.constant) < 1:
        return None
    if name == "remainder":
        return op.Mod(x, divisor)
    largest = np.iinfo(x.dtype).max
    if within(x, 0, largest):
        return op.Div(x, divisor)
    if np.max(divisor.constant) > largest // 2:
        return None
    # What is left of a negative number is negative, and makes -1 of a quotient; `x - mod(x, d)` could leave the dtype.
    below = op.Sub(op.Mod(x, divisor, fmod=1), (divisor.constant - 1).astype(x.dtype))
    return op.Add(op.Div(x, divisor), op.Div(below, divisor))


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
