"""What stands around convolutions and pools becomes part of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from jaxport.testing import check, expect_graph, f32
from tests.exports import operators

GENERATOR = np.random.default_rng(7)
KERNEL = GENERATOR.normal(size=(3, 3, 4, 6)).astype(np.float32) / 6
BIAS = GENERATOR.normal(size=6).astype(np.float32)
IMAGES = f32("B", 6, 7, 4)
OUTSIDE = {"empty": "of the rules", "float64": "in which there is no Conv"}


def conv(x):
    kernel = jnp.asarray(KERNEL, x.dtype)
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


BIASES = {
    "a vector": lambda x: conv(x) + BIAS,
    "a vector before": lambda x: BIAS + conv(x),
    "a number": lambda x: conv(x) + 3,
    "of full rank": lambda x: conv(x) + BIAS.reshape(1, 1, 1, 6),
    "subtracted": lambda x: conv(x) - BIAS,
    "several": lambda x: conv(x) + BIAS - 2 * BIAS + 1,
    "of a transposed convolution": lambda x: lax.conv_transpose(x, KERNEL, (2, 2), "SAME") + BIAS,
    "used further": lambda x: jnp.tanh(conv(x) + BIAS),
}


@pytest.mark.parametrize("fn", BIASES.values(), ids=BIASES)
def test_biases(fn):
    exported = check(fn, IMAGES, without=OUTSIDE)
    expect_graph(exported, counts={"Add": 0, "Sub": 0})
    convolutions = [node for node in exported.model.graph if node.op_type in ("Conv", "ConvTranspose")]
    assert [len(node.inputs) for node in convolutions] == [3]


KEPT = {
    "a map": lambda x: conv(x) + np.ones((6, 7, 6), np.float32),
    "the other way round": lambda x: BIAS - conv(x),
    "of the image": lambda x: conv(x) + x[:, :1, :1, :1],
    "with another use": lambda x: (conv(x) + BIAS) * conv(x),
}


@pytest.mark.parametrize("fn", KEPT.values(), ids=KEPT)
def test_what_is_no_bias(fn):
    exported = check(fn, IMAGES, without=OUTSIDE)
    assert all(len(node.inputs) == 2 for node in exported.model.graph if node.op_type == "Conv")


def test_a_bias_that_is_an_input():
    exported = check(lambda x, bias: conv(x) + bias, IMAGES, f32(6), without=OUTSIDE)
    expect_graph(exported, ["Transpose -> Conv -> Transpose"], exact=True)


def test_in_a_function():
    layer = nnx.Conv(4, 6, (3, 3), rngs=nnx.Rngs(0))
    exported = check(layer, IMAGES, without=OUTSIDE, functions=nnx.Conv, function_count=1)
    (function,) = exported.model.functions.values()
    assert not [node for node in function if node.op_type == "Add"]


AVERAGES = {
    "plain": lambda x: nnx.avg_pool(x, (2, 2), (2, 2)),
    "padded": lambda x: nnx.avg_pool(x, (3, 2), padding="SAME"),
    "of what is there": lambda x: nnx.avg_pool(x, (3, 2), padding="SAME", count_include_pad=False),
    "without batch": lambda x: nnx.avg_pool(x[0], (2, 2), padding="SAME", count_include_pad=False),
}


@pytest.mark.parametrize("fn", AVERAGES.values(), ids=AVERAGES)
def test_averages(fn):
    expect_graph(check(fn, IMAGES), counts={"AveragePool": 1, "Div": 0, "Mul": 0})


NO_AVERAGES = {
    "another number": lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID") / 3,
    "the sum is used, too": lambda x: (
        (total := lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")) / 4,
        total,
    ),
    "divided by the sum of something else": lambda x: (
        nnx.avg_pool(x, (2, 2), padding="SAME") / (nnx.avg_pool(x * x, (2, 2), padding="SAME") + 1)
    ),
}


@pytest.mark.parametrize("fn", NO_AVERAGES.values(), ids=NO_AVERAGES)
def test_what_is_no_average(fn):
    exported = check(fn, IMAGES, without={"float64": "the start is float32"})
    assert [node for node in exported.model.graph if node.op_type == "Div"]


class SqueezeExcite(nnx.Module):
    """Flax's usual block: channels are weighted by what convolutions of size one make of their means."""

    def __init__(self, channels, hidden, activation, rngs):
        self.squeeze = nnx.Conv(channels, hidden, (1, 1), rngs=rngs)
        self.excite = nnx.Conv(hidden, channels, (1, 1), rngs=rngs)
        self.squeeze.bias[...], self.excite.bias[...] = jnp.arange(1.0, hidden + 1), jnp.arange(1.0, channels + 1)
        self.activation = activation

    def __call__(self, x):
        weights = self.activation(self.squeeze(jnp.mean(x, axis=(1, 2), keepdims=True)))
        return x * nnx.sigmoid(self.excite(weights))


BLOCK = "GlobalAveragePool -> Conv -> Relu -> Conv -> Sigmoid -> Mul"


@pytest.mark.parametrize(("channels", "hidden"), [(6, 2), (6, 1), (6, 6)])
def test_squeeze_and_excitation(channels, hidden):
    block = SqueezeExcite(channels, hidden, nnx.relu, nnx.Rngs(0))
    exported = check(lambda x: conv(block(jnp.tanh(conv(x)))[..., :4]), IMAGES, without=OUTSIDE)
    expect_graph(exported, [f"Transpose -> Conv -> Tanh -> {BLOCK}"], counts={"Add": 0, "Transpose": 2, "Conv": 4})
    assert not {"Squeeze", "Unsqueeze", "Reshape"} & set(operators(exported))


def test_squeeze_and_excitation_of_open_sizes():
    block = SqueezeExcite(6, 2, nnx.silu, nnx.Rngs(0))
    exported = check(lambda x: block(conv(x)), f32("B", "H", "W", 4), without=OUTSIDE)
    expect_graph(exported, counts={"GlobalAveragePool": 1, "ReduceSum": 0, "Add": 0})


def test_squeeze_and_excitation_behind_a_norm_of_the_weights():
    block = SqueezeExcite(6, 2, lambda s: s / (1 + jnp.abs(s).sum(-1, keepdims=True)), nnx.Rngs(0))
    check(lambda x: block(conv(x)), IMAGES, without=OUTSIDE)


NO_POOLS = {
    "of one axis": lambda x: conv(jnp.mean(x, axis=1, keepdims=True)),
    "of the channels": lambda x: jnp.mean(conv(x), axis=-1, keepdims=True),
    "for no convolution": lambda x: jnp.tanh(jnp.mean(conv(x), axis=(1, 2), keepdims=True)),
}


@pytest.mark.parametrize("fn", NO_POOLS.values(), ids=NO_POOLS)
def test_means_that_stay(fn):
    expect_graph(check(fn, IMAGES, without=OUTSIDE), counts={"GlobalAveragePool": 0, "ReduceMean": 1})
