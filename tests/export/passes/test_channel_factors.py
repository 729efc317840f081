"""Factors of channels become part of the weights, where that is asked for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxport.export import passes
from jaxport.testing import check, f32
from tests.export.passes.fusions import operators, report

PASSES = [*passes.DEFAULT, passes.channel_factors]
GAMMA = np.random.default_rng(0).normal(size=6).astype(np.float32)
OUTSIDE = {"empty": "of the convolution", "float64": "in which there is no Conv"}


class Layer(nnx.Module):
    def __init__(self, layer):
        self.layer, self.gamma = layer, nnx.Param(jnp.asarray(GAMMA))

    def __call__(self, x):
        return jnp.tanh(self.gamma[...] * self.layer(x))


def linear(**options):
    return Layer(nnx.Linear(4, 6, bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(0), **options))


def conv(**options):
    return Layer(nnx.Conv(4, 6, (3, 3), bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(0), **options))


def normalized():
    norm = nnx.BatchNorm(6, use_running_average=True, rngs=nnx.Rngs(0))
    norm.mean[...], norm.var[...] = jnp.arange(6.0) / 5, jnp.arange(6.0) + 0.5
    return nnx.Sequential(nnx.Conv(4, 6, (3, 3), rngs=nnx.Rngs(1)), norm)


@pytest.mark.parametrize("layer", [linear(), linear(use_bias=False), conv(), conv(use_bias=False)])
def test_taken_in(layer):
    exported = check(layer, f32("B", 5, 7, 4), passes=PASSES, without=OUTSIDE)
    assert "Mul" not in operators(exported)
    assert {"layer.kernel", "gamma"} & exported.model.graph.initializers.keys() == {"layer.kernel"}
    assert "gamma" in check(layer, f32("B", 5, 7, 4), without=OUTSIDE).model.graph.initializers


def test_batch_normalization():
    exported = check(normalized(), f32("B", 5, 7, 4), passes=PASSES, without=OUTSIDE)
    assert operators(exported) == {"Transpose": 2, "Conv": 1}


def tied(x):
    weight = jnp.asarray(np.eye(6, dtype=np.float32))
    return (x @ weight) * GAMMA + jnp.tanh(x) @ weight


OTHER = {
    "used elsewhere": (
        lambda x: (y := jnp.tanh(x) @ np.eye(6, dtype=np.float32)) * GAMMA + y,
        "what is scaled is used",
    ),
    "weights used elsewhere": (tied, "the weights are used elsewhere"),
    "weights computed": (lambda x: (x @ (x.mean(0)[:, None] * GAMMA)) * GAMMA, "the weights are not constant"),
    "a map": (lambda x: (x @ np.eye(6, dtype=np.float32)) * np.ones((6, 6), np.float32), ""),
    "infinite": (lambda x: (x @ np.eye(6, dtype=np.float32)) * np.float32(np.inf), "is not finite"),
}


@pytest.mark.parametrize(("fn", "reason"), OTHER.values(), ids=OTHER)
def test_what_stays(fn, reason):
    exported = check(fn, f32(6, 6), passes=PASSES, without={"float64": "the same"})
    assert "Mul" in operators(exported)
    assert reason in report(exported, "channel_factors")


def test_half_precision():
    half = jax.ShapeDtypeStruct((6, 6), jnp.float16)
    fn = lambda x: (x @ jnp.eye(6, dtype=x.dtype)) * GAMMA.astype(x.dtype)
    assert "half precision" in report(check(fn, half, passes=PASSES, atol=0.01), "channel_factors")
