"""Dataflow in a body: which equation computes a value, which equations it depends on, and which it reaches.

>>> import jax
>>> body = jax.make_jaxpr(lambda x, y: (x + 1, (x * y) ** 2))(1.0, 2.0).jaxpr
>>> [equation.primitive.name for equation in readers(body, body.invars[0])]
['add', 'mul']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

from jaxport.jaxprs.releases.names import Atom, Jaxpr, JaxprEqn, Literal, Var

__all__ = ["Read", "needed_equations", "producers", "reached", "readers", "used_variables", "variables"]


def variables(atoms: Iterable[Atom]) -> set[Var]:
    """Return the variables among some atoms."""
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def producers(jaxpr: Jaxpr) -> dict[Var, JaxprEqn]:
    """Return the equation that computes each variable of a body, except its inputs."""
    return {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}


def readers(jaxpr: Jaxpr, variable: Var) -> list[JaxprEqn]:
    """Return the equations of a body that have a variable as an operand."""
    return [equation for equation in jaxpr.eqns if any(atom is variable for atom in equation.invars)]


def used_variables(jaxpr: Jaxpr) -> set[Var]:
    """Return the variables that the equations of a body read, or that it returns."""
    return variables([*(atom for equation in jaxpr.eqns for atom in equation.invars), *jaxpr.outvars])


def needed_equations(
    jaxpr: Jaxpr, wanted: Iterable[Atom], available: Set[Var] = frozenset(), effects: bool = False
) -> tuple[list[JaxprEqn], set[Var]]:
    """Return the equations of a body that some values depend on, in order, and all variables that these read.

    Args:
      jaxpr: the body.
      wanted: the values.
      available: the variables that are known, so that nothing need compute them.
      effects: whether equations with an effect are needed, too.

    >>> import jax
    >>> body = jax.make_jaxpr(lambda x: (x + 1, (x * 2) ** 2))(1.0).jaxpr
    >>> [equation.primitive.name for equation in needed_equations(body, body.outvars[1:])[0]]
    ['mul', 'integer_pow']
    """
    needed = variables(wanted) - available
    equations = []
    for equation in reversed(jaxpr.eqns):
        if (effects and equation.effects) or not needed.isdisjoint(equation.outvars):
            equations.append(equation)
            needed |= variables(equation.invars) - available
    return equations[::-1], needed


class Read(NamedTuple):
    """An operand of an equation: the equation, and the position of the operand."""

    equation: JaxprEqn
    position: int


def reached(jaxpr: Jaxpr, start: Iterable[Var], passes: Callable[[JaxprEqn], bool]) -> tuple[set[Var], list[Read]]:
    """Follow values through the equations of a body that pass them on.

    Args:
      jaxpr: the body.
      start: the values.
      passes: whether the results of an equation are the same values, in another form.

    Returns:
      The variables that hold the values in any form, and the operands that have them in equations that do not pass
      them on, in order.

    >>> import jax
    >>> body = jax.make_jaxpr(lambda x: (x.T * 2, x + 1))(jax.numpy.ones((2, 3))).jaxpr
    >>> held, reads = reached(body, body.invars, lambda equation: equation.primitive.name == "transpose")
    >>> len(held), [read.equation.primitive.name for read in reads]
    (2, ['mul', 'add'])
    """
    held = set(start)
    reads = []
    for equation in jaxpr.eqns:
        positions = [i for i, atom in enumerate(equation.invars) if not isinstance(atom, Literal) and atom in held]
        if positions and passes(equation):
            held.update(equation.outvars)
        else:
            reads += [Read(equation, position) for position in positions]
    return held, reads
