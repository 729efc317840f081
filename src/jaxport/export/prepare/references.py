"""Mutable arrays (`jax.new_ref`) become values: each write makes a new one, which the reads after it see."""

from __future__ import annotations

# What JAX itself does before it compiles has no public name, nor has the mark of a jaxpr that has mutable arrays.
from jax._src.core import internal_mutable_array_effect  # noqa: TID251
from jax._src.state.discharge import discharge_state  # noqa: TID251
from jax.extend.core import ClosedJaxpr

from jaxport import blocks


def without_references(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program on values alone; the same object where it has no mutable arrays. Its blocks are dissolved.

    >>> import jax
    >>> def doubled(x):
    ...     array = jax.new_ref(x)
    ...     array[...] = array[...] * 2
    ...     return array[...]
    >>> [equation.primitive.name for equation in without_references(jax.make_jaxpr(doubled)(jax.numpy.ones(3))).eqns]
    ['mul']
    """
    if internal_mutable_array_effect not in closed.effects:
        return closed
    return discharge_state(blocks.ungroup(closed))
