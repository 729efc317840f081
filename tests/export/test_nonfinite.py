"""What only NaN needs, which `nonfinite="ignore"` leaves out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.testing import check, f32
from tests.exports import operators

CASES = {
    "argmax": (lambda x: jnp.argmax(x, -1), ["ArgMax", "Cast"]),
    "argmin": (lambda x: jnp.argmin(x, 0), ["ArgMin", "Cast"]),
    "max": (lambda x: x.max(-1), ["ReduceMax"]),
    "sort": (jnp.sort, ["TopK"]),
    "top_k": (lambda x: jax.lax.top_k(x, 2), ["TopK", "Cast"]),
    "scattered": (lambda x: x.at[jnp.array([0, 1, 0])].max(2.0), ["ScatterND"]),
    "cast": (lambda x: x.astype(jnp.int8), ["Clip", "Cast"]),
    "asked by the program": (jnp.isnan, ["Equal", "Not"]),
}


@pytest.mark.parametrize(("fn", "emitted"), CASES.values(), ids=CASES)
def test_only_nan_is_ignored(fn, emitted):
    values = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    values[0, 2], values[1, 1], values[2, :2], values[2, 3] = np.inf, -np.inf, np.inf, -0.0
    exported = check(fn, f32(3, 6), values=[values], nonfinite="ignore")
    assert operators(exported) == emitted
    assert "IsNaN" not in operators(exported)


def test_by_default_nan_is_as_in_jax():
    values = np.array([[1, np.nan, 3, np.inf]], np.float32)
    exported = check(lambda x: (jnp.argmax(x, -1), x.max(-1)), f32(1, 4), values=[values])
    assert "IsNaN" in operators(exported)
