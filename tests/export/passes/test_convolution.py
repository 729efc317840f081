"""What stands around convolutions and pools becomes part of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from jaxport.testing import check, expect_graph, f32

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
