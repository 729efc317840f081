"""Complex numbers as pairs of real ones: the scatters that do not apply to both parts separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import Rule
from jaxport.export.prepare.pairs import Pair, absolute, angle, mul, polar
from jaxport.jaxprs import Array, ClosedJaxpr, Jaxpr, Primitive, PythonFunction, jaxpr_as_fun

_PLAIN: dict[str, Any] = {"update_jaxpr": None, "update_consts": ()}


def applied(
    x: Pair, indices: jax.Array, updates: Pair, *, update_jaxpr: Jaxpr, update_consts: Sequence[Array], **params: Any
) -> Pair:
    """Apply a function, on pairs already, to each element as often as its place occurs in the indices."""
    scalar = jaxpr_as_fun(ClosedJaxpr(update_jaxpr, update_consts))
    function = jnp.vectorize(lambda re, im: tuple(scalar(re, im, jnp.zeros_like(re), jnp.zeros_like(im))))
    zeros, ones = jnp.zeros(x.re.shape, np.int32), jnp.ones(updates.re.shape, np.int32)
    times = lax.scatter_add_p.bind(zeros, indices, ones, **params, **_PLAIN)

    def once(state: tuple) -> tuple:
        done, x = state
        return done + 1, Pair(*(jnp.where(done < times, new, old) for new, old in zip(function(*x), x, strict=True)))

    return lax.while_loop(lambda state: state[0] < times.max(initial=0), once, (np.int32(0), x))[1]


def multiplied(x: Pair, indices: jax.Array, updates: Pair, **params: Any) -> Pair:
    """Multiply the moduli and add the angles."""
    ones, zeros = jnp.ones_like(x.re), jnp.zeros_like(x.im)
    params |= _PLAIN
    size = lax.scatter_mul_p.bind(ones, indices, absolute(updates), **params)
    turn = lax.scatter_add_p.bind(zeros, indices, angle(updates), **params)
    return mul(x, polar(size, turn))


def extremum(primitive: Primitive, worst: float) -> PythonFunction:
    """Return the extremum of the real parts that meet at a place, and of the imaginary parts that come with it."""

    def scattered(x: Pair, indices: jax.Array, updates: Pair, **params: Any) -> Pair:
        params |= _PLAIN
        numbers = params["dimension_numbers"]
        windows = iter(numbers.update_window_dims)
        alone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        there = lax.GatherDimensionNumbers(
            offset_dims=numbers.update_window_dims,
            collapsed_slice_dims=numbers.inserted_window_dims,
            start_index_map=numbers.scatter_dims_to_operand_dims,
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=numbers.scatter_indices_batching_dims,
        )
        re = primitive.bind(x.re, indices, updates.re, **params)
        sizes = [1 if axis in alone else updates.re.shape[next(windows)] for axis in range(x.re.ndim)]
        reached = lax.gather(re, indices, there, sizes, mode=params["mode"])
        parts = ((x, re), (updates, reached))
        kept, new = (jnp.where(part.re == best, part.im, np.asarray(worst, x.dtype)) for part, best in parts)
        return Pair(re, primitive.bind(kept, indices, new, **params))

    return scattered


#: Scatters by the names of their primitives; `scatter`, which replaces elements, also applies to both parts separately.
SCATTERS: dict[str, Rule] = {
    name: Rule(name, function, via=True)
    for name, function in {
        "scatter": applied,
        "scatter-max": extremum(lax.scatter_max_p, -np.inf),
        "scatter-min": extremum(lax.scatter_min_p, np.inf),
        "scatter-mul": multiplied,
    }.items()
}
