"""Inline all calls in the body of a scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxport import jaxprs
from jaxport.blocks.block import block_p
from jaxport.export.rules.calls import BODIES
from jaxport.jaxprs import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jaxport.jaxprs.rewrite import fresh, itself, literals, with_operands
from jaxport.jaxprs.walk import interpret, needed_equations, used_variables


def flat(closed: ClosedJaxpr, look_at: Callable[[JaxprEqn], None]) -> Jaxpr:
    """Return a jaxpr without calls and blocks that computes the same.

    Args:
      closed: the body of a loop.
      look_at: called with each equation; it raises if that must not be inlined.
    """
    equations: list[JaxprEqn] = []

    def inline(equation: JaxprEqn, operands: list[Atom]) -> Sequence[Atom]:
        look_at(equation)
        body = body_of(equation)
        if body is not None:
            return results(body, operands)
        outvars = fresh(equation.outvars)
        equations.append(with_operands(equation, operands, outvars))
        return outvars

    def results(body: ClosedJaxpr | Jaxpr, operands: Sequence[Atom]) -> list[Atom]:
        inner = body.jaxpr if isinstance(body, ClosedJaxpr) else body
        return interpret(inner, [*literals(body), *operands], inline, itself)

    jaxpr = closed.jaxpr
    outvars = results(closed, jaxpr.invars)
    return jaxprs.closed(jaxpr, ()).jaxpr.replace(constvars=[], eqns=equations, outvars=outvars)


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
    part = jaxpr.replace(eqns=equations, outvars=list(outvars))
    used = used_variables(part)
    return part.replace(invars=[v for v in dict.fromkeys((*invars, *jaxpr.invars)) if v in used])
