"""The JAX side of a comparison: a traced program, run by JAX."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import export

from jaxport import blocks, jaxprs
from jaxport.export import dims
from jaxport.jaxprs import Array, PyTree


def run_program(jaxpr: jaxprs.ClosedJaxpr, operands: Sequence[Array]) -> list[Array]:
    """Return the results of a program, which may have blocks and symbolic dims, for concrete operands."""
    plain = blocks.ungroup(jaxpr)
    function = jax.jit(jaxprs.jaxpr_as_fun(plain))
    if all(dims.all_static(getattr(aval, "shape", ())) for aval in plain.in_avals):
        return list(function(*operands))
    # Its parameters hold the symbolic dims, so it cannot be evaluated directly: JAX lowers it with them.
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in plain.in_avals]
    return list(export.export(function)(*specs).call(*operands))


def run_traced(traced: blocks.Traced, inputs: Sequence[PyTree]) -> list[Array]:
    """Return the outputs of a traced program, including those of the state."""
    return run_program(traced.jaxpr, [*(weight.value for weight in traced.weights), *inputs])
