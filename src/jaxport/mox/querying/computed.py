"""Weights that a body computes from several parameters: dequantized ones, or a direction and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxport import jaxprs
from jaxport.jaxprs import JaxprEqn
from jaxport.jaxprs.body_inputs import DISSOLVED, PLAIN_CALLS, runs_bodies
from jaxport.jaxprs.walk import bodies, interpret


@dataclass(frozen=True)
class ComputedWeight:
    """A weight, as a product takes it: the equation that computes it, and the inputs of the body that it is computed
    from.
    """

    equation: JaxprEqn
    origins: frozenset[int]


@dataclass(frozen=True)
class _Computed:
    """How a value is computed: from which parameters (None if from arguments, too), and by which equation."""

    origins: frozenset[int] | None = frozenset()
    equation: JaxprEqn | None = None


def computed_weights(jaxpr: jaxprs.Jaxpr, parameters: Sequence[int]) -> list[ComputedWeight]:
    """Return what is computed from parameters alone, and multiplied by something else.

    >>> import jax, jax.numpy as jnp
    >>> body = jax.make_jaxpr(lambda x, q, scale: x @ (q * scale).T)(*map(jnp.ones, ((1, 3), (2, 3), (2, 1)))).jaxpr
    >>> [(found.equation.primitive.name, sorted(found.origins)) for found in computed_weights(body, [1, 2])]
    [('transpose', [1, 2])]
    """
    found: dict[JaxprEqn, ComputedWeight] = {}

    def rule(equation: JaxprEqn, operands: Sequence[_Computed]) -> Sequence[_Computed]:
        count = len(equation.outvars)
        if runs_bodies(equation):
            (first, *_) = bodies(equation.params)
            if equation.primitive.name in PLAIN_CALLS | DISSOLVED and len(first.outvars) == count:
                return run(first, operands)
            return [_Computed(None)] * count
        if equation.primitive.name == "dot_general":
            for operand, other in (operands, operands[::-1]):
                if operand.origins and operand.equation is not None and other.origins is None:
                    found[operand.equation] = ComputedWeight(operand.equation, operand.origins)
        if equation.effects or any(operand.origins is None for operand in operands):
            return [_Computed(None)] * count
        origins = frozenset().union(*(operand.origins or () for operand in operands))
        return [_Computed(origins, equation)] * count

    def run(body: jaxprs.Jaxpr, inputs: Sequence[_Computed]) -> list[_Computed]:
        return interpret(body, [*[_Computed()] * len(body.constvars), *inputs], rule, lambda _: _Computed())

    known = set(parameters)
    run(jaxpr, [_Computed(frozenset([i]) if i in known else None) for i in range(len(jaxpr.invars))])
    return list(found.values())
