"""Replace mutable arrays (`jax.new_ref`) by values: each write makes a new value, which later reads see."""

from __future__ import annotations

from collections.abc import Sequence

from jax.core import ShapedArray

from jaxport import blocks
from jaxport.export.prepare.rewriting import Atoms, Rewriting, call_of
from jaxport.jaxprs import Array, ClosedJaxpr, JaxprEqn, discharge_state, internal_mutable_array_effect


def without_references(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program on values only; the same object if it has no mutable arrays. Its blocks are inlined.

    >>> import jax
    >>> def doubled(x):
    ...     array = jax.new_ref(x)
    ...     array[...] = array[...] * 2
    ...     return array[...]
    >>> [equation.primitive.name for equation in without_references(jax.make_jaxpr(doubled)(jax.numpy.ones(3))).eqns]
    ['mul']
    """
    closed = _RunState().closed(closed)
    if internal_mutable_array_effect not in closed.effects:
        return closed
    return discharge_state(blocks.ungroup(closed))


class _RunState(Rewriting):
    """Replaces `run_state`, which has mutable arrays of its own and returns them at the end."""

    def avals(self, aval: object) -> Sequence[ShapedArray] | None:  # noqa: ARG002 (no kind of variable is replaced)
        return None

    def values(self, value: Array) -> Sequence[Array]:
        return [value]

    def concerns(self, equation: JaxprEqn) -> bool:
        return equation.primitive.name == "run_state"

    def changed(self, equation: JaxprEqn, atoms: Atoms) -> JaxprEqn:  # noqa: ARG002
        if not self.concerns(equation):
            return equation
        body = discharge_state(blocks.ungroup(ClosedJaxpr(equation.params["jaxpr"], ())))
        return call_of(body, equation.invars, equation.outvars, equation)
