"""Formats of quantized weights: the error that each may have, groups, zero points, files, export."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.mox import lora, quantize
from tests.exports import operators
from tests.mox.test_modules import STACKS

# The greatest error of a weight, relative to the range of those that share its scale.
ERRORS = {"int8": 1 / 250, "int4": 1 / 14, "float8_e4m3fn": 1 / 16, "float8_e5m2": 1 / 8}
FORMATS = [
    (dtype, group, symmetric)
    for dtype, group, symmetric in itertools.product(ERRORS, (None, 16, 64), (True, False))
    if symmetric or dtype.startswith("int")
]
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 37)), jnp.float32)


def weights_of(mox):
    """The weight that a quantized layer multiplies: what it makes of the rows of the identity, without the bias."""
    return mox(jnp.eye(37)) - mox(jnp.zeros((37, 37)))


@pytest.mark.parametrize(("dtype", "group", "symmetric"), FORMATS)
def test_the_error_is_within_the_format(dtype, group, symmetric, tmp_path):
    model = nnx.Linear(37, 8, rngs=nnx.Rngs(0))
    model.bias[...] = jnp.arange(8.0)
    mox = jaxport.make_mox(model)(jnp.eye(37))
    small = mox.sub("//Linear", quantize(dtype=dtype, group=group, symmetric=symmetric))
    wanted, found = np.asarray(model.kernel[...]), np.asarray(weights_of(small))
    for start in range(0, 37, group or 37):
        rows = slice(start, start + (group or 37))
        allowed = ERRORS[dtype] * 2 * np.abs(wanted[rows]).max(0) + 1e-6
        assert (np.abs(wanted[rows] - found[rows]).max(0) <= allowed).all()
    assert small.state["kernel.quantized"].dtype == jnp.dtype(dtype)
    assert ("kernel.zero_point" in small.state) == (not symmetric)
    small.save(tmp_path / "small.json")
    np.testing.assert_array_equal(jaxport.mox.load(tmp_path / "small.json")(jnp.eye(37)), small(jnp.eye(37)))


@pytest.mark.parametrize(("dtype", "group", "symmetric"), FORMATS)
def test_it_is_exported_as_one_operator(dtype, group, symmetric):
    mox = jaxport.make_mox(nnx.Linear(37, 8, rngs=nnx.Rngs(0)))(X)
    exported = jaxport.to_onnx(mox.sub("//Linear", quantize(dtype=dtype, group=group, symmetric=symmetric)), [X])
    assert operators(exported) == ["DequantizeLinear", "MatMul", "Add"]
    assert exported.verify().ok


def test_older_opsets_have_no_blocks():
    mox = jaxport.make_mox(nnx.Linear(37, 8, rngs=nnx.Rngs(0)))(X)
    exported = jaxport.to_onnx(mox.sub("//Linear", quantize(group=16)), [X], opset=18)
    assert "DequantizeLinear" not in operators(exported)
    assert exported.verify().ok


def test_zeros_alone_and_positive_weights():
    kernel = np.abs(np.random.default_rng(0).normal(size=(37, 8))).astype(np.float32)
    kernel[:, 0] = 0
    model = nnx.Linear(37, 8, rngs=nnx.Rngs(0))
    model.kernel[...] = jnp.asarray(kernel)
    mox = jaxport.make_mox(model)(jnp.eye(37))
    errors = []
    for symmetric in (True, False):
        found = weights_of(mox.sub("//Linear", quantize(symmetric=symmetric)))
        assert (found[:, 0] == 0).all()
        errors.append(float(jnp.abs(found - kernel).max()))
    assert errors[1] < errors[0]  # a zero point uses the whole range


@pytest.mark.parametrize("stack", STACKS)
def test_groups_in_stacked_layers(stack):
    make, query = STACKS[stack]
    x = X[:2, :4]
    mox = jaxport.make_mox(make())(x)
    small = mox.sub(query, quantize(dtype="int8", group=2, symmetric=False))
    np.testing.assert_allclose(small(x), mox(x), atol=0.05)
    adapted = small.sub(query, lora(rank=2))
    np.testing.assert_allclose(adapted(x), small(x), rtol=1e-6)


def test_convolutions_in_groups():
    conv = eqx.nn.Conv2d(4, 3, 3, key=jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 8)), jnp.float32)
    mox = jaxport.make_mox(conv)(x)
    small = mox.sub("//Conv2d", quantize(group=2))
    np.testing.assert_allclose(small(x), mox(x), atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, "`int3` is not one of"),
        ({"dtype": "float8_e4m3fn", "symmetric": False}, "has no zero point"),
        ({"group": 0}, "group=0 is not a size"),
        ({"group": 8, "axis": 1}, "groups are along"),
    ],
)
def test_what_no_format_is_is_refused(options, message):
    with pytest.raises(jaxport.InvalidArgument, match=message):
        quantize(**options)


def test_the_derivative_of_a_rounding_by_its_scale():
    """Of scale * round(x / scale) with the number of steps fixed, and straight through x: what was rounded off, per scale."""
    x, scale = jnp.asarray([0.3, -1.1, 99.0]), 0.25
    slope = jax.jacfwd(lambda s: jaxport.make_mox(jnp.tan)(x).sub("//tan", jaxport.mox.qdq(s))(jnp.arctan(x)))(scale)
    steps = np.clip(np.round(np.asarray(x) / scale), -128, 127)
    np.testing.assert_allclose(slope, steps - np.asarray([0.3, -1.1, 0.0]) / scale, rtol=1e-4, atol=1e-4)
