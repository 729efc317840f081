"""How much the results of a program change if its values are rounded differently.

A runtime with another sine of 2**30 is not wrong: the distance to the next float is more than a period. Such places are
distinguished from wrong ones by running the program in JAX with each of its floats changed by a unit in the last place,
a few times. Integers are exact on both sides, and stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport import blocks, jaxprs
from jaxport.jaxprs import Array, PyTree
from jaxport.jaxprs.rewrite import evaluated
from jaxport.jaxprs.walk import bodies, interpret
from jaxport.jaxprs.widen import DISSOLVED, PLAIN_CALLS
from jaxport.verify.precision import MOVES

#: The number of runs.
RUNS = 6


def spread(jaxpr: jaxprs.ClosedJaxpr, operands: Sequence[Array], count: int) -> list[np.ndarray]:
    """Return the largest change of each element of the results, in runs with different rounding.

    Args:
      jaxpr: the program, with concrete sizes; it may have blocks.
      operands: its weights and inputs.
      count: the number of leading operands that are weights, which are not changed.

    >>> program = jax.make_jaxpr(lambda x: (jnp.sin(x), x + 1))(jnp.ones(1))
    >>> sine, more = spread(program, [np.float32([2**30 + 100])], 0)
    >>> bool(sine[0] > 0.01), bool(more[0] > 1e4)
    (True, False)
    """
    plain = blocks.ungroup(jaxpr)

    @jax.jit
    def run(key: Any, *operands: PyTree) -> list[Array]:
        rounding = _Rounding(key)
        inputs = [rounding(value) for value in operands[count:]]
        return rounding.through(plain.jaxpr, plain.consts, [*operands[:count], *inputs])

    exact = list(map(_plain, jax.jit(jaxprs.jaxpr_as_fun(plain))(*operands)))
    largest = [np.zeros(value.shape) for value in exact]
    for seed in range(RUNS):
        results = run(np.array([seed, 0, 0, 0], np.uint32), *operands)
        for index, (value, result) in enumerate(zip(exact, map(_plain, results), strict=True)):
            largest[index] = np.maximum(largest[index], _distance(value, result))
    return largest


def _plain(value: PyTree) -> np.ndarray:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _distance(exact: np.ndarray, result: np.ndarray) -> np.ndarray:
    """Return the distance of two arrays; zero where both are the same, and infinite where only one is finite."""
    if exact.dtype == jax.dtypes.float0:
        return np.zeros(exact.shape)
    wide = np.complex128 if exact.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        a, b = exact.astype(wide), result.astype(wide)
        same = (a == b) | ((a != a) & (b != b))
        return np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf))


class _Rounding:
    """Changes floats by a unit in the last place, each by its own random number."""

    def __init__(self, key: Any):
        self.key, self.count = key, 0

    def __call__(self, value: PyTree) -> PyTree:
        dtype = getattr(value, "dtype", None)
        if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or not jnp.issubdtype(dtype, np.floating):
            return value
        self.count += 1
        eps = float(jnp.finfo(dtype).eps)
        # One operator draws all numbers: `jax.random` takes a hundred, which XLA would compile for each equation.
        _, bits = jax.lax.rng_bit_generator(self.key.at[1].set(self.count), value.shape, np.uint8)  # pyright: ignore[reportArgumentType]
        steps = (bits % 3).astype(np.int32) - 1
        wide = jnp.promote_types(dtype, np.float32)
        value = jnp.asarray(value)
        changed = (value.astype(wide) * (1 + eps * steps.astype(wide))).astype(dtype)
        is_exact = (value == jnp.round(value)) & (jnp.abs(value) < 1 / eps)
        return jnp.where(is_exact, value, changed)

    def through(self, jaxpr: jaxprs.Jaxpr, consts: Sequence[Array], operands: Sequence[Array]) -> list[Array]:
        """Return the results of a program with rounding changed in each equation, and after each loop or branch."""

        def changed(equation: jaxprs.JaxprEqn, inputs: list[PyTree]) -> list[Array]:
            inner = bodies(equation.params)
            if equation.primitive.name in PLAIN_CALLS | DISSOLVED and len(inner) == 1 and not inner[0].constvars:
                return self.through(inner[0], (), inputs)
            results = evaluated(equation, inputs)
            return results if equation.primitive.name in MOVES else list(map(self, results))

        return interpret(jaxpr, (*consts, *operands), changed)
