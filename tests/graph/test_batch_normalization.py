from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx

import jaxport
from jaxport.testing import check, f32, spec
from tests.export.passes.fusions import operators, report
from tests.graph.test_normalization import nnx_layer

PARAMETERS = {name: np.random.default_rng(i).uniform(0.5, 1.5, 4).astype("f4") for i, name in enumerate("smvb")}
SCALE, MEAN, VARIANCE, BIAS = PARAMETERS.values()


def trained(model):
    """A model whose norms have seen data."""
    for _, norm in nnx.iter_graph(model):
        if isinstance(norm, nnx.BatchNorm):
            for name, values in zip(("scale", "mean", "var", "bias"), PARAMETERS.values(), strict=True):
                if getattr(norm, name) is not None:
                    getattr(norm, name)[...] = values
    return model


def norm(**options):
    return trained(nnx.BatchNorm(4, use_running_average=True, rngs=nnx.Rngs(0), **options))


def by_hand(x, channels_first=True):
    shape = (4, 1, 1) if channels_first else (4,)
    scale, mean, variance, bias = (jnp.asarray(p).reshape(shape) for p in PARAMETERS.values())
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + bias


def equinox_norm(mode):
    layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode=mode)
    inferring = eqx.nn.inference_mode(layer)
    return lambda x: jax.vmap(lambda one: inferring(one, state)[0], axis_name="batch")(x)


@pytest.mark.parametrize(
    ("fn", "spec", "transposes"),
    [
        (norm(), f32("B", 5, 6, 4), 2),
        (norm(use_scale=False), f32("B", 5, 6, 4), 2),
        (norm(use_bias=False), f32("B", "H", "W", 4), 2),
        (norm(use_bias=False, use_scale=False), f32("B", 4), 0),
        (norm(), f32(3, 4), 0),
        (norm(axis=1), f32("B", 4, 5, 6), 0),
        (norm(axis=1), f32("B", 4, "T"), 0),
        (nnx_layer(nnx.BatchNorm, 4, use_running_average=True), f32("B", 4), 0),  # as it is initialized
        (by_hand, f32("B", 4, 5, 6), 0),
        (equinox_norm("ema"), f32("B", 4, 5), 0),
        (lambda x: by_hand(x, channels_first=False), f32("B", 5, 6, 4), 2),
    ],
)
def test_recognised(fn, spec, transposes):
    found = operators(check(fn, spec))
    assert found["BatchNormalization"] == 1
    assert found.get("Transpose", 0) == transposes
    assert set(found) <= {"BatchNormalization", "Transpose"}


def test_where_the_statistics_are_not_known_it_is_as_exact_as_before():
    model = nn.BatchNorm(use_running_average=True)
    collections = {"params": {"scale": f32(4), "bias": f32(4)}, "batch_stats": {"mean": f32(4), "var": f32(4)}}
    exported = check(lambda variables, x: model.apply(variables, x), collections, f32("B", 4))
    assert report(exported, "batch_normalization").startswith("1 declined: its mean and variance are not known")
    check(lambda x, mean, variance: (x - mean) / jnp.sqrt(jnp.abs(variance) + 1e-5), f32("B", "T"), f32("T"), f32("T"))
    # What Equinox divides its statistics by is a known number, so that they are known, too.
    assert operators(check(equinox_norm("batch"), f32("B", 4, 5))) == {"BatchNormalization": 1}


@pytest.mark.parametrize(("mean", "recognised"), [(-20, True), (1e4, False), (np.nan, False)])
def test_a_mean_that_is_far_from_zero_is_subtracted_first(mean, recognised):
    model = norm()
    model.mean[...] = mean
    exported = jaxport.to_onnx(model, [f32("B", 4)])
    assert ("BatchNormalization" in operators(exported)) == recognised
    x = (mean + np.random.default_rng(0).normal(size=(8, 4))).astype("f4")
    np.testing.assert_allclose(exported(x), model(x), rtol=0, atol=1e-5)


def test_half_precision_is_left_alone():
    mean, variance = MEAN.astype(np.float16), VARIANCE.astype(np.float16)
    exported = check(
        lambda x: (x - mean) / jnp.sqrt(jnp.asarray(variance) + 1e-3), spec("B", 4, dtype=np.float16), atol=0.01
    )
    assert "BatchNormalization" not in operators(exported)


def test_between_convolutions_it_takes_no_transpose_and_every_weight_has_its_name():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(4, use_running_average=True, rngs=rngs)
            self.second = nnx.Conv(4, 4, (3,), rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.relu(self.norm(self.first(x)).reshape(x.shape[0], -1, 4)))

    exported = check(trained(Block(nnx.Rngs(0))), f32("B", 6, 6, 3))
    assert operators(exported)["BatchNormalization"] == 1
    names = set(exported.model.graph.initializers)
    assert {"norm.scale", "norm.bias", "norm.mean", "norm.var"} <= names
    model = nnx.Sequential(
        nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0)), norm(), nnx.relu, nnx.Conv(4, 4, (3, 3), rngs=nnx.Rngs(1))
    )
    exported = check(model, f32("B", 6, 6, 3), inputs_as_nchw=[0], outputs_as_nchw=[0])
    assert operators(exported) == {"Conv": 2, "BatchNormalization": 1, "Relu": 1}


def test_sequences_are_not_turned_for_it():
    exported = check(norm(), f32("B", 7, 4))
    assert "Transpose" not in operators(exported)
    assert report(exported, "batch_normalization").endswith("the channels are not the second axis (BatchNorm/Mul_1)")


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x - MEAN) / jnp.sqrt(x.var((0, 1, 2)) + 1e-5) * SCALE + BIAS,  # the variance is computed
        lambda x: (x - x.mean((0, 1, 2))) / jnp.sqrt(jnp.asarray(VARIANCE) + 1e-5) * SCALE + BIAS,  # the mean is
        lambda x: (x - MEAN) * (x - BIAS) / jnp.sqrt(jnp.asarray(VARIANCE) + 1e-5),  # two differences
        lambda x: (x - MEAN[:, None]) / jnp.sqrt(jnp.asarray(VARIANCE) + 1e-5) * SCALE,  # along two axes
    ],
)
def test_something_else(fn):
    assert "BatchNormalization" not in operators(check(fn, f32("B", 3, 4, 4), rtol=5e-5, atol=1e-5))


def test_channels_that_are_batches():
    exported = check(lambda x: (x - MEAN[:, None]) / jnp.sqrt(jnp.asarray(VARIANCE)[:, None] + 1e-5), f32(4, 5))
    assert "BatchNormalization" not in operators(exported)


def test_it_is_differentiated_with_all_its_parts():
    model = norm()
    graph, state = nnx.split(model)

    def loss(state, x):
        return (nnx.merge(graph, state)(x) ** 2).sum()

    exported = check(jax.value_and_grad(loss), state, f32("B", 5, 6, 4), rtol=1e-4, atol=1e-4)
    assert "BatchNormalization" not in operators(exported)  # its parts are used on the way back
