"""Give a program other types: each aval, param and literal, in all its bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxport.blocks.block import Block
from jaxport.jaxprs import Array, Aval, ClosedJaxpr, Jaxpr, JaxprEqn
from jaxport.jaxprs.rewrite import Atoms, VariableRewriting
from jaxport.mox.programs.rules import RULED, DerivativeRule, equation_of, rule_of


class TypeRewriting(VariableRewriting):
    """One pass over a program; a subclass maps types, params and constants."""

    def avals(self, aval: Aval) -> Sequence[Aval] | None:
        """Return the other type, if there is one."""
        other = self.aval(aval)
        return None if other is aval else [other]

    def aval(self, aval: Aval) -> Aval:
        """Return the new type; the same object if it stays."""
        raise NotImplementedError

    def values(self, value: Array) -> Sequence[Array]:
        """Return the new value of a constant."""
        return [value]

    def leaf(self, value: object) -> Any:
        """Return the new value of a param, or of an item of one, that is not a program."""
        return value

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        """Rewrite the params of an equation, and the rule of differentiation if it carries one."""
        if equation.primitive.name in RULED:
            body = equation.params["call_jaxpr"]
            if (new := self.closed(body)) is body:
                return equation
            name = str(body.jaxpr.debug_info.func_name)
            made = equation_of(equation.primitive.name, new, lambda: self._rule(equation), name)
            return equation.replace(primitive=made.primitive, params=made.params, effects=made.effects)
        equation = super().equation(equation)
        params = {name: self._value(value) for name, value in equation.params.items()}
        same = all(params[name] is value for name, value in equation.params.items())
        return equation if same else equation.replace(params=params)

    def changed(self, equation: JaxprEqn, atoms: Atoms) -> JaxprEqn:
        """Return an equation on operands of the other types."""
        return equation.replace(invars=atoms(equation.invars), outvars=atoms(equation.outvars))

    def _rule(self, equation: JaxprEqn) -> DerivativeRule:
        rule = rule_of(equation)
        return DerivativeRule(self.closed(rule.forward), None if rule.backward is None else self.closed(rule.backward))

    def _value(self, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr | Jaxpr | Block | str):
            return value
        if type(value) in (tuple, list):
            items = [self._value(item) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)
        return self.leaf(value)
