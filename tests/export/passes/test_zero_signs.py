"""Zeros have JAX's sign with `nonfinite="exact"`, whatever chooses them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from tests.exports import operators

NUMBERS = np.array([-0.0, 0, -0.4, 0.4, -0.5, 0.5, -1, 1, -1.5, 1.5, 2.5, np.nan, np.inf, -np.inf], np.float32)
PAIRS = np.stack(np.meshgrid(NUMBERS, NUMBERS)).reshape(2, -1)

ONE = {
    "trunc": jnp.trunc,
    "modf": jnp.modf,
    "sign": jnp.sign,
    "round": lambda x: lax.round(x),
    "frexp": lambda x: jnp.frexp(x)[0],
    "nan_to_num": jnp.nan_to_num,
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 10),
    "mask": lambda x: jnp.where(jnp.arange(14) < 9, x, -jnp.inf),
    "no mask": lambda x: jnp.where(~(jnp.arange(14) < 9), 1, x),
    "scan": lambda x: lax.scan(lambda c, y: (jnp.where(y < 1, y, c), c), -x[0], x),
}
TWO = {
    "arctan2": jnp.arctan2,
    "copysign": jnp.copysign,
    "nextafter": jnp.nextafter,
    "ldexp": lambda x, y: jnp.ldexp(x, jnp.where(y > 0, 1, -1)),
    "fmax": jnp.fmax,
    "where": lambda x, y: jnp.where(x < y, x, y),
    "select": lambda x, y: jnp.select([x < 0, y > 1], [x, y], x * y),
    "broadcast": lambda x, y: jnp.where(y[:, None] < 1, x[None, :], y[:, None]),
}


def _bits(values):
    return [
        (np.isnan(value), np.signbit(value) & ~np.isnan(value)) for value in map(np.asarray, jax.tree.leaves(values))
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("fn", "values"),
    [*((fn, [NUMBERS]) for fn in ONE.values()), *((fn, [*PAIRS]) for fn in TWO.values())],
    ids=[*ONE, *TWO],
)
def test_zeros_have_the_sign_that_they_have_in_jax(fn, values, dtype):
    values = [value.astype(dtype) for value in values]
    exported = jaxport.to_onnx(
        fn, [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values], nonfinite="exact"
    )
    np.testing.assert_equal(_bits(exported(*values)), _bits(jax.jit(fn)(*values)))


def test_by_default_choices_stay_as_they_are():
    exported = jaxport.to_onnx(jnp.trunc, [("B", 3)])
    assert operators(exported) == ["Less", "Ceil", "Floor", "Where"]


def test_what_cannot_be_negative_zero_stays():
    exported = jaxport.to_onnx(lambda x: jnp.where(x > 0, 1.0, x), [("B", 3)], nonfinite="exact")
    assert operators(exported).count("Where") == 1
