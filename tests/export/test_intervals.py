"""What is known of the range of an index saves its clamp; what is not known must not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

import jaxport
from jaxport.testing import check, f32, i32, spec
from tests.exports import operators

#: An index into an axis of size 6, and whether its range is known to fit.
INDICES = {
    "a range": (lambda i: jnp.arange(6), True),
    "a range that is too long": (lambda i: jnp.arange(300) + jnp.clip(i[0], 0, 1), False),
    "a range that is too long, of constants": (lambda i: jnp.arange(300), True),  # clamped while exporting
    "a computed range": (lambda i: 5 - jnp.arange(6), True),
    "a stretched range": (lambda i: 2 * jnp.arange(3) + 1, True),
    "argmax": (lambda i: jnp.argmax(i.reshape(1, 6), axis=1), True),
    "argsort": (lambda i: jnp.argsort(i), True),
    "top k": (lambda i: lax.top_k(i, 2)[1], True),
    "a clip": (lambda i: jnp.clip(i, 0, 5), True),
    "a clip that is too wide": (lambda i: jnp.clip(i, 0, 6), False),
    "a minimum alone": (lambda i: jnp.minimum(i, 5), False),
    "a choice": (lambda i: jnp.where(i > 0, 3, jnp.clip(i, 0, 1)), True),
    "a concatenation": (lambda i: jnp.concatenate([jnp.clip(i, 0, 5), jnp.clip(i, 1, 2)]), True),
    "a moved clip": (lambda i: jnp.clip(i, 0, 5).reshape(2, 3).T[:, ::-1], True),
    "booleans": (lambda i: (i > 0).astype(np.int32), True),
    "small integers": (lambda i: i.astype(np.uint8), False),
    "anything": (lambda i: i, False),
}


@pytest.mark.parametrize("name", INDICES)
def test_the_clamp_is_left_out_where_the_range_is_known(name):
    make, known = INDICES[name]
    exported = check(lambda x, i: x[make(i + 0)], f32(6, 2), i32(6))
    assert ("Clip" not in operators(exported)) == known


def test_arithmetic_that_may_wrap_says_nothing():
    x, i = np.arange(128, dtype=np.float32), np.array([127, 1, 0], np.int8)
    check(lambda x, i: x[jnp.clip(i, 0, 120) + jnp.int8(10)], f32(100), spec(3, dtype=np.int8), values=(x[:100], i))


@pytest.mark.parametrize("offset", [0, 1])
def test_symbolic_ranges(offset):
    exported = check(lambda x: x[jnp.arange(x.shape[0]) + offset], f32("B", 2), without={"empty": "JAX refuses it"})
    assert ("Clip" in operators(exported)) == bool(offset)


def test_what_a_clamp_of_the_user_costs_with_a_symbolic_size():
    exported = jaxport.to_onnx(lambda x, i: x[jnp.clip(i, 0, x.shape[0] - 1)], [f32("B", 2), i32(4)])
    assert "Clip" not in operators(exported)


#: A floating-point value, and whether it is known not to be minus infinity.
FLOATS = {
    "a relu": (jax.nn.relu, True),
    "a sigmoid": (jax.nn.sigmoid, True),
    "a negated tanh, moved": (lambda x: -jnp.tanh(x).transpose(0, 2, 1, 3), True),
    "a clip from below": (lambda x: jnp.maximum(x, -3.0), True),
    "a clip from both sides": (lambda x: jnp.clip(x, -3.0, 3.0), True),
    "a clip from above": (lambda x: jnp.minimum(x, 3.0), False),
    "a sum of bounded numbers": (lambda x: jnp.sin(x) + jnp.cos(x), True),
    "a difference that may be minus infinity": (lambda x: jnp.sin(x) - jnp.exp(x), False),
    "a difference that may overflow": (lambda x: jnp.clip(x, -3e38, 3e38) - 3e38, False),
    "a half that may overflow": (lambda x: jnp.clip(x, -7e4, 7e4).astype(np.float16), False),
    "a choice": (lambda x: jnp.where(x > 0, jnp.abs(x), -1.0), True),
    "a mask": (lambda x: jnp.where(x > 0, jnp.abs(x), -jnp.inf), False),
    "anything": (lambda x: x, False),
}


@pytest.mark.parametrize("name", FLOATS)
def test_a_maximum_is_plain_where_nothing_is_minus_infinity(name):
    make, known = FLOATS[name]
    exported = check(lambda x: nn.max_pool(make(x), (2, 2), (2, 2)), f32(1, 4, 4, 2), nonfinite="exact")
    assert ("Mul" not in operators(exported)) == known


#: Floats, and whether one TopK orders them: none is infinite, none is -0.0.
SCORES = {
    "shares": (jax.nn.softmax, True),
    "shares of columns": (lambda x: jax.nn.softmax(x, axis=0), True),
    "shares beside another row": (lambda x: jnp.exp(x) / jnp.exp(x).sum(0)[:, None], False),
    "shares of another sum": (lambda x: jnp.exp(x) / jnp.exp(x + 1).sum(0), False),
    "a number and the sum of others": (lambda x: jnp.exp(x[0, 0]) / jnp.exp(x[1]).sum() + 0 * x, False),
    "a moved score": (lambda x: jax.nn.sigmoid(x).T, True),
    "a score with a bias": (lambda x: jax.nn.sigmoid(x) + np.float32([1, -2, 0]), True),
    "a negative score": (lambda x: -jax.nn.sigmoid(x), False),
    "a product of scores": (lambda x: jax.nn.sigmoid(x) * jax.nn.softmax(x), True),
    "a bounded number": (lambda x: jnp.clip(x, -1, 1), False),
    "an input": (lambda x: x + 0, False),
}


@pytest.mark.parametrize("name", SCORES)
def test_floats_that_one_key_orders(name):
    make, known = SCORES[name]
    values = np.array([[2, 1, -0.0], [6, -5, 8], [-3, 0.5, -9]], np.float32)
    exported = check(lambda x: lax.top_k(make(x), 3)[1], f32(3, 3), values=(values,))
    assert (operators(exported).count("TopK") == 1) == known
