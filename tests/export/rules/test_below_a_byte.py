"""Integers of four bits go through all operators, or are refused by name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport

CASES = {
    "identity": lambda x: x,
    "copy": jnp.copy,
    "reshape": lambda x: x.reshape(-1),
    "reshape and transpose": lambda x: jnp.moveaxis(x.reshape(2, 2, 4), 0, 2),
    "repeat": lambda x: jnp.repeat(x, 2, 0),
    "stack": lambda x: jnp.stack([x, x]),
    "pad": lambda x: jnp.pad(x, 1),
    "slice": lambda x: x[1:, ::-1],
    "where": lambda x: jnp.where(x > 0, x, x.T),
    "arithmetic": lambda x: x * x - x[::-1],
    "max": jnp.max,
    "min": lambda x: x.min(0),
    "sort": jnp.sort,
    "argsort": jnp.argsort,
    "argmax": lambda x: jnp.argmax(x, -1),
    "clip": lambda x: jnp.clip(x, 0, 3),
    "cummax": lax.cummax,
    "reduce_window": lambda x: lax.reduce_window(x, x.dtype.type(0), lax.max, (2, 2), (1, 1), "VALID"),
    "one_hot": lambda x: jax.nn.one_hot(x, 8),
    "isin": lambda x: jnp.isin(x, x[0]),
    "clz": lax.clz,
    "population_count": lax.population_count,
}
REFUSED = {
    "cond": (lambda x: lax.cond(x[0, 0] > 0, lambda y: y, lambda y: -y, x), "in the state or results of control flow"),
    "loop": (lambda x: lax.fori_loop(0, 2, lambda i, c: c + x, x), "in the state or results of control flow"),
    "scan": (lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x), "in the state or results of control flow"),
    "bits": (lambda x: lax.bitcast_convert_type(x.reshape(-1, 2), jnp.int8), "reads bits as"),
}


def _numbers(dtype):
    limits = jnp.iinfo(dtype)
    return np.random.default_rng(0).integers(int(limits.min), int(limits.max) + 1, (4, 4)).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("fn", CASES.values(), ids=CASES)
def test_integers_of_four_bits_are_those_of_jax(fn, dtype):
    x = _numbers(dtype)
    result = jaxport.to_onnx(fn, [jax.ShapeDtypeStruct(x.shape, x.dtype)])(x)
    for ours, expected in zip(jax.tree.leaves(result), jax.tree.leaves(jax.jit(fn)(x)), strict=True):
        assert np.asarray(ours).dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(ours).astype(np.float32), np.asarray(expected).astype(np.float32))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize(("fn", "why"), REFUSED.values(), ids=REFUSED)
def test_what_runtimes_lack_is_refused(fn, why, dtype):
    with pytest.raises(jaxport.Unsupported, match=why):
        jaxport.to_onnx(fn, [jax.ShapeDtypeStruct((4, 4), jnp.dtype(dtype))])
