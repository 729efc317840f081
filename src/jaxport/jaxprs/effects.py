"""The effects of equations on mutable references, for which JAX has no public names."""

from __future__ import annotations

from typing import Any

from jaxport.jaxprs.names import Var


def concerns_reference(effect: Any) -> bool:
    """Whether an effect of an equation reads or writes a mutable reference.

    >>> import jax
    >>> jaxpr = jax.make_jaxpr(lambda x: jax.new_ref(x)[...])(1.0)
    >>> [concerns_reference(effect) for equation in jaxpr.eqns for effect in equation.effects][-1]
    True
    """
    return hasattr(effect, "input") or hasattr(effect, "input_index")


def reference_of(effect: Any) -> Var | None:
    """Return the mutable reference that an effect names; None for effects that name none.

    Before JAX 0.10 an effect has the place of the reference among the operands, which stays as it is.
    """
    return getattr(effect, "input", None)
