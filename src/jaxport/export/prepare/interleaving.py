"""Interleave two arrays by stacking them, instead of padding them with zeros and adding.

`jax.lax.associative_scan` joins its even and odd elements by `pad(even, interior=1) + pad(odd, low=1, interior=1)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.jaxprs import Array, Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxport.jaxprs.rewrite import Rewriting, call_of, traced
from jaxport.jaxprs.walk import with_equations

SUMS = frozenset({"add", "or"})


def with_interleaving(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program with each such sum replaced; the same object if it has none.

    >>> import jax
    >>> scan = jax.make_jaxpr(lambda x: lax.associative_scan(jnp.add, x))(np.ones(8, np.float32))
    >>> [[equation.primitive.name for equation in p.eqns].count("add") for p in (scan, with_interleaving(scan))]
    [9, 6]
    """
    return _Interleaving().closed(closed)


class _Interleaving(Rewriting):
    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        jaxpr = super().rewritten(jaxpr)
        pads = {equation.outvars[0]: equation for equation in jaxpr.eqns if equation.primitive.name == "pad"}
        return with_equations(jaxpr, [_joined(equation, pads) for equation in jaxpr.eqns]) if pads else jaxpr


def _joined(equation: JaxprEqn, pads: Mapping[Any, JaxprEqn]) -> JaxprEqn:
    """Return the equation, or a call that interleaves the operands of the sum."""
    if equation.primitive.name not in SUMS or any(isinstance(atom, Literal) for atom in equation.invars):
        return equation
    terms = [pads.get(atom) for atom in equation.invars]
    for even, odd in (terms, terms[::-1]):
        if even is None or odd is None:
            return equation
        axis = _turns(even, odd)
        if axis is not None:
            operands: Sequence[Atom] = [even.invars[0], odd.invars[0]]
            body = traced(lambda x, y, axis=axis: interleaved(x, y, axis), [atom.aval for atom in operands])
            return call_of(body, operands, equation.outvars, equation)
    return equation


def _turns(even: JaxprEqn, odd: JaxprEqn) -> int | None:
    """Return the axis along which two padded arrays alternate, with zeros elsewhere; None if they do not."""
    if not all(isinstance(value := pad.invars[1], Literal) and np.all(value.val == 0) for pad in (even, odd)):
        return None
    turning = None
    for axis, places in enumerate(zip(even.params["padding_config"], odd.params["padding_config"], strict=True)):
        if places == ((0, 0, 0), (0, 0, 0)):
            continue
        # They have as many elements, or the first has one more: the second then ends with a zero at the first's last
        # element.
        if turning is not None or places not in (((0, 1, 1), (1, 0, 1)), ((0, 0, 1), (1, 1, 1))):
            return None
        turning = axis
    return turning


def interleaved(even: Array, odd: Array, axis: int) -> jax.Array:
    """Return `even[0], odd[0], even[1], odd[1], …` along an axis; `even` is as long as `odd`, or longer by one.

    >>> interleaved(jnp.array([0, 2, 4]), jnp.array([1, 3]), 0)
    Array([0, 1, 2, 3, 4], dtype=int32)
    """
    size = odd.shape[axis]
    first = lax.slice_in_dim(even, 0, size, axis=axis)
    shape = (*odd.shape[:axis], 2 * size, *odd.shape[axis + 1 :])
    pairs = jnp.stack([first, odd], axis + 1).reshape(shape)
    if even.shape[axis] == size:
        return pairs
    return jnp.concatenate([pairs, lax.slice_in_dim(even, size, None, axis=axis)], axis)
