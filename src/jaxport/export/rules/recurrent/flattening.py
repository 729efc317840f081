"""Inline all calls in the body of a scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jaxport import jaxprs
from jaxport.blocks import block_p
from jaxport.export.rules.calls import BODIES
from jaxport.jaxprs import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var
from jaxport.jaxprs.walk import needed_equations


def flat(closed: ClosedJaxpr, look_at: Callable[[JaxprEqn], None]) -> Jaxpr:
    """Return a jaxpr without calls and blocks that computes the same.

    Args:
      closed: the body of a loop.
      look_at: called with each equation; it raises if that must not be inlined.
    """
    flattening = _Flattening(look_at)
    jaxpr = closed.jaxpr
    outvars = flattening.walk(closed, list(jaxpr.invars))
    return jaxprs.closed(jaxpr, ()).jaxpr.replace(constvars=[], eqns=flattening.equations, outvars=outvars)


class _Flattening:
    def __init__(self, look_at: Callable[[JaxprEqn], None]):
        self.look_at = look_at
        self.equations: list[JaxprEqn] = []

    def walk(self, jaxpr: ClosedJaxpr | Jaxpr, operands: Sequence[Atom]) -> list[Atom]:
        """Append the equations of a jaxpr, applied to some atoms, with fresh variables; return its results."""
        consts = jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()
        inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
        constants = [Literal(value, v.aval) for value, v in zip(consts, inner.constvars, strict=True)]
        known: dict[Var, Atom] = dict(zip((*inner.constvars, *inner.invars), (*constants, *operands), strict=True))
        read = lambda atom: atom if isinstance(atom, Literal) else known[atom]
        for equation in inner.eqns:
            self.look_at(equation)
            invars = [read(atom) for atom in equation.invars]
            body = body_of(equation)
            if body is not None:
                results = self.walk(body, invars)
            else:
                results = [Var(v.aval) for v in equation.outvars]
                self.equations.append(equation.replace(invars=invars, outvars=results))
            pairs = zip(equation.outvars, results, strict=True)
            known.update((v, result) for v, result in pairs if not isinstance(v, DropVar))
        return [read(atom) for atom in inner.outvars]


def body_of(equation: JaxprEqn) -> ClosedJaxpr | Jaxpr | None:
    """Return the jaxpr that a call or a block runs once; None for any other equation."""
    if equation.primitive is block_p:
        return equation.params["jaxpr"]
    parameter = BODIES.get(equation.primitive.name)
    return None if parameter is None else equation.params[parameter]


def needed(jaxpr: Jaxpr, invars: Sequence[Var], outvars: Sequence[Atom]) -> Jaxpr:
    """Return the part of a flat jaxpr that computes some values from others; its inputs are the `invars` that it uses.

    If these do not suffice, it uses inputs of the whole jaxpr too.
    """
    equations, _ = needed_equations(jaxpr, outvars, set(invars))
    used = variables([*(atom for equation in equations for atom in equation.invars), *outvars])
    inputs = [v for v in dict.fromkeys((*invars, *jaxpr.invars)) if v in used]
    return jaxpr.replace(invars=inputs, eqns=equations, outvars=list(outvars))


def variables(atoms: Iterable[Atom]) -> set[Var]:
    """Return the variables among some atoms."""
    return {atom for atom in atoms if isinstance(atom, Var)}
