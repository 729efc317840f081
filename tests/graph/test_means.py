from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, f32, spec
from tests.export.passes.fusions import operators


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (lambda x: x.mean(), f32(3, 4)),
        (lambda x: x.mean((1, 2)), f32("B", 3, 4, 5)),
        (lambda x: jnp.mean(x, -1, keepdims=True), f32("B", "T", 4)),
        (lambda x: lax.reduce_sum(x, (0,)) * 0.25, f32(4, "B")),
    ],
)
@pytest.mark.parametrize("opset", [17, 23])
def test_recognised(fn, given, opset):
    assert operators(check(fn, given, opset=opset)) == {"ReduceMean": 1}


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (lambda x: x.sum((1, 2)) / 12, f32("B", 3, 5)),  # another number
        (lambda x: x.mean(0), f32("B", 4)),  # so many as the runtime finds
        (lambda x: 4 / (x + 4).sum(1), f32("B", 4)),  # the other way around
        (lambda x: x.sum(1) / jnp.array([4.0, 4.0, 5.0]), f32(3, 4)),
        (lambda x: lax.div(x.sum(1), np.int32(4)), spec(3, 4, dtype=np.int32)),
        (lambda x: x.sum(1) / np.float16(4), spec(3, 4, dtype=np.float16)),
    ],
)
def test_something_else(fn, given):
    assert "ReduceMean" not in operators(check(fn, given, rtol=1e-5))


def test_a_sum_that_is_used_otherwise_stays():
    assert "ReduceMean" not in operators(check(lambda x: (x.sum(1) / 4, jnp.exp(x.sum(1))), f32("B", 4)))
