"""Operations that not every release of JAX has, as those that all have."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxport import jaxprs
from jaxport.jaxprs import PythonFunction, aval_of
from jaxport.jaxprs.releases.primitives import implementations
from jaxport.jaxprs.rewrite import EquationRewriting, traced_equation

__all__ = ["in_common"]


def in_common(program: jaxprs.ClosedJaxpr) -> jaxprs.ClosedJaxpr:
    """Return a program without the operations that only newer releases of JAX have, where others compute the same.

    >>> program = jax.make_jaxpr(lambda x: jnp.searchsorted(jnp.arange(3.0), x))(1.5)
    >>> print(jaxprs.jaxpr_as_fun(in_common(program))(1.5)[0])
    2
    """
    return EquationRewriting(_replaced).closed(program)


def _replaced(equation: jaxprs.JaxprEqn) -> jaxprs.JaxprEqn:
    function = _common(equation)
    if function is None:
        return equation
    made = traced_equation(jax.jit(function), [atom.aval for atom in equation.invars])
    return made.replace(invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info)


def _common(equation: jaxprs.JaxprEqn) -> PythonFunction | None:
    """Return a function that computes an equation; None for an equation that stays as it is.

    1. An array of unspecified content is one of zeros.
    2. A call that is replaced before it is compiled is what replaces it, if it has no derivative, of which it may say more.
    """
    name, params = equation.primitive.name, equation.params
    results = [aval_of(variable) for variable in equation.outvars]
    if name == "empty":
        return lambda: jnp.zeros(params["shape"], params["dtype"])
    if name == "call_hi_primitive" and not any(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in results):
        run = implementations(equation.primitive)[0]
        return lambda *operands: run(*operands, **params)
    return None
