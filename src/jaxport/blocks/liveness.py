"""Dead-code elimination in programs with blocks, also inside loops, branches, calls and blocks.

A scan stacks rows that nobody reads, a counter only counts: a runtime would compute them, JAX does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from jaxport.blocks.block import Block, block_p
from jaxport.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, dce_jaxpr, liveness_rule
from jaxport.jaxprs.walk import with_equations


def all_blocks(_: Block) -> bool:
    """Hold for every block."""
    return True


# JAX calls the rule of a primitive with the equation alone, and caches results by what is in its contexts.
_is_whole = jax.make_user_context(all_blocks)


def live(
    jaxpr: Jaxpr, keep: Sequence[bool], is_whole: Callable[[Block], bool] = all_blocks
) -> tuple[Jaxpr, list[bool]]:
    """Eliminate dead code; return the jaxpr, and which inputs are left: those to `keep`, and those used.

    A block for which `is_whole`, a hashable function, holds keeps results that nobody reads; by default all do.

    >>> jaxpr = jax.make_jaxpr(lambda x, y: (jax.numpy.sin(x), x + 1)[1])(1.0, 2.0).jaxpr
    >>> [equation.primitive.name for equation in live(jaxpr, [False, False])[0].eqns]
    ['add']
    """
    with _is_whole(is_whole):
        made, used = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=list(keep))
    return jaxpr if all(used) and with_equations(jaxpr, made.eqns) is jaxpr else made, list(used)


def without_dead_code(closed: ClosedJaxpr, is_whole: Callable[[Block], bool] = all_blocks) -> ClosedJaxpr:
    """Eliminate dead code; the inputs of the program stay, and all results of blocks that are whole (see `live`).

    >>> closed = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, row: (c + row, row * 2), 0.0, x)[0])(jax.numpy.ones(3))
    >>> [len(equation.outvars) for program in (closed, without_dead_code(closed)) for equation in program.eqns]
    [2, 1]
    """
    jaxpr, _ = live(closed.jaxpr, [True] * len(closed.jaxpr.invars), is_whole)
    return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, closed.consts)


@liveness_rule(block_p)
def _live_block(used: Sequence[bool], equation: JaxprEqn) -> tuple[list[bool], JaxprEqn | None]:
    """Keep the arguments of a block, which it describes by position, and the results of a whole one."""
    if not any(used) and not equation.effects:
        return [False] * len(equation.invars), None
    closed, block, is_whole = equation.params["jaxpr"], equation.params["block"], _is_whole.value
    if is_whole(block):
        used = [index < block.results or is_used for index, is_used in enumerate(used)]
    body = closed.jaxpr
    if not all(used):
        outvars = [atom for atom, is_used in zip(body.outvars, used, strict=True) if is_used]
        body = body.replace(outvars=outvars, debug_info=body.debug_info._replace(result_paths=None))
        block = block.with_results([index for index in range(block.results) if used[index]])
    body, left = live(body, [index < len(block.arguments) for index in range(len(body.invars))], is_whole)
    if body is closed.jaxpr:
        return left, equation
    positions = [index for index, is_left in enumerate(left) if is_left]
    made = equation.replace(
        invars=[equation.invars[index] for index in positions],
        outvars=[variable for variable, is_used in zip(equation.outvars, used, strict=True) if is_used],
        params={"jaxpr": ClosedJaxpr(body, closed.consts), "block": block.with_inputs(positions)},
    )
    return left, made
