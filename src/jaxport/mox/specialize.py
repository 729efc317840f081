"""A program that was traced with symbolic dims, at concrete sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend import core as jex_core

from jaxport.blocks import dims
from jaxport.blocks.block import Block
from jaxport.errors import InvalidArgument
from jaxport.mox.rules import RULED, Rule, equation_of, rule_of

__all__ = ["sizes_of", "specialize"]

Jaxpr, Var = jex_core.Jaxpr, jex_core.Var


def sizes_of(avals: Sequence[Any], shapes: Sequence[Sequence[int]], names: Sequence[str], where: str) -> dict[str, int]:
    """The values of the symbols with which the avals have these shapes.

    Raises:
      InvalidArgument: there are none.
    """
    values: dict[str, int] = {}
    for aval, shape in zip(avals, shapes, strict=True):
        for dim, size in zip(aval.shape, shape, strict=False):
            form = None if dims.is_static(dim) else dims.solve_linear(dim)
            if form is not None and (size - form[2]) % form[1] == 0:
                values.setdefault(form[0], (size - form[2]) // form[1])
    for name, aval, shape in zip(names, avals, shapes, strict=True):
        wanted = [_value(dim, values) for dim in aval.shape]
        if wanted != list(shape) or any(value < 1 for value in values.values()):
            sizes = ", ".join(f"{symbol}={value}" for symbol, value in values.items())
            raise InvalidArgument(
                f"`{name}` has the shape {tuple(shape)}",
                where=where,
                why=f"the program was traced with ({', '.join(map(str, aval.shape))}){f', where {sizes}' if sizes else ''}",
                instead="give it sizes that fit, or trace the model again with these arguments",
            )
    return values


def _value(dim: Any, values: Mapping[str, int]) -> Any:
    if not dims.is_static(dim) and not dims.symbols(str(dim)) <= set(values):
        return None
    return dims.evaluate(dim, values)


def specialize(closed: jex_core.ClosedJaxpr, values: Mapping[str, int]) -> jex_core.ClosedJaxpr:
    """A program with sizes in the place of symbolic dims, in its types, params and bodies.

    >>> import jax, jax.numpy as jnp
    >>> (n,) = jax.export.symbolic_shape("n")
    >>> closed = jax.make_jaxpr(lambda x: x.sum() / x.shape[0])(jax.ShapeDtypeStruct((n,), jnp.float32))
    >>> print(specialize(closed, {"n": 3}).jaxpr.invars[0].aval)
    float32[3]
    """
    return _Specializing(values).closed(closed)


class _Specializing:
    def __init__(self, values: Mapping[str, int]):
        self.values = values
        # The source is kept with the result, so that no id is used twice.
        self._done: dict[int, tuple[Jaxpr, Jaxpr]] = {}

    def closed(self, closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
        return jex_core.ClosedJaxpr(self.body(closed.jaxpr), closed.consts)

    def aval(self, aval: Any) -> Any:
        shape = getattr(aval, "shape", ())
        if all(map(dims.is_static, shape)):
            return aval
        return aval.update(shape=tuple(dims.evaluate(dim, self.values) for dim in shape))

    def body(self, jaxpr: Jaxpr) -> Jaxpr:
        if id(jaxpr) not in self._done:
            self._done[id(jaxpr)] = jaxpr, self._made(jaxpr)
        return self._done[id(jaxpr)][1]

    def _made(self, jaxpr: Jaxpr) -> Jaxpr:
        env: dict[Var, Any] = {}

        def defined(variable: Any) -> Any:
            if isinstance(variable, jex_core.DropVar):
                return jex_core.DropVar(self.aval(variable.aval))
            env[variable] = Var(self.aval(variable.aval))
            return env[variable]

        read = lambda atom: env[atom] if isinstance(atom, Var) else atom
        constvars, invars = [defined(v) for v in jaxpr.constvars], [defined(v) for v in jaxpr.invars]
        equations = []
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dim_as_value":
                (variable,) = equation.outvars
                number = dims.evaluate(equation.params["dim"], self.values)
                env[variable] = jex_core.Literal(np.asarray(number, variable.aval.dtype)[()], variable.aval)
                continue
            operands = [read(atom) for atom in equation.invars]
            outvars = [defined(variable) for variable in equation.outvars]
            equations.append(self.equation(equation).replace(invars=operands, outvars=outvars))
        return jaxpr.replace(
            constvars=constvars,
            invars=invars,
            outvars=[read(atom) for atom in jaxpr.outvars],
            eqns=equations,
            debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None),
        )

    def equation(self, equation: jex_core.JaxprEqn) -> jex_core.JaxprEqn:
        if equation.primitive.name in RULED:
            body = self.closed(equation.params["call_jaxpr"])
            return equation_of(equation.primitive.name, body, lambda: self.rule(equation), "specialized")
        params = {name: self.value(value) for name, value in equation.params.items()}
        return equation.replace(params=params)

    def rule(self, equation: jex_core.JaxprEqn) -> Rule:
        rule = rule_of(equation)
        return Rule(self.closed(rule.forward), None if rule.backward is None else self.closed(rule.backward))

    def value(self, value: Any) -> Any:
        """A param with sizes in the place of dims."""
        if isinstance(value, jex_core.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self.body(value)
        if isinstance(value, Block) or isinstance(value, str):
            return value
        if isinstance(value, tuple | list):
            made = [self.value(item) for item in value]
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        if hasattr(value, "scope") and not dims.is_static(value):
            return dims.evaluate(value, self.values)
        return value
