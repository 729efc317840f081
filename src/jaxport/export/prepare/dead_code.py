"""Dead-code elimination, also inside loops, branches and calls.

A scan stacks rows that nobody reads, a counter only counts: the runtime would compute them, JAX does not.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxport.blocks import Block
from jaxport.blocks.liveness import all_blocks, live
from jaxport.jaxprs import ClosedJaxpr


def without_dead_code(closed: ClosedJaxpr, is_whole: Callable[[Block], bool] = all_blocks) -> ClosedJaxpr:
    """Eliminate dead code; the inputs of the program stay, and all results of blocks that are whole (see `live`).

    >>> import jax
    >>> closed = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, row: (c + row, row * 2), 0.0, x)[0])(jax.numpy.ones(3))
    >>> [len(equation.outvars) for program in (closed, without_dead_code(closed)) for equation in program.eqns]
    [2, 1]
    """
    jaxpr, _ = live(closed.jaxpr, [True] * len(closed.jaxpr.invars), is_whole)
    return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, closed.consts)
