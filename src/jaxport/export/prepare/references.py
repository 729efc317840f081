"""Replace mutable arrays (`jax.new_ref`) by values: each write makes a new value, which later reads see."""

from __future__ import annotations

from jaxport.blocks.ungrouping import ungroup
from jaxport.jaxprs import ClosedJaxpr, JaxprEqn, discharge_state, internal_mutable_array_effect
from jaxport.jaxprs.rewrite import EquationRewriting, call_of


def without_references(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program on values only; the same object if it has no mutable arrays. Its blocks are inlined.

    >>> import jax
    >>> def doubled(x):
    ...     array = jax.new_ref(x)
    ...     array[...] = array[...] * 2
    ...     return array[...]
    >>> [equation.primitive.name for equation in without_references(jax.make_jaxpr(doubled)(jax.numpy.ones(3))).eqns]
    ['mul']
    """
    closed = EquationRewriting(_discharged).closed(closed)
    if internal_mutable_array_effect not in closed.effects:
        return closed
    return discharge_state(ungroup(closed))


def _discharged(equation: JaxprEqn) -> JaxprEqn:
    """Replace `run_state`, which has mutable arrays of its own and returns them at the end."""
    if equation.primitive.name != "run_state":
        return equation
    body = discharge_state(ungroup(ClosedJaxpr(equation.params["jaxpr"], ())))
    return call_of(body, equation.invars, equation.outvars, equation)
