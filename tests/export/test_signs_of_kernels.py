"""Signs of zeros with `nonfinite="exact"`: which operators of ONNX Runtime have others than JAX, as `docs/export.md` says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport

ZEROS = [np.array(signs, np.float32) * 0 for signs in ([1] * 5, [-1] * 5, [-1, 1, -1, 1, -1])]
KEPT = {
    "the sign is changed": lambda x, y: (-x, jnp.abs(y)),
    "rounded": lambda x, y: (jnp.trunc(x), lax.round(y), jnp.sign(x)),
    "a choice": lambda x, y: jnp.where(jnp.signbit(x), x, y),
    "a bound that is no zero": lambda x, y: (jnp.clip(x, -1.0, 1.0), jnp.maximum(y, -1.0)),
}
LOST = {
    "Max": jnp.maximum,
    "Min": jnp.minimum,
    "Relu": lambda x, y: jax.nn.relu(x),
    "Clip": lambda x, y: jnp.clip(x, 0.0, 1.0),
    "CumSum": lambda x, y: jnp.cumsum(x),
    "ReduceMax": lambda x, y: jnp.max(x),
    "ReduceSum": lambda x, y: jnp.sum(x),
}


def differing(function) -> bool:
    """Whether some zero has another sign than in JAX; all have its value."""
    exported = jaxport.to_onnx(function, [(5,), (5,)], nonfinite="exact")
    found = False
    for x in ZEROS:
        for y in ZEROS:
            expected = jax.tree.leaves(jax.jit(function)(x, y))
            for one, other in zip(expected, jax.tree.leaves(exported(x, y)), strict=True):
                np.testing.assert_array_equal(one, other)
                found |= bool((np.signbit(one) != np.signbit(other)).any())
    return found


@pytest.mark.parametrize("what", KEPT)
def test_signs_of_zeros_are_kept(what: str) -> None:
    assert not differing(KEPT[what])


@pytest.mark.parametrize("operator", LOST)
def test_signs_of_zeros_that_kernels_lose(operator: str) -> None:
    """A kernel that keeps them one day is taken from the documentation."""
    assert differing(LOST[operator])
