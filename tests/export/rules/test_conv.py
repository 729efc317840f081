"""Convolutions: every layout, rank, dilation, padding, grouping and dtype, and their gradients."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, expect_graph, f32, spec

pytestmark = pytest.mark.sampled(2)

NHWC = ("NHWC", "HWIO", "NHWC")


def weights(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Random weights; small integers for integer dtypes."""
    values = np.random.default_rng(3).normal(size=shape)
    return (values * 3 if np.dtype(dtype).kind in "iu" else values).astype(dtype)


def conv(x, kernel, strides=None, padding="VALID", layout=NHWC, **options):
    """`lax.conv_general_dilated` with strides of one by default, in NHWC."""
    kernel = jnp.asarray(kernel, x.dtype)
    strides = strides or (1,) * (x.ndim - 2)
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=layout, **options)


K = weights(3, 2, 4, 6)  # HWIO

CASES = {
    "valid": (lambda x: conv(x, K), f32("B", 6, 7, 4)),
    "strides": (lambda x: conv(x, K, (2, 3)), f32("B", 6, 7, 4)),
    "same": (lambda x: conv(x, K, padding="SAME"), f32("B", 6, 7, 4)),
    "same, open sizes": (lambda x: conv(x, K, padding="SAME"), f32("B", "H", "W", 4)),
    "same, strides": (lambda x: conv(x, K, (2, 2), "SAME"), f32("B", "H", "W", 4)),
    "same, stride over the kernel": (lambda x: conv(x, K, (3, 3), "SAME"), f32(2, "H", "W", 4)),
    "same lower": (lambda x: conv(x, K, (2, 2), "SAME_LOWER"), f32("B", "H", "W", 4)),
    "same, dilated": (lambda x: conv(x, K, (2, 1), "SAME", rhs_dilation=(2, 3)), f32("B", "H", "W", 4)),
    "asymmetric": (lambda x: conv(x, K, (2, 1), ((0, 2), (3, 1))), f32("B", "H", 7, 4)),
    "more padding than kernel": (lambda x: conv(x, K, padding=((4, 5), (3, 0))), f32("B", 6, 7, 4)),
    "negative padding": (lambda x: conv(x, K, padding=((-1, 2), (1, -2))), f32("B", "H", "W", 4)),
    "dilated kernel": (lambda x: conv(x, K, rhs_dilation=(2, 3)), f32("B", "H", "W", 4)),
    "dilated data": (lambda x: conv(x, K, padding=((2, 1), (2, 2)), lhs_dilation=(2, 3)), f32("B", "H", "W", 4)),
    "dilated data, cut": (lambda x: conv(x, K, padding=((-2, 1), (1, -1)), lhs_dilation=(2, 1)), f32("B", "H", "W", 4)),
    "both dilated": (
        lambda x: conv(x, K, padding=((2, 3), (4, 2)), lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
        f32("B", "H", "W", 4),
    ),
    "dilated data, strides": (
        lambda x: conv(x, K, (2, 1), ((2, 1), (2, 2)), lhs_dilation=(3, 2)),
        f32("B", "H", "W", 4),
    ),
    "groups": (lambda x: conv(x, weights(3, 3, 2, 6), feature_group_count=2), f32("B", 6, 7, 4)),
    "depthwise": (lambda x: conv(x, weights(3, 3, 1, 8), (2, 2), "SAME", feature_group_count=4), f32("B", 6, 7, 4)),
    "groups, dilated data": (
        lambda x: conv(x, weights(3, 3, 2, 6), padding=((2, 2), (1, 2)), lhs_dilation=(2, 2), feature_group_count=2),
        f32("B", 5, 4, 4),
    ),
    "groups of the batch": (lambda x: conv(x, K, batch_group_count=3), f32(6, 6, 7, 4)),
    "groups of an open batch": (lambda x: conv(x, K, batch_group_count=2), f32("2*B", 6, 7, 4)),
    "NCHW": (lambda x: conv(x, weights(6, 4, 3, 3), layout=("NCHW", "OIHW", "NCHW")), f32("B", 4, "H", "W")),
    "CHWN": (lambda x: conv(x, weights(4, 3, 3, 6), layout=("CHWN", "IHWO", "HWNC")), f32(4, "H", "W", "B")),
    "mixed layouts": (lambda x: conv(x, weights(3, 6, 4, 2), layout=("NHCW", "HOIW", "WNCH")), f32("B", "H", 4, "W")),
    "1-D": (lambda x: conv(x, weights(3, 4, 6), (2,), "SAME", ("NWC", "WIO", "NWC")), f32("B", "T", 4)),
    "1-D, dilated data": (
        lambda x: conv(x, weights(4, 4, 6), (1,), ((2, 2),), ("NWC", "WIO", "NWC"), lhs_dilation=(2,)),
        f32("B", "T", 4),
    ),
    "3-D": (
        lambda x: conv(x, weights(2, 3, 2, 2, 5), (1, 2, 1), "SAME", ("NDHWC", "DHWIO", "NDHWC")),
        f32("B", 3, "H", 4, 2),
    ),
    "4-D": (
        lambda x: lax.conv_general_dilated(x, jnp.asarray(weights(3, 2, 2, 2, 1, 2), x.dtype), (1, 2, 1, 1), "SAME"),
        f32("B", 2, 3, 4, 2, 3),
    ),
    "0-D": (lambda x: lax.conv_general_dilated(x, jnp.asarray(weights(5, 4), x.dtype), (), ()), f32("B", 4)),
    "kernel of size one": (lambda x: conv(x, weights(1, 1, 4, 6), (2, 2)), f32("B", "H", "W", 4)),
    "kernel as input": (lambda x, kernel: conv(x, kernel, (2, 1), "SAME"), f32("B", "H", "W", 4), f32(3, 2, 4, 6)),
    "dilated data, kernel as input": (
        lambda x, kernel: conv(x, kernel, padding=((1, 2), (1, 1)), lhs_dilation=(2, 2)),
        f32("B", "H", "W", 4),
        f32(3, 2, 4, 6),
    ),
    "transposed": (lambda x: lax.conv_transpose(x, jnp.asarray(K, x.dtype), (2, 2), "SAME"), f32("B", "H", "W", 4)),
    "transposed, valid": (
        lambda x: lax.conv_transpose(x, jnp.asarray(K, x.dtype), (3, 2), "VALID"),
        f32("B", "H", "W", 4),
    ),
    "transposed, size one": (
        lambda x: lax.conv_transpose(x, jnp.asarray(weights(1, 1, 4, 6), x.dtype), (2, 3), "SAME"),
        f32("B", "H", "W", 4),
    ),
    "local": (
        lambda x: lax.conv_general_dilated_local(
            x, jnp.asarray(weights(4, 6, 16, 5), x.dtype), (1, 1), "VALID", (2, 2), dimension_numbers=NHWC
        ),
        f32("B", 5, 7, 4),
    ),
    "patches": (
        lambda x: lax.conv_general_dilated_patches(x, (3, 2), (1, 2), "SAME", dimension_numbers=NHWC),
        f32("B", 6, 7, 4),
    ),
    "convolve": (lambda x: jnp.convolve(x, jnp.asarray(weights(4), x.dtype), mode="same"), f32(9)),
    "correlate": (lambda x, y: jnp.correlate(x, y, mode="full"), f32(7), f32(4)),
    "convolve2d": (lambda x, y: jax.scipy.signal.convolve2d(x, y, mode="same"), f32(6, 7), f32(3, 2)),
    "vmap over data": (jax.vmap(partial(conv, kernel=K), 1, 2), f32("B", 3, 6, 7, 4)),
    "vmap over kernels": (jax.vmap(conv, (None, 0)), f32("B", 6, 7, 4), f32(3, 3, 2, 4, 6)),
    "vmap over both": (jax.vmap(conv), f32(3, "B", 6, 7, 4), f32(3, 3, 2, 4, 6)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values(case):
    fn, *specs = case
    # All are float32: sums of 36 products of size 1, which XLA and ONNX Runtime add in different orders.
    check(fn, *specs, atol=1e-5)


def test_kernel_of_open_size():
    fn = lambda x, kernel: conv(x, kernel, padding=((1, 0), (0, 2)))
    check(
        fn,
        f32(2, "H + T", "W + T", 4),
        f32("H", "W", 4, 6),
        rtol=1e-4,
        atol=1e-4,
        without={"empty": "XLA has no such kernel"},
    )


def loss(x, kernel, **options):
    return (conv(x, kernel, **options) ** 2).sum()


GRADIENTS = {
    "plain": {},
    "same, strides": {"strides": (2, 3), "padding": "SAME"},
    "padding": {"strides": (2, 1), "padding": ((3, 0), (0, 2))},
    "dilated kernel": {"rhs_dilation": (2, 2)},
    "dilated data": {"padding": ((2, 1), (2, 2)), "lhs_dilation": (2, 3)},
    "groups": {"feature_group_count": 2, "padding": "SAME"},
    "depthwise": {"feature_group_count": 4, "strides": (2, 2), "padding": "SAME"},
    "groups of the batch": {"batch_group_count": 2},
}


@pytest.mark.parametrize("options", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("argument", [0, 1], ids=["data", "kernel"])
def test_gradients(options, argument):
    kernel = weights(3, 2, 4 // options.get("feature_group_count", 1), 8)
    batch = 4 if "batch_group_count" in options else "B"
    fn = lambda x, k: jax.grad(partial(loss, **options), argument)(x, k)
    check(fn, f32(batch, 8, 9, 4), f32(*kernel.shape), rtol=1e-4, atol=1e-3)


def test_an_open_number_of_groups():
    """A `vmap` of kernels over an open axis makes groups of it."""
    check(jax.vmap(lambda x, k: conv(x, k, padding="SAME")), f32("B", 2, 6, 7, 3), f32("B", 3, 2, 3, 4))


def test_gradients_with_open_sizes():
    fn = jax.value_and_grad(partial(loss, padding=((1, 1), (0, 2))), (0, 1))
    check(fn, f32("B", "H", "W", 4), f32(3, 3, 4, 6), rtol=1e-4, atol=1e-3)


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("options", [{}, {"strides": (2, 1), "padding": "SAME"}, {"feature_group_count": 2}], ids=str)
def test_integers_wrap(dtype, options):
    kernel = weights(3, 3, 4 // options.get("feature_group_count", 1), 6, dtype=dtype)
    large = np.random.default_rng(5).integers(0, np.iinfo(dtype).max, (2, 6, 7, 4)).astype(dtype)
    check(lambda x: conv(x, kernel, **options), spec(2, 6, 7, 4, dtype=dtype), values=[large])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("wide", [jnp.int32, jnp.float32], ids=["int32", "float32"])
def test_integers_accumulate_in_what_is_preferred(dtype, wide):
    kernel = np.full((3, 3, 4, 6), np.iinfo(dtype).max, dtype)
    large = np.full((2, 6, 7, 4), np.iinfo(dtype).max, dtype)
    check(lambda x: conv(x, kernel, preferred_element_type=wide), spec(2, 6, 7, 4, dtype=dtype), values=[large])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("wide", [None, jnp.float32], ids=["same", "float32"])
def test_short_floats(dtype, wide):
    check(lambda x: conv(x, K, padding="SAME", preferred_element_type=wide), spec("B", 6, 7, 4, dtype=dtype))


EMPTY = {
    "no channels": ((2, 6, 7, 0), (3, 2, 0, 6)),
    "no outputs": ((2, 6, 7, 4), (3, 2, 4, 0)),
    "no images": ((0, 6, 7, 4), (3, 2, 4, 6)),
    "no rows": ((2, 0, 7, 4), (3, 2, 4, 6)),
    "rows shorter than the kernel": ((2, 2, 7, 4), (3, 2, 4, 6)),
}


@pytest.mark.parametrize("padding", ["VALID", ((2, 2), (0, 0))], ids=["bare", "padded"])
@pytest.mark.parametrize("shapes", EMPTY.values(), ids=EMPTY)
def test_empty(shapes, padding):
    check(lambda x, kernel: conv(x, kernel, padding=padding), *(f32(*shape) for shape in shapes))


def test_infinite_values_stay_where_the_kernel_sees_them():
    x = np.zeros((1, 6, 6, 4), np.float32)
    x[0, 2, 3, 1], x[0, 5, 5, 0] = np.inf, np.nan
    check(lambda x: conv(x, np.abs(K), (2, 2), "SAME"), f32(1, 6, 6, 4), values=[x])


def test_structure():
    expect_graph(
        check(lambda x: conv(x, K, (2, 2), "SAME"), f32("B", "H", "W", 4)),
        ["Transpose -> Conv -> Transpose"],
        exact=True,
    )
    fn = lambda x: lax.conv_transpose(x, jnp.asarray(K, x.dtype), (2, 2), "SAME")
    expect_graph(check(fn, f32("B", "H", "W", 4)), ["Transpose -> ConvTranspose -> Transpose"], exact=True)


def test_the_kernel_is_stored_once_and_keeps_its_name():
    exported = check(lambda x, kernel: conv(x, kernel) + 1, f32("B", 6, 7, 4), f32(*K.shape))
    assert [port.name for port in exported.inputs] == ["x", "kernel"]
