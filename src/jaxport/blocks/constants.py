"""Hoist the arrays that a traced function closed over to inputs of the whole program.

JAX keeps such an array where it was first used: as a const of the outermost jaxpr, or of the body of a `jit` within it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxport import jaxprs
from jaxport.jaxprs import Array, ClosedJaxpr, Jaxpr, JaxprEqn, Var, nameless
from jaxport.jaxprs.body_inputs import Widening, takes_inputs, takes_outputs, widened
from jaxport.jaxprs.identity import IdentityMap
from jaxport.jaxprs.rewrite import with_values
from jaxport.jaxprs.walk import equations_within, map_jaxprs


def hoisted(closed: ClosedJaxpr) -> tuple[Jaxpr, list[Array]]:
    """Return a jaxpr without consts, and the arrays that are its new inputs.

    The arrays are the leading inputs, before those of `closed`. Arrays in bodies of primitives that bind their arity
    elsewhere (`custom_jvp_call`) stay.

    >>> import jax.numpy as jnp
    >>> w = jnp.ones(3)
    >>> jaxpr, arrays = hoisted(jax.make_jaxpr(jax.jit(lambda x: x * w))(w))
    >>> len(jaxpr.invars), [array is w for array in arrays]
    (2, [True])
    """
    jaxpr, arrays = _Hoisting().lifted(closed.jaxpr, closed.consts)
    count = len(arrays)
    arguments, new = jaxpr.invars[: len(jaxpr.invars) - count], jaxpr.invars[len(jaxpr.invars) - count :]
    return jaxpr.replace(invars=[*new, *arguments]), arrays


class _Hoisting:
    """Lifts consts body by body: those of a body become new operands of the equation that runs it."""

    def __init__(self) -> None:
        # By jaxpr, and the identities of its consts, which are kept with the result: that keeps these identities
        # theirs.
        self._lifted: dict[tuple[Jaxpr, tuple[int, ...]], tuple[Sequence[Array], tuple[Jaxpr, list[Array]]]] = {}
        self._needs: dict[Jaxpr, bool] = {}

    def needs(self, jaxpr: Jaxpr) -> bool:
        """Whether there is a const in a body within `jaxpr`."""
        if jaxpr not in self._needs:
            self._needs[jaxpr] = any(map(_holds_constants, equations_within(jaxpr)))
        return self._needs[jaxpr]

    def lifted(self, jaxpr: Jaxpr, consts: Sequence[Array]) -> tuple[Jaxpr, list[Array]]:
        """Return `jaxpr` with its consts, and those of its bodies, as inputs behind its own, and the arrays."""
        key = jaxpr, tuple(map(id, consts))
        if key not in self._lifted:
            self._lifted[key] = consts, self._made(jaxpr, consts)
        return self._lifted[key][1]

    def _made(self, jaxpr: Jaxpr, consts: Sequence[Array]) -> tuple[Jaxpr, list[Array]]:
        # One input per array, however often the program uses it.
        variables: IdentityMap[Array, Var] = IdentityMap()

        def variable_of(array: Array, variable: Var | None = None) -> Var:
            if array not in variables:
                variables[array] = variable or Var(jax.typeof(array))
            return variables[array]

        same = {v: variable_of(const, v) for v, const in zip(jaxpr.constvars, consts, strict=True)}
        made = with_values(jaxpr, {v: first for v, first in same.items() if v is not first})
        equations = made.eqns
        if self.needs(jaxpr):
            equations = [self.equation(equation, variable_of) for equation in equations]
        invars = [*made.invars, *variables.values()]
        return Jaxpr((), invars, made.outvars, equations, made.effects, nameless(made)), list(variables)

    def equation(self, equation: JaxprEqn, variable_of: Callable[[Array], Var]) -> JaxprEqn:
        """Return the equation with the lifted consts of its bodies as new operands."""
        # The body of a `shard_map` is open: its equations take arrays as they are on each device.
        if not takes_inputs(equation) or not takes_outputs(equation):
            return equation
        lifted: list[tuple[Jaxpr, list[Array]]] = []

        def lift(body: Any) -> object:
            closed = isinstance(body, ClosedJaxpr)
            lifted.append(self.lifted(body.jaxpr, body.consts) if closed else self.lifted(body, ()))
            return jaxprs.closed(lifted[-1][0], ()) if closed else lifted[-1][0]

        params = {name: map_jaxprs(lift, value) for name, value in equation.params.items()}
        inputs = [list(map(variable_of, arrays)) for _, arrays in lifted]
        operands = {variable: variable for variables in inputs for variable in variables}
        if not operands:
            return equation
        more = Widening([body for body, _ in lifted], inputs, operands)
        (made,), _ = widened(equation.replace(params=params), more)
        return made


def _holds_constants(equation: JaxprEqn) -> bool:
    return any(
        isinstance(value, ClosedJaxpr) and value.consts
        for item in equation.params.values()
        for value in (item if isinstance(item, tuple | list) else (item,))
    )
