"""Factors next to products of float64 matrices keep their precision in the runtime."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.testing import check, f64

MATRIX = np.random.default_rng(0).normal(size=(4, 3))
CASES = {
    "before": lambda x: (x / 36) @ MATRIX,
    "after": lambda x: (x @ MATRIX) * 0.1,
    "of both": lambda x: (0.3 * x) @ jnp.swapaxes(x, -1, -2) / 7,
    "of a mean": lambda x: x.mean(0, keepdims=True) @ MATRIX,
}


@pytest.mark.parametrize("fn", CASES.values(), ids=CASES)
def test_factors(fn):
    check(fn, f64("B", 4), double_precision=True)
    check(lambda x: fn(x[..., :4]), f64("B", "T + 3"), double_precision=True)


def test_a_single_number_next_to_products_that_are_one():
    def fn(x):
        total = (x[None] @ x[:, None]) / (jnp.ones(7) / 7).sum() / 3
        return (total * jnp.full((1, 1), 0.1)) @ total * 1.1

    check(fn, f64("B"), double_precision=True)
    check(fn, f64(12), double_precision=True)


def test_sizes_that_are_not_known():
    check(lambda x, y: (x / 36) @ y * 0.1, f64("B", "T"), f64("T", "W"), double_precision=True)
