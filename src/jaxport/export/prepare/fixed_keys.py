"""Draw the random numbers of fixed keys once, in JAX, instead of at each run of the model.

A key that is written in the program gives the same numbers each time. They are constants of the graph, and so is what
is computed from nothing else; without that, each draw would be some two hundred operators on integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from typing import Any

import jax

from jaxport.blocks.block import block_p
from jaxport.export.emit.registry import RULES, Rule
from jaxport.export.prepare.keys import RANDOM
from jaxport.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, closed, dims, jaxpr_as_fun, nameless
from jaxport.jaxprs.rewrite import Rewriting, with_values
from jaxport.jaxprs.walk import bodies, equations_within, used_variables, variables

#: Results of more bytes are drawn in the graph: its operators take less room than the numbers.
LIMIT = 1 << 16


def with_fixed_keys(program: ClosedJaxpr, rules: Mapping[str, Rule] = RULES) -> ClosedJaxpr:
    """Return the program with such numbers as literals; the same object if it has no fixed keys.

    Primitives for which `rules` has another rule than the package stay: the user wants that rule to export them.

    >>> import jax.numpy as jnp
    >>> program = jax.make_jaxpr(lambda x: x + jax.random.normal(jax.random.key(0), (3,)))(jnp.ones(3))
    >>> [equation.primitive.name for equation in with_fixed_keys(program).eqns]
    ['add']
    """
    replaced = {name for name, rule in rules.items() if rule is not RULES.get(name)}
    return _FixedKeys(replaced).closed(program)


class _FixedKeys(Rewriting):
    def __init__(self, replaced: Set[str]):
        super().__init__()
        self.replaced = replaced

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = super().rewritten(jaxpr)
        fixed: list[JaxprEqn] = []
        known: set[Var] = set()
        for equation in jaxpr.eqns:
            if _is_fixed(equation, known) and self.replaced.isdisjoint(_primitives(equation)):
                fixed.append(equation)
                known.update(equation.outvars)
        if not fixed:
            return jaxpr
        rest = [equation for equation in jaxpr.eqns if not known.issuperset(equation.outvars) or not equation.outvars]
        remaining = jaxpr.replace(eqns=rest)
        used = used_variables(remaining)
        wanted = [variable for equation in fixed for variable in equation.outvars if variable in used]
        part = jaxpr.replace(constvars=[], invars=[], outvars=wanted, eqns=fixed, debug_info=nameless(jaxpr))
        with jax.enable_x64(True):  # the equations state their dtypes
            drawn = jax.jit(jaxpr_as_fun(closed(part, [])))()
        return with_values(remaining, {v: Literal(value, v.aval) for v, value in zip(wanted, drawn, strict=True)})


def _is_fixed(equation: JaxprEqn, known: Set[Var]) -> bool:
    """Whether an equation draws from fixed keys, or computes with nothing but what was drawn."""
    if equation.effects or equation.primitive is block_p or not all(map(_is_small, equation.outvars)):
        return False
    operands = variables(equation.invars)
    if not known >= operands:
        return False
    return bool(operands) or not RANDOM.isdisjoint(_primitives(equation))


def _is_small(variable: Var) -> bool:
    """Whether a result has a fixed size below the limit."""
    aval: Any = variable.aval
    shape = getattr(aval, "shape", None)
    return shape is not None and dims.all_static(shape) and aval.dtype.itemsize * math.prod(shape) <= LIMIT


def _primitives(equation: JaxprEqn) -> Iterator[str]:
    """Yield the names of the primitive and of those inside it."""
    yield equation.primitive.name
    for body in bodies(equation.params):
        yield from (inner.primitive.name for inner in equations_within(body))
