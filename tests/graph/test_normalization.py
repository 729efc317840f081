from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx
from jax import lax

from jaxport.testing import check, f32, f64, spec
from tests.export.passes.fusions import operators, report

pytestmark = pytest.mark.sampled(2)

LAYER, RMS = {"LayerNormalization": 1}, {"RMSNormalization": 1}


def nnx_layer(kind, *args, **kwargs):
    layer = kind(*args, **kwargs, rngs=nnx.Rngs(0))
    for index, name in enumerate(("scale", "bias")):  # other values than ones and zeros
        parameter = getattr(layer, name, None)
        if parameter is not None and parameter[...] is not None:
            parameter[...] = jax.random.normal(jax.random.key(index), parameter.shape)
    return layer


def linen_layer(module, *shape):
    variables = module.init(jax.random.key(0), jnp.ones(shape))
    variables = jax.tree.map(lambda leaf: leaf + jnp.arange(leaf.size).reshape(leaf.shape) / 10, variables)
    return lambda x: module.apply(variables, x)


def textbook(x, g, b):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * g + b


def by_variance(x, g, b):
    return g * (x - jnp.mean(x, -1, keepdims=True)) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) + b


def by_power(x, g, b):
    centered = x - x.sum(-1, keepdims=True) / 8
    return b + centered * (jnp.square(centered).sum(-1, keepdims=True) * 0.125 + 1e-5) ** -0.5 * g


def t5(x, g):
    return g * (x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6))


def gemma(x, g):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (1 + g)


@pytest.mark.parametrize(
    ("fn", "specs", "expected"),
    [
        (nnx_layer(nnx.LayerNorm, 8), [f32("B", 5, 8)], LAYER),
        (nnx_layer(nnx.LayerNorm, 8, use_fast_variance=False), [f32("B", 8)], LAYER),
        (nnx_layer(nnx.LayerNorm, 8, use_bias=False), [f32("B", 5, 8)], LAYER),
        (nnx_layer(nnx.LayerNorm, 8, use_scale=False), [f32("B", 5, 8)], LAYER),
        (nnx_layer(nnx.LayerNorm, 8, use_bias=False, use_scale=False), [f32("B", 5, 8)], LAYER),
        (linen_layer(nn.LayerNorm(), 2, 8), [f32("B", "T", 8)], LAYER),
        (linen_layer(nn.LayerNorm(reduction_axes=(-2, -1), feature_axes=(-2, -1)), 2, 4, 8), [f32("B", 4, 8)], LAYER),
        (jax.vmap(eqx.nn.LayerNorm(8)), [f32("B", 8)], LAYER),
        (jax.vmap(jax.vmap(eqx.nn.LayerNorm(8)), in_axes=1, out_axes=1), [f32("B", 5, 8)], LAYER),
        (lambda x: eqx.nn.LayerNorm((4, 8))(x), [f32(4, 8)], LAYER),
        (textbook, [f32("B", 8), f32(8), f32(8)], LAYER),
        (by_variance, [f32("B", 5, 8), f32(8), f32(8)], LAYER),
        (by_power, [f32("B", 5, 8), f32(8), f32(8)], LAYER),
        (lambda x: textbook(x, 1, 0), [f32("B", 8)], LAYER),
        (lambda x, g, b: textbook(x, g, b) + x, [f32("B", 8), f32(8), f32(8)], {**LAYER, "Add": 1}),
        (lambda x, g, y: textbook(x, g, y), [f32("B", 8), f32(8), f32("B", 8)], {**LAYER, "Add": 1}),
        (lambda x, y: textbook(x, y, 0), [f32("B", 8), f32("B", 8)], {**LAYER, "Mul": 1, "Add": 1}),
        (lambda x: nnx_layer(nnx.LayerNorm, 12)(x.reshape(-1, 12)), [f32("B", 3, 4)], {"Reshape": 1, **LAYER}),
        (lambda x: jax.nn.standardize(x.reshape(2, 12)), [f32(2, 3, 4)], {"Reshape": 1, **LAYER}),
        (lambda x: nnx_layer(nnx.LayerNorm, 8)(x @ x / 4), [f32(1, 8, 8)], {"Reshape": 1, "Unsqueeze": 1, "MatMul": 1, "Div": 1, **LAYER}),
        (nnx_layer(nnx.RMSNorm, 8), [f32("B", 5, 8)], RMS),
        (nnx_layer(nnx.RMSNorm, 8), [f32(2, 5, 8)], RMS),
        (nnx_layer(nnx.RMSNorm, 8), [f32(1, 5, 8)], RMS),
        (linen_layer(nn.RMSNorm(), 2, 8), [f32("B", "T", 8)], RMS),
        (jax.vmap(eqx.nn.RMSNorm(8, use_bias=False)), [f32("B", 8)], RMS),
        (t5, [f32("B", 5, 8), f32(8)], RMS),
        (gemma, [f32("B", 5, 8), f32(8)], {**RMS, "Add": 1}),
        (lambda x: t5(x, 1), [f32("B", 8)], RMS),
    ],
)  # fmt: skip
def test_recognised(fn, specs, expected):
    assert (
        operators(check(fn, *specs, without={"float64": "epsilon is a float32 there"}, rtol=2e-5, atol=5e-6))
        == expected
    )


