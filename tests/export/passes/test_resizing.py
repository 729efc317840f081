"""Images of another size are resized by one operator where it is exact and fast, else by constant matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.export.passes.resizing import linear_weights
from jaxport.testing import check, expect_graph, f32, i32
from tests.export.passes.fusions import operators, report

KERNEL = np.random.default_rng(5).normal(size=(3, 3, 4, 4)).astype(np.float32) / 5
SIZES = [(2, 4), (5, 7), (7, 5), (9, 3), (8, 4), (13, 40), (3, 300)]
TIES = [(10, 3), (16, 6)]  # a center lies between two elements, so that the runtime may round it the other way
NO_KERNEL = {"float64": "in which there is no Resize"}


def resized(method, *size, antialias=True):
    return lambda x: jax.image.resize(x, (x.shape[0], *size, x.shape[3]), method, antialias=antialias)


def conv(x):
    return lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_linear(before, after):
    fn = resized("linear", after, 5, antialias=False)
    exported = check(fn, f32("B", before, 4, 2), without=NO_KERNEL, rtol=1e-5, atol=1e-6 * max(before, 8))
    assert operators(exported) == {"Resize": 1}


@pytest.mark.parametrize("before", [1, 2, 7, 12])
def test_weights_are_those_of_jax(before):
    for after in (1, 3, 8, 12, 31):
        matrix = jax.image.resize(jnp.eye(before), (before, after), "linear", antialias=False)
        np.testing.assert_allclose(linear_weights(before, after), matrix, atol=2e-6)


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_nearest(before, after):
    exported = check(resized("nearest", after, 8), f32("B", before, 4, 2), without=NO_KERNEL)
    assert operators(exported) == {"Resize": 1}


@pytest.mark.parametrize(("before", "after"), TIES)
def test_nearest_where_the_runtime_may_round_the_other_way(before, after):
    exported = check(resized("nearest", after, 8), f32("B", before, 4, 2), without=NO_KERNEL)
    assert operators(exported) == {"Gather": 2}
    assert "a center lies between two elements" in report(exported, "resizing")


REPEATED = {
    "repeat": lambda x: jnp.repeat(jnp.repeat(x, 2, axis=1), 3, axis=2),
    "kron": lambda x: jnp.broadcast_to(x[:, :, None, :, None], (*x.shape[:2], 2, x.shape[2], 2, x.shape[3])).reshape(
        x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3]
    ),
}


@pytest.mark.parametrize("images", [f32("B", 3, 5, 2), f32("B", "H", "W", 2)], ids=["B", "open"])
@pytest.mark.parametrize("fn", REPEATED.values(), ids=REPEATED)
def test_repeated(fn, images):
    exported = check(fn, images, without=NO_KERNEL)
    expect_graph(exported, ["Resize"], exact=True)
    assert operators(check(fn, f32(1, 3, 5, 1), without=NO_KERNEL)) == {"Resize": 1}


@pytest.mark.parametrize("method", ["nearest", "linear", "repeat"])
def test_between_convolutions(method):
    fn = REPEATED["kron"] if method == "repeat" else resized(method, 12, 16)
    exported = check(lambda x: conv(fn(conv(x))), f32("B", 6, 8, 4), without={**NO_KERNEL, "empty": "of the rules"})
    expect_graph(exported, ["Transpose -> Conv -> Resize -> Conv -> Transpose"], exact=True)


MATRICES = {
    "cubic": resized("cubic", 12, 7),
    "cubic downwards": resized("cubic", 3, 4, antialias=False),
    "lanczos": resized("lanczos5", 12, 7),
    "antialiased": resized("linear", 3, 4),
    "both ways": resized("linear", 12, 4),
    "scaled and moved": lambda x: jax.image.scale_and_translate(
        x, (x.shape[0], 9, 9, 2), (1, 2), jnp.array([1.5, 1.3]), jnp.array([0.2, 0.1]), "linear"
    ),
    "many positions": lambda x: jax.image.resize(x, (x.shape[0], 300, 8, 2), "cubic"),
}


@pytest.mark.parametrize("fn", MATRICES.values(), ids=MATRICES)
def test_by_constant_matrices(fn):
    exported = check(fn, f32("B", 6, 8, 2), rtol=1e-5, atol=1e-5)
    assert operators(exported).keys() <= {"MatMul", "Conv", "Transpose"}


OTHER = {
    "along one axis": lambda x: jnp.repeat(x, 2, axis=1),
    "tiles": lambda x: jnp.tile(x, (1, 2, 2, 1)),
    "positions of another kind": lambda x: x[:, jnp.array([0, 0, 1, 2, 4])][:, :, jnp.array([1, 2, 2, 3])],
    "the last first": lambda x: x[:, jnp.array([5, 5, 4, 4, 3, 3])][:, :, jnp.array([0, 0, 1, 1])],
    "other weights": lambda x: jnp.einsum("bhwc,hk,wl->bklc", x, *(np.eye(n, 9, dtype=np.float32) for n in (6, 8))),
}


@pytest.mark.parametrize("fn", OTHER.values(), ids=OTHER)
def test_what_is_no_resize(fn):
    assert "Resize" not in operators(check(fn, f32("B", 6, 8, 2), without=NO_KERNEL))


def test_weights_that_are_inputs():
    fn = lambda x, m: jnp.einsum("bhwc,hk,wl->bklc", x, m, m)
    assert "Resize" not in operators(check(fn, f32("B", 6, 6, 2), f32(6, 9)))


def test_other_types():
    assert operators(check(REPEATED["repeat"], i32("B", 3, 4, 2))) == {"Resize": 1}
    half = jax.ShapeDtypeStruct(("B", 3, 4, 2), jnp.float16)
    assert operators(check(REPEATED["repeat"], half)) == {"Resize": 1}
    assert "Resize" not in operators(check(resized("linear", 6, 8), half))


def test_old_opsets():
    fn = resized("linear", 9, 12)
    assert "opset 18" in report(check(fn, f32("B", 6, 8, 2), opset=17, without=NO_KERNEL), "resizing")
    assert operators(check(REPEATED["repeat"], f32("B", 6, 8, 2), opset=17, without=NO_KERNEL)) == {"Resize": 1}
