"""How a block uses a parameter: the equations that it reaches, through calls and casts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend import core as jex_core

from jaxport.blocks.labels import bodies
from jaxport.mox.calls import runs_bodies, source_of

__all__ = ["Use", "is_passed_on", "uses"]

# What changes the representation of a value, not what it is.
_CASTS = frozenset({"convert_element_type", "copy", "copy_p", "reduce_precision", "stop_gradient"})


@dataclass(frozen=True)
class Use:
    """An equation that a value is an operand of: its position there, and how deep in calls the equation is."""

    equation: jex_core.JaxprEqn
    position: int
    depth: int
    body: jex_core.Jaxpr


def uses(jaxpr: jex_core.Jaxpr, variable: Any, depth: int = 0, through: frozenset[str] = frozenset()) -> Iterator[Use]:
    """The equations that a value reaches; casts, calls and the primitives `through` are looked through."""
    names = {variable}
    for equation in jaxpr.eqns:
        for position, atom in enumerate(equation.invars):
            if not isinstance(atom, jex_core.Var) or atom not in names:
                continue
            if equation.primitive.name in _CASTS | through:
                names.update(equation.outvars)
            elif runs_bodies(equation):
                for number, body in enumerate(bodies(equation.params)):
                    for index, inner in enumerate(body.invars):
                        source = source_of(equation, number, index)
                        if source is not None and source.operand == position and not source.sliced:
                            yield from uses(body, inner, depth + 1, through)
            else:
                yield Use(equation, position, depth, jaxpr)


def is_passed_on(jaxpr: jex_core.Jaxpr, start: Any, through: frozenset[str]) -> bool:
    """Whether a value reaches the first result of a body through the given primitives and casts alone."""
    names = {start}
    for equation in jaxpr.eqns:
        if any(isinstance(atom, jex_core.Var) and atom in names for atom in equation.invars):
            if equation.primitive.name not in through | _CASTS:
                return False
            names.update(equation.outvars)
    return jaxpr.outvars[0] in names


def cast_of(jaxpr: jex_core.Jaxpr, atom: Any) -> Any:
    """The value that casts made `atom` of."""
    made = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    while isinstance(atom, jex_core.Var) and atom in made and made[atom].primitive.name in _CASTS:
        atom = made[atom].invars[0]
    return atom
