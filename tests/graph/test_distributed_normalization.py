"""Normalizations whose product is distributed, `x * f + (bias - mean * f)`, as TensorFlow and Keras write them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, f32
from tests.exports import operators

RANDOM = np.random.default_rng(0)
# Arrays of JAX, which are weights: what is computed of NumPy's is a constant.
SCALE, SHIFT, MEAN = (jnp.asarray(RANDOM.normal(size=8), jnp.float32) for _ in range(3))
VARIANCE = jnp.asarray(0.5 + np.abs(RANDOM.normal(size=8)), jnp.float32)
KERNEL = RANDOM.normal(size=(3, 3, 8, 8)).astype(np.float32) / 8

#: The statistics are float32 even where the input is float64, and so are the factors made of them.
SINGLE = {"float64": "the factors are float32"}

Combine = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
FORMS: dict[str, Combine] = {
    "Keras": lambda x, mean, factor, bias: x * factor + (-mean * factor + bias),
    "TensorFlow": lambda x, mean, factor, bias: x * factor + (bias - mean * factor),
    "a difference": lambda x, mean, factor, bias: (x * factor - mean * factor) + bias,
    "the other way round": lambda x, mean, factor, bias: (bias - factor * mean) + factor * x,
}


def of_batches(x: jax.Array, combine: Combine) -> jax.Array:
    return combine(x, MEAN, lax.rsqrt(VARIANCE + 1e-3) * SCALE, SHIFT)


def of_layers(x: jax.Array, combine: Combine) -> jax.Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return combine(x, mean, lax.rsqrt(variance + 1e-3) * SCALE, SHIFT)


def of_groups(x: jax.Array, combine: Combine) -> jax.Array:
    groups = x.reshape(*x.shape[:3], 4, 2)
    mean, variance = groups.mean((1, 2, 4), keepdims=True), groups.var((1, 2, 4), keepdims=True)
    scale, shift = (array.reshape(1, 1, 1, 4, 2) for array in (SCALE, SHIFT))
    return combine(groups, mean, lax.rsqrt(variance + 1e-3) * scale, shift).reshape(x.shape)


@pytest.mark.parametrize("form", FORMS)
def test_batch_normalization_is_one_operator(form: str) -> None:
    exported = check(lambda x: of_batches(x, FORMS[form]), f32("B", 8), without=SINGLE)
    assert operators(exported) == ["BatchNormalization"]


@pytest.mark.parametrize("form", FORMS)
def test_layer_normalization_is_one_operator(form: str) -> None:
    exported = check(lambda x: of_layers(x, FORMS[form]), f32("B", 5, 8))
    assert operators(exported) == ["LayerNormalization"]


@pytest.mark.parametrize("form", FORMS)
def test_group_normalization_is_that_of_instances(form: str) -> None:
    exported = check(lambda x: of_groups(x, FORMS[form]), f32("B", 6, 5, 8))
    assert operators(exported) == [
        "Transpose", "Reshape", "InstanceNormalization", "Reshape", "Transpose", "Mul", "Add",
    ]  # fmt: skip


def test_normalization_after_a_convolution_adds_no_transpose() -> None:
    def block(x: jax.Array) -> jax.Array:
        x = lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(of_batches(x, FORMS["Keras"]))

    exported = check(block, f32("B", 6, 5, 8), rtol=1e-4, atol=1e-4, without=SINGLE)
    assert operators(exported) == ["Transpose", "Conv", "BatchNormalization", "Transpose", "Relu"]


def test_no_bias_is_needed() -> None:
    def centered(x: jax.Array) -> jax.Array:
        factor = lax.rsqrt(VARIANCE + 1e-3)
        return x * factor - MEAN * factor

    assert operators(check(centered, f32("B", 8), without=SINGLE)) == ["BatchNormalization"]


@pytest.mark.parametrize(
    "other",
    {
        "another factor": lambda x, mean, factor, bias: x * factor + (bias - mean * (factor + 1)),
        "a sum": lambda x, mean, factor, bias: x * factor + (bias + mean * factor),
        "a bias that is subtracted": lambda x, mean, factor, bias: x * factor - (bias + mean * factor),
        "a mean of other elements": lambda x, mean, factor, bias: x * factor + (bias - mean[:, :1] * factor),
    }.items(),
    ids=lambda item: item[0],
)
def test_other_sums_stay(other: tuple[str, Combine]) -> None:
    exported = check(lambda x: of_layers(x, other[1]), f32("B", 5, 8), rtol=1e-4, atol=1e-4)
    assert "LayerNormalization" not in operators(exported)


def test_what_varies_along_rows_is_no_bias() -> None:
    rows = jnp.asarray(RANDOM.normal(size=(5, 1)), jnp.float32)
    exported = check(
        lambda x: of_layers(x, lambda x, mean, factor, bias: x * factor + (rows - mean * factor)), f32("B", 5, 8)
    )
    assert "LayerNormalization" not in operators(exported)