def test_two_normalizations_that_share_their_statistics():
    def both(x, g, h):
        deviation = lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        return x * (deviation * g), x * (deviation * h)

    exported = check(both, f32("B", 8), f32(8), f32(8), atol=5e-6)
    assert operators(exported) == {"RMSNormalization": 2}


def test_inside_a_function_with_its_weights_as_inputs():
    layer = nnx_layer(nnx.LayerNorm, 8)
    exported = check(layer, f32("B", 8), functions=nnx.LayerNorm, function_count=1, atol=5e-6)
    assert operators(exported) == {"LayerNorm": 1, **LAYER}


@pytest.mark.parametrize(
    ("fn", "specs", "reason"),
    [
        (nnx_layer(nnx.LayerNorm, 4, reduction_axes=1, feature_axes=1), [f32("B", 4, 8)], "the normalized axes are not the last ones"),
        (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-2, keepdims=True) + 1e-5), [f32("B", 4, 4)], "nothing to do"),
        (lambda x: (x - x.mean(-1)[:, None, :]) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5), [f32("B", 4, 4)], "nothing to do"),
        (lambda x, y: (x - y.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5), [f32("B", 4), f32("B", 4)], "nothing to do"),
        (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5), [f32("B", 4)], "nothing to do"),
        (lambda x: (x - x.mean(-1, keepdims=True)) / (jnp.sqrt(x.var(-1, keepdims=True)) + 1e-5), [f32("B", 4)], "nothing to do"),
        (lambda x: x * lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-5), [f32("B", 4)], "nothing to do"),
        (lambda x: jax.nn.standardize(x, axis=(1, 2)), [f32("B", "T", 4)], "the sizes of the normalized axes are open"),
        (lambda x: (t5(x, 1), jnp.mean(x * x, -1, keepdims=True)), [f32("B", 4)], "in it is used elsewhere too"),
    ],
)  # fmt: skip
def test_declined(fn, specs, reason):
    exported = check(fn, *specs, rtol=2e-5, atol=5e-6)
    assert not {"LayerNormalization", "RMSNormalization"} & operators(exported).keys()
    assert reason in report(exported, "normalization")


def test_an_opset_without_the_operator():
    exported = check(t5, f32("B", 8), f32(8), opset=22, without={"static": "at another opset"})
    assert report(exported, "normalization") == "1 declined: RMSNormalization needs opset 23 (Mul_1)"


def test_an_epsilon_that_is_no_float32():
    exported = check(textbook, f64("B", 8), f64(8), f64(8), double_precision=True)
    assert "the attributes of LayerNormalization are float32, 1e-05 is not" in report(exported, "normalization")


def test_epsilon_and_constant_rows():
    rows = np.array([[2, 2, 2, 2], [1e-4, 0, 0, -1e-4], [1, 2, np.nan, 3], [1, np.inf, 2, 3]], np.float32)
    check(lambda x: textbook(x, 2, 1), f32(*rows.shape), values=[rows], atol=1e-5)


def rms_in_float32(x, scale):
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5), scale


def rounded_before_the_scale(x, scale):
    normal, scale = rms_in_float32(x, scale)
    return normal.astype(x.dtype) * scale


def rounded_behind_the_scale(x, scale):
    normal, scale = rms_in_float32(x, scale)
    return (normal * scale).astype(x.dtype)


@pytest.mark.parametrize("fn", [rounded_before_the_scale, rounded_behind_the_scale])
@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_half_precision_around_a_normalization_in_float32(dtype, fn):
    half = [spec("B", "T", 8, dtype=dtype), spec(8, dtype=dtype)]
    exported = check(fn, *half, without={"float64": "of half precision", "empty": "of the rules"}, atol=0.02)
    found = operators(exported)
    assert found["RMSNormalization"] == 1
    assert "Mul" not in found
    assert ("Cast" in found) == (dtype is jnp.bfloat16)  # the runtime has a kernel for float16 alone


def test_a_scale_that_half_precision_rounds_keeps_the_casts():
    fn = lambda x: rounded_behind_the_scale(x, jnp.linspace(0.1, 1.1, 8))
    exported = check(fn, spec("B", "T", 8, dtype=np.float16), without={"float64": "of half precision"}, atol=0.002)
    assert operators(exported) == {"Cast": 2, "RMSNormalization": 1}
