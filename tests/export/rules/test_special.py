"""Special functions, against JAX's own values."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, spec

pytestmark = pytest.mark.sampled(2)

LINE = np.concatenate([np.linspace(-30, 30, 401), np.linspace(-3, 3, 200), [0.0, -0.0, np.inf, -np.inf, np.nan]])
UNIT = np.concatenate([np.linspace(-1, 1, 201), 1 - np.logspace(-6, -1, 50)])
POSITIVE = np.linspace(0.05, 30, 400)
ONE_OPERAND = {
    lax.erf: LINE, lax.erfc: LINE, lax.erf_inv: UNIT, lax.lgamma: LINE, lax.digamma: LINE, lax.bessel_i0e: LINE,
    lax.bessel_i1e: LINE,
}  # fmt: skip
TWO_OPERANDS = {
    lax.igamma: (POSITIVE, POSITIVE[::-1]),
    lax.igammac: (POSITIVE, POSITIVE[::-1]),
    lax.igamma_grad_a: (POSITIVE / 3, POSITIVE[::-1] / 3),
    lax.random_gamma_grad: (POSITIVE / 3, POSITIVE[::-1] / 3),
    lax.zeta: (POSITIVE + 1.05, POSITIVE[::-1]),
    lax.polygamma: (np.floor(POSITIVE / 6), POSITIVE[::-1]),
}
#: The functions are sums of cancelling terms: relative to the largest term, not to the value, they are exact to a few ULP.
TOLERANCES = {"float32": {"rtol": 5e-5, "atol": 2e-5}, "float64": {"rtol": 1e-11, "atol": 1e-12}}
#: A half-precision result is that of single precision, rounded: one ULP.
HALF = {"float16": {"rtol": 2e-3, "atol": 1e-4}, "bfloat16": {"rtol": 1e-2, "atol": 1e-3}}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("function", ONE_OPERAND, ids=lambda f: f.__name__)
def test_one_operand(function, dtype):
    values = ONE_OPERAND[function].astype(dtype)
    with jax.enable_x64(True):
        check(function, spec(len(values), dtype=dtype), values=(values,), **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("function", [lax.erfc, lax.erf_inv, lax.lgamma, lax.bessel_i1e], ids=lambda f: f.__name__)
def test_half_precision(function, dtype):
    values = np.linspace(0.1, 0.9, 20).astype(jax.numpy.dtype(dtype))
    check(function, spec(20, dtype=jax.numpy.dtype(dtype)), values=(values,), **HALF[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("function", TWO_OPERANDS, ids=lambda f: f.__name__)
def test_two_operands(function, dtype):
    values = tuple(np.ascontiguousarray(v).astype(dtype) for v in TWO_OPERANDS[function])
    with jax.enable_x64(True):
        check(function, *(spec(len(v), dtype=dtype) for v in values), values=values, **TOLERANCES[dtype])


def test_the_incomplete_beta_function():
    a, b, x = (
        POSITIVE.astype(np.float32),
        POSITIVE[::-1].astype(np.float32).copy(),
        np.linspace(0, 1, 400, dtype=np.float32),
    )
    check(lax.betainc, spec(400), spec(400), spec(400), values=(a, b, x), **TOLERANCES["float32"])


def test_symbolic_shapes_and_derivatives():
    check(jax.grad(lambda x: lax.lgamma(lax.abs(x) + 1).sum()), ("B", 3), **TOLERANCES["float32"])
    check(jax.scipy.stats.norm.cdf, ("B", 3))
