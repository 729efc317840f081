"""Cumulative operations: every one, both directions, every dtype, static and symbolic lengths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import check, expect_graph, f32, spec
from tests.export.rules.indices import DTYPES

pytestmark = pytest.mark.sampled(2)

FUNCTIONS = [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp]
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


@every_function
@pytest.mark.parametrize("reverse", [False, True])
def test_both_directions(function, reverse):
    check(lambda x: function(x, axis=0, reverse=reverse), f32(9, 2))
    check(lambda x: function(x, axis=1, reverse=reverse), f32("B", "T"))


@every_function
@pytest.mark.parametrize("size", [0, 1, 2, 8])
def test_every_length(function, size):
    check(lambda x: function(x, axis=1), f32(2, size))


FLOATING = [d for d in DTYPES if "float" in d]
CASES = [(f, d, 17) for f in FUNCTIONS for d in (FLOATING if f is lax.cumlogsumexp else DTYPES[1:])]


@pytest.mark.parametrize(("function", "dtype", "opset"), [*CASES, *((lax.cumprod, d, 26) for d in DTYPES[1:])])
def test_every_dtype(function, dtype, opset):
    dtype = jnp.dtype(dtype)
    values = np.random.default_rng(0).integers(0, 300, 9) / (1 if dtype.kind in "iu" else 256)
    loose = {2: 0.03}.get(dtype.itemsize) if dtype.kind not in "iu" else None  # each side rounds in its own order
    with jax.enable_x64(True):
        check(
            lambda x: function(x, axis=0), spec(9, dtype=dtype), values=(values.astype(dtype),), opset=opset, rtol=loose
        )


@every_function
def test_special_values(function):
    for values in ([1, np.nan, 3, 2, -np.inf, 0], [-np.inf, -np.inf, 1, 2, np.inf, 0]):
        check(lambda x: function(x, axis=0), f32(6), values=(np.array(values, np.float32),))


def test_integers_wrap():
    x = np.array([2**31 - 1, 5, -(2**31), 7, 2**30, 3], np.int32)
    check(lambda x: (lax.cumsum(x), lax.cumprod(x)), spec(6, dtype=np.int32), values=(x,))


@every_function
def test_gradients(function):
    check(jax.grad(lambda x: jnp.sum(function(x, axis=1) ** 2)), f32(3, 5), rtol=1e-4, atol=1e-4)


def test_the_graph_of_a_symbolic_length_does_not_grow():
    expect_graph(jaxport.to_onnx(lambda x: lax.cummax(x), [f32("T")]), ["Shape -> Squeeze -> Less -> Loop"])
    expect_graph(jaxport.to_onnx(lambda x: lax.cumsum(x), [f32("T")]), ["CumSum"], exact=True)
    expect_graph(jaxport.to_onnx(lambda x: lax.cumprod(x), [f32("T")], opset=26), ["CumProd"], exact=True)


def test_the_graph_of_a_static_length_grows_with_its_logarithm():
    exported = jaxport.to_onnx(lambda x: lax.cummax(x), [f32(1000)])
    expect_graph(exported, counts={"Slice": 10, "Pad": 10, "Max": 10})
