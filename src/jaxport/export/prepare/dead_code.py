"""What no output depends on goes, also inside of loops, branches and calls.

A scan stacks rows that nobody reads, a counter only counts: the runtime would compute them, JAX does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters import partial_eval

from jaxport import blocks


def without_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program without what it does for nothing; its inputs stay.

    >>> import jax
    >>> closed = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, row: (c + row, row * 2), 0.0, x)[0])(jax.numpy.ones(3))
    >>> [len(equation.outvars) for program in (closed, without_dead_code(closed)) for equation in program.eqns]
    [2, 1]
    """
    jaxpr = _live(closed.jaxpr)
    return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, closed.consts)


def _live(jaxpr: Jaxpr) -> Jaxpr:
    live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    same = len(live.eqns) == len(jaxpr.eqns) and all(new is old for new, old in zip(live.eqns, jaxpr.eqns, strict=True))
    return jaxpr if same else live


def _live_block(used: Sequence[bool], equation: JaxprEqn) -> tuple[list[bool], JaxprEqn | None]:
    """A block keeps its inputs and outputs, which it describes by their places."""
    if not any(used) and not equation.effects:
        return [False] * len(equation.invars), None
    body = without_dead_code(equation.params["jaxpr"])
    if body is not equation.params["jaxpr"]:
        equation = equation.replace(params={**equation.params, "jaxpr": body})
    return [True] * len(equation.invars), equation


partial_eval.dce_rules[blocks.block_p] = _live_block
