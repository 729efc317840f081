"""How much the results of a program change if its values are rounded differently.

A runtime with another sine of 2**30 is not wrong: the distance to the next float is more than a period. Such places are
distinguished from wrong ones by running the program in JAX with each of its floats changed by a unit in the last place,
a few times. Integers are exact on both sides, and stay.

The program runs equation by equation: what JAX compiles is the operators and shapes that it has, however many layers
repeat them, and no weight becomes part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.ungrouping import ungroup
from jaxport.jaxprs import Array
from jaxport.jaxprs.body_inputs import DISSOLVED, PLAIN_CALLS
from jaxport.jaxprs.rewrite import evaluated
from jaxport.jaxprs.walk import bodies, interpret
from jaxport.verify.comparing import Changes
from jaxport.verify.precision import MOVES, in_full_precision

#: The number of runs, at most.
RUNS = 6


def spread(
    jaxpr: jaxprs.ClosedJaxpr,
    operands: Sequence[Array],
    count: int,
    is_enough: Callable[[Changes], bool] = lambda _: False,
) -> Changes:
    """Return the largest change of each element of the results, in runs with different rounding.

    Args:
      jaxpr: the program, with concrete sizes; it may have blocks.
      operands: its weights and inputs.
      count: the number of leading operands that are weights, which are not changed.
      is_enough: whether the changes that were found explain what is asked for: no further runs are made.

    >>> program = jax.make_jaxpr(lambda x: (jnp.sin(x), x + 1))(jnp.ones(1))
    >>> sine, more = spread(program, [np.float32([2**30 + 100])], 0)
    >>> bool(sine[0] > 0.01), bool(more[0] > 1e4)
    (True, False)
    """
    plain = in_full_precision(ungroup(jaxpr))
    exact = list(map(_plain, _Replay().through(plain.jaxpr, plain.consts, operands)))
    largest = [np.zeros(value.shape) for value in exact]
    for seed in range(RUNS):
        rounding = _Rounding(seed)
        inputs = [rounding(value) for value in operands[count:]]
        results = rounding.through(plain.jaxpr, plain.consts, [*operands[:count], *inputs])
        for index, (value, result) in enumerate(zip(exact, map(_plain, results), strict=True)):
            largest[index] = np.maximum(largest[index], _distance(value, result))
        if is_enough(largest):
            break
    return largest


def _plain(value: Any) -> np.ndarray:
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


class _Replay:
    """Runs a program as it is, equation by equation."""

    def __call__(self, value: object) -> Any:
        """Return the value that takes the place of a result."""
        return value

    def through(self, jaxpr: jaxprs.Jaxpr, consts: Sequence[Array], operands: Sequence[Array]) -> list[Array]:
        """Return the results of a program with the results of each equation replaced, and those of each loop or
        branch.
        """

        def replaced(equation: jaxprs.JaxprEqn, inputs: list[Any]) -> list[Array]:
            inner = bodies(equation.params)
            if equation.primitive.name in PLAIN_CALLS | DISSOLVED and len(inner) == 1 and not inner[0].constvars:
                return self.through(inner[0], (), inputs)
            results = evaluated(equation, inputs)
            return results if equation.primitive.name in MOVES else list(map(self, results))

        return interpret(jaxpr, (*consts, *operands), replaced)


class _Rounding(_Replay):
    """Changes floats by a unit in the last place, each by its own random number."""

    def __init__(self, seed: int):
        self.generator = np.random.default_rng(seed)

    def __call__(self, value: Any) -> Any:
        """Return a value with each element changed, or not, by a unit in the last place."""
        dtype = getattr(value, "dtype", None)
        if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or not jnp.issubdtype(dtype, np.floating):
            return value
        # NumPy draws the numbers: JAX would compile that for each shape.
        steps = self.generator.integers(-1, 1, value.shape, np.int8, endpoint=True)
        return _rounded_otherwise(jnp.asarray(value), steps)


@jax.jit
def _rounded_otherwise(value: Array, steps: Array) -> Array:
    """Return a value with its elements changed by steps of a unit in the last place; exact integers stay."""
    eps = float(jnp.finfo(value.dtype).eps)
    wide = jnp.promote_types(value.dtype, np.float32)
    changed = (value.astype(wide) * (1 + eps * steps.astype(wide))).astype(value.dtype)
    is_exact = (value == jnp.round(value)) & (jnp.abs(value) < 1 / eps)
    return jnp.where(is_exact, value, changed)
