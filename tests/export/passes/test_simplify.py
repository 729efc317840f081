"""Operands that change nothing: of Concat without elements, of sums of zero, of products of one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import check, expect_graph, f32


def recurrence(a, b):
    """Sum products along an axis."""
    return lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), axis=1)[1]


@pytest.mark.parametrize("steps", [2, 7, 8])
def test_a_scan_by_halves_computes_nothing_without_elements(steps):
    exported = jaxport.to_onnx(recurrence, [("B", steps, 3), ("B", steps, 3)])
    shapes = [list(value.shape) for node in exported.model.graph for value in node.outputs]
    assert all(0 not in shape for shape in shapes)
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(4, steps, 3)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(exported(a, b), recurrence(a, b), rtol=1e-5, atol=1e-6)


def test_the_other_operands_stay_in_their_order():
    def fn(x, y):
        return jnp.concatenate([x, x[:, :0] * 2, y, y[:, 3:] + 1, -x], axis=1)

    exported = jaxport.to_onnx(fn, [("B", 2), ("B", 3)])
    expect_graph(exported, ["Neg -> Concat"], exact=True)
    check(fn, f32("B", 2), f32("B", 3))


def test_an_operand_that_may_have_elements_stays():
    exported = jaxport.to_onnx(lambda x, y: jnp.concatenate([x, y]), [("N",), (3,)])
    expect_graph(exported, ["Concat"], exact=True)
    x, y = np.zeros(0, np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(exported(x, y), y)


@pytest.mark.parametrize(
    ("fn", "operators"),
    [
        (lambda x: jnp.tanh(x - jnp.zeros((4, 1))), ["Tanh"]),
        (lambda x: jnp.tanh(x * jnp.ones((4, 3))), ["Tanh"]),
        (lambda x: jnp.tanh(x - jnp.zeros((2, 4, 3))), ["Tanh", "Expand"]),
        (lambda x: jnp.tanh(x - jnp.zeros((4, 1)).at[2].set(1)), ["Sub", "Tanh"]),
    ],
)
def test_neutral_arrays(fn, operators):
    exported = check(fn, f32(4, 3))
    assert [node.op_type for node in exported.model.graph] == operators


def test_an_expand_that_only_adds_axes_of_one_element_leaves_the_rank():
    """`polyval` begins with zeros in the shape of the result, and the other operand has a lower rank."""
    coefficients = jnp.array([-0.8, 0.5, 2.0])
    check(lambda x: jnp.polyval(coefficients, x[None]), f32("B", 4))
    check(
        lambda x: lax.scan(lambda y, c: (y * x[None] + c, None), jnp.zeros((1, 1, 4)), coefficients, unroll=3)[0],
        f32(1, 4),
    )
