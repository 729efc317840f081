"""Parts of joined values are the values that were joined."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import check, f32
from tests.exports import operators

CASES = {
    "elements of a stack": (lambda x, y: (stack := jnp.stack([x, y + 1]))[0] * stack[1], "Add Mul"),
    "elements of a stack along the last axis": (lambda x, y: jnp.stack([x, -y], -1)[..., 1] * x, "Neg Mul"),
    "counted from the end": (lambda x, y: jnp.stack([x, -y])[-1] * x, "Neg Mul"),
    "parts": (lambda x, y: jnp.concatenate([x, -y, x], 1)[:, 3:6] * x, "Neg Mul"),
    "the last part": (lambda x, y: jnp.concatenate([x, -y], 1)[:, 3:] * x, "Neg Mul"),
    "all parts": (lambda x, y: jnp.multiply(*jnp.split(jnp.concatenate([x, -y], 1), 2, 1)), "Neg Mul"),
    "a part of two": (lambda x, y: jnp.concatenate([x, -y], 1)[:, 2:5] * x, "Neg Concat Slice Mul"),
    "every second row": (lambda x, y: lax.slice_in_dim(jnp.concatenate([x, -y], 1), 0, 6, 2, 1) * x, "Neg Concat Slice Mul"),
    "a part along another axis": (lambda x, y: jnp.concatenate([x, -y], 1)[:1] * 2, "Neg Concat Slice Mul"),
    "some are not known in size": (lambda x, y: jnp.concatenate([x, -y], 0)[:2] * 2, "Neg Concat Slice Mul"),
    "the whole is used, too": (
        lambda x, y: ((whole := jnp.concatenate([x, -y], 1)), whole[:, 3:] * 2),
        "Neg Concat Mul",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "expected"), CASES.values(), ids=CASES)
def test_cases(fn, expected):
    exported = check(fn, f32("B", 3), f32("B", 3), without={"empty": "of the rules"})
    assert sorted(operators(exported)) == sorted(expected.split())


def test_an_argument_that_comes_out_again():
    exported = check(lambda x, y: jnp.stack([x, y])[0], f32("B", 3), f32("B", 3), without={"empty": "of the rules"})
    assert len(operators(exported)) > 0  # an output is no input


def test_a_loop_over_layers_leaves_nothing_of_the_stack_of_their_states():
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 4)), jnp.float32)

    def step(x, states):
        def layer(x, given):
            weight, state = given
            x = jnp.tanh(x @ weight + state)
            return x, x + state

        x, stacked = lax.scan(layer, x, (weights, jnp.stack(states)))
        return x, [stacked[number] for number in range(3)]

    exported = jaxport.to_onnx(step, [("B", 4), [("B", 4)] * 3])
    assert set(operators(exported)) == {"MatMul", "Add", "Tanh"}
    rng = np.random.default_rng(1)
    given = rng.normal(size=(2, 4)).astype(np.float32), [rng.normal(size=(2, 4)).astype(np.float32) for _ in range(3)]
    for one, other in zip(jax.tree.leaves(exported(*given)), jax.tree.leaves(step(*given)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
