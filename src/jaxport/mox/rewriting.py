"""A program with other types: every aval, param and literal of it, in all its bodies."""

from __future__ import annotations

from jaxport import jaxprs
from jaxport.blocks.block import Block
from jaxport.jaxprs import Atom, PyTree
from jaxport.mox.aliases import Aval
from jaxport.mox.rules import RULED, DerivativeRule, equation_of, rule_of

__all__ = ["TypeRewriting"]

Jaxpr = jaxprs.Jaxpr
Var = jaxprs.Var


class TypeRewriting:
    """One pass over a program; a subclass says what becomes of types, params and literals."""

    def __init__(self) -> None:
        # The source is kept with the result, so that no id is used twice.
        self._done: dict[int, tuple[Jaxpr, Jaxpr]] = {}

    def aval(self, aval: Aval) -> Aval:
        """Return what becomes of a type."""
        return aval

    def leaf(self, value: PyTree) -> PyTree:
        """Return what becomes of a param, or of an item of one, that is no program."""
        return value

    def literal(self, literal: jaxprs.Literal) -> jaxprs.Literal:
        """Return what becomes of a literal."""
        return literal

    def known(self, equation: jaxprs.JaxprEqn) -> jaxprs.Literal | None:
        """Return the value of an equation's result if it is a literal from now on."""
        del equation
        return None

    def closed(self, closed: jaxprs.ClosedJaxpr) -> jaxprs.ClosedJaxpr:
        """Return the program of another."""
        return jaxprs.closed(self.body(closed.jaxpr), closed.consts)

    def body(self, jaxpr: Jaxpr) -> Jaxpr:
        """Return the body of another; the same body stays one."""
        if id(jaxpr) not in self._done:
            self._done[id(jaxpr)] = jaxpr, self._made(jaxpr)
        return self._done[id(jaxpr)][1]

    def _made(self, jaxpr: Jaxpr) -> Jaxpr:
        env: dict[Var, Atom] = {}

        def defined(variable: Var) -> Var:
            aval = self.aval(variable.aval)
            if isinstance(variable, jaxprs.DropVar):
                return jaxprs.DropVar(aval)
            new = Var(aval)
            env[variable] = new
            return new

        read = lambda atom: env[atom] if isinstance(atom, Var) else self.literal(atom)
        constvars, invars = [defined(v) for v in jaxpr.constvars], [defined(v) for v in jaxpr.invars]
        equations = []
        for equation in jaxpr.eqns:
            known = self.known(equation)
            if known is not None:
                env[equation.outvars[0]] = known
                continue
            operands = [read(atom) for atom in equation.invars]
            outvars = [defined(variable) for variable in equation.outvars]
            equations.append(self._equation(equation).replace(invars=operands, outvars=outvars))
        return jaxpr.replace(
            constvars=constvars,
            invars=invars,
            outvars=[read(atom) for atom in jaxpr.outvars],
            eqns=equations,
            debug_info=jaxprs.nameless(jaxpr),
        )

    def _equation(self, equation: jaxprs.JaxprEqn) -> jaxprs.JaxprEqn:
        if equation.primitive.name in RULED:
            body = equation.params["call_jaxpr"]
            name = str(body.jaxpr.debug_info.func_name)
            return equation_of(equation.primitive.name, self.closed(body), lambda: self._rule(equation), name)
        return equation.replace(params={name: self._value(value) for name, value in equation.params.items()})

    def _rule(self, equation: jaxprs.JaxprEqn) -> DerivativeRule:
        rule = rule_of(equation)
        return DerivativeRule(self.closed(rule.forward), None if rule.backward is None else self.closed(rule.backward))

    def _value(self, value: PyTree) -> PyTree:
        if isinstance(value, jaxprs.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self.body(value)
        if isinstance(value, Block | str):
            return value
        if type(value) in (tuple, list):
            return type(value)(map(self._value, value))
        return self.leaf(value)
