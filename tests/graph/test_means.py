from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
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
        (lambda x: x.mean(0), f32("B", 4)),
        (lambda x: x.mean((1, 2)), f32("B", "H", "W", 3)),
        (lambda x: x.mean((1, 2), keepdims=True), f32("B", "2*H + 1", 5, 3)),
        (lambda x: x.mean(), f32("B", "T")),
    ],
)
@pytest.mark.parametrize("opset", [17, 23])
def test_recognised(fn, given, opset):
    assert operators(check(fn, given, opset=opset)) == {"ReduceMean": 1}


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (lambda x: x.sum((1, 2)) / 12, f32("B", 3, 5)),  # another number
        (lambda x: x.sum(0) / x.shape[1], f32("B", "T")),  # the size of another axis
        (lambda x: x.sum((0, 1)) / (x.shape[0] + x.shape[1]), f32("B", "T")),
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


def test_a_variance_of_open_sizes():
    exported = check(lambda x: x.var((1, 2)), f32("B", "H", "W", 3))
    assert operators(exported) == {"ReduceMean": 2, "Sub": 1, "Mul": 1}


def test_a_variance_that_is_not_a_number_for_one_element():
    found = operators(check(lambda x: x.var(1, ddof=1), f32("B", "T")))
    assert {"Where", "Greater"} <= found.keys()


def test_a_size_that_may_be_zero():
    """JAX divides zero by zero; what an operator makes of no elements is its own."""
    exported = check(lambda x: x[:, 2:].mean(1), f32("B", "T"), constraints=["T >= 2"])
    assert "ReduceMean" not in operators(exported)


def test_in_equal_blocks():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 3, rngs=rngs)

        def __call__(self, x):
            return self.linear(x) + x.mean(1, keepdims=True)

    blocks = [Block(nnx.Rngs(i)) for i in range(4)]
    exported = check(nnx.Sequential(*blocks), f32("B", "T", 3), rtol=1e-5, atol=1e-5)
    assert operators(exported) == {"MatMul": 4, "ReduceMean": 4, "Add": 8}
