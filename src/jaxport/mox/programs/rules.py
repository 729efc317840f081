"""The rules of `custom_jvp` and `custom_vjp` as programs: taken out of equations, and put into new ones.

In a jaxpr such a rule is an opaque Python object. Differentiating the equation makes JAX run it, so that it can be
traced like anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.jaxprs import Array, Aval, TreeDef, aval_of
from jaxport.jaxprs.rewrite import alone, traced_equation

#: The primitives that carry a rule of differentiation.
RULED = frozenset({"custom_jvp_call", "custom_vjp_call"})


@dataclass(frozen=True)
class DerivativeRule:
    """A rule of differentiation.

    Attributes:
      forward: of `custom_jvp`, from the primals and the tangents of those that have some, to the results and their
        tangents; of `custom_vjp`, from the primals to the results and the residuals.
      backward: of `custom_vjp`, from the residuals and the cotangents of the results that have some, to those of the
        primals that have some; None for `custom_jvp`.
    """

    forward: jaxprs.ClosedJaxpr
    backward: jaxprs.ClosedJaxpr | None = None


def _specs(avals: Sequence[Aval]) -> list[jax.ShapeDtypeStruct]:
    return [jaxprs.struct_of(aval) for aval in avals]


def _inexact(avals: Sequence[Aval]) -> list[int]:
    return [index for index, aval in enumerate(avals) if jnp.issubdtype(aval.dtype, jnp.inexact)]


def rule_of(equation: jaxprs.JaxprEqn) -> DerivativeRule:
    """Return the rule of an equation, traced.

    >>> rule = rule_of(jax.make_jaxpr(jax.nn.relu)(1.0).eqns[0])
    >>> len(rule.forward.in_avals), len(rule.forward.out_avals)
    (2, 2)
    """
    run = jaxprs.jaxpr_as_fun(alone(equation))
    operand_avals = [aval_of(atom) for atom in equation.invars]
    differentiable = _inexact(operand_avals)
    made = _inexact([aval_of(v) for v in equation.outvars])

    def only(values: Sequence[Array]) -> Callable[..., list[Array]]:
        """Return the equation as a function of the operands that have derivatives."""

        def function(*some: Array) -> list[Array]:
            full = list(values)
            for index, value in zip(differentiable, some, strict=True):
                full[index] = value
            return run(*full)

        return function

    if equation.primitive.name == "custom_jvp_call":

        def pushed(primals: list, tangents: list) -> tuple[list, list]:
            some = [primals[index] for index in differentiable]
            results, moved = jax.jvp(only(primals), tuple(some), tuple(tangents))
            return results, [moved[index] for index in made]

        return DerivativeRule(
            jax.make_jaxpr(pushed)(_specs(operand_avals), _specs([operand_avals[index] for index in differentiable]))
        )
    trees: list[TreeDef] = []

    def results_and_residuals(*primals: Array) -> tuple[list, list]:
        some = [primals[index] for index in differentiable]
        results, pull = jax.vjp(only(primals), *some)
        leaves, tree = jax.tree.flatten(pull)
        trees.append(tree)
        return results, leaves

    forward = jax.make_jaxpr(results_and_residuals)(*_specs(operand_avals))
    outputs = [aval_of(v) for v in equation.outvars]

    def pulled(residuals: list, cotangents: list) -> list[Array]:
        waiting = iter(cotangents)
        full = [
            next(waiting) if index in made else np.zeros(aval.shape, jax.dtypes.float0)
            for index, aval in enumerate(outputs)
        ]
        return list(jax.tree.unflatten(trees[-1], residuals)(full))

    residuals = _specs(forward.out_avals[len(outputs) :])
    backward = jax.make_jaxpr(pulled)(residuals, _specs([outputs[index] for index in made]))
    return DerivativeRule(forward, backward)


def equation_of(
    primitive: str, body: jaxprs.ClosedJaxpr, rule: Callable[[], DerivativeRule], name: str
) -> jaxprs.JaxprEqn:
    """Return a new equation that runs `body` and is differentiated by the rule, which is asked for when it is needed.

    >>> jaxpr = jax.make_jaxpr(jax.nn.relu)(1.0)
    >>> body = jaxpr.eqns[0].params["call_jaxpr"]
    >>> equation = equation_of("custom_jvp_call", body, lambda: rule_of(jaxpr.eqns[0]), "relu")
    >>> equation.primitive.name
    'custom_jvp_call'
    """
    operand_avals, results = body.in_avals, len(body.out_avals)
    differentiable = _inexact(operand_avals)
    made = _inexact(body.out_avals)
    run = jaxprs.jaxpr_as_fun(body)

    def plain(*operands: Array) -> list[Array]:
        return run(*operands)

    plain.__name__ = plain.__qualname__ = name
    if primitive == "custom_jvp_call":
        function: Any = jax.custom_jvp(plain)

        def jvp(primals: tuple, tangents: tuple) -> tuple[list, list]:
            outputs = jaxprs.jaxpr_as_fun(rule().forward)(*primals, *(tangents[index] for index in differentiable))
            moved: list[Array] = [np.zeros(aval.shape, jax.dtypes.float0) for aval in body.out_avals]
            for index, tangent in zip(made, outputs[results:], strict=True):
                moved[index] = tangent
            return outputs[:results], moved

        function.defjvp(jvp)
    else:
        function = jax.custom_vjp(plain)

        def forward(*operands: Array) -> tuple[list, list]:
            outputs = jaxprs.jaxpr_as_fun(rule().forward)(*operands)
            return outputs[:results], outputs[results:]

        def backward(residuals: list, cotangents: list) -> tuple:
            pull = rule().backward
            assert pull is not None  # a rule of `custom_vjp` has both parts
            cotangents_of_primals = jaxprs.jaxpr_as_fun(pull)(*residuals, *(cotangents[index] for index in made))
            pulled: list[Array | None] = [None] * len(operand_avals)
            for index, cotangent in zip(differentiable, cotangents_of_primals, strict=True):
                pulled[index] = cotangent
            return tuple(pulled)

        function.defvjp(forward, backward)
    return traced_equation(function, operand_avals)
