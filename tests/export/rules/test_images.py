"""Images that are enlarged to open sizes: one Resize; any other resize is exported as JAX computes it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.image import resize

from jaxport.testing import check, f32, spec
from tests.export.passes.fusions import operators


def enlarged(method, *factors):
    return lambda x: resize(x, tuple(n * factor for n, factor in zip(x.shape, factors, strict=True)), method)


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (enlarged("nearest", 1, 2, 2, 1), f32("B", "H", "W", 3)),
        (enlarged("nearest", 1, 3, 1, 1), f32("B", "H", "W", 3)),
        (enlarged("nearest", 1, 2, 2, 1), f32("B", "2*H + 1", 5, 3)),
        (enlarged("nearest", 1, 1, 4, 2), f32(1, 3, "H", "W")),
        (enlarged("linear", 1, 2, 2, 1), f32("B", "H", "W", 3)),
        (enlarged("bilinear", 1, 1, 2, 3), f32("B", 3, "H", "W")),
        (enlarged(jax.image.ResizeMethod.LINEAR, 1, 4, 1, 1), f32(2, "H", "W", 3)),
        (lambda x: resize(x, (*x.shape[:1], 2 * x.shape[1], 10, 3), "linear", antialias=False), f32("B", "H", 5, 3)),
        (jax.vmap(enlarged("nearest", 2, 2, 1)), f32("B", "H", "W", 3)),
    ],
)
def test_enlarged_by_whole_numbers(fn, given):
    # A third is rounded in the weights of JAX, and in the positions of the runtime.
    assert operators(check(fn, given, rtol=1e-5, atol=1e-5)) == {"Resize": 1}


@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (enlarged("cubic", 1, 2, 2, 1), f32("B", "H", "W", 3)),
        (lambda x: resize(x, (x.shape[0], x.shape[1] // 2, x.shape[2], 3), "nearest"), f32("B", "2*H", "W", 3)),
        (lambda x: resize(x, (x.shape[0], x.shape[1] // 2, x.shape[2], 3), "linear"), f32("B", "2*H", "W", 3)),
        (lambda x: resize(x, (x.shape[0], 2 * x.shape[1] + 1, x.shape[2], 3), "linear"), f32("B", "H", "W", 3)),
        (lambda x: resize(x, (x.shape[0], 8, 8, 3), "linear"), f32("B", "H", "W", 3)),
        (enlarged("linear", 2, 2, 1, 1), f32("B", "H", "W", 3)),
        (enlarged("linear", 2, 2), f32("H", "W")),
        (enlarged("nearest", 1, 2, 2, 1), spec("B", "H", "W", 3, dtype=np.float16)),
        (jax.grad(lambda x: jnp.sum(enlarged("linear", 1, 2, 2, 1)(x) ** 2)), f32("B", "H", 3, 2)),
    ],
)
def test_as_jax_computes_it(fn, given):
    assert "Resize" not in operators(check(fn, given, rtol=1e-4, atol=1e-4))


def named(fn):
    """A function that is called as the compiled part of `jax.image.resize` is."""
    fn.__name__ = "_resize"
    return jax.jit(fn)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (named(jnp.sum), {"ReduceSum": 1}),
        (named(lambda x: jnp.tanh(x)), {"Tanh": 1}),
        (named(lambda x: (x, x + 1)), {"Add": 1, "Identity": 1}),
        (lambda x: jnp.tanh(resize(x, x.shape, "linear")), {"Tanh": 1}),
        (named(lambda x: jnp.concatenate([x, x], axis=1)), {"Concat": 1}),
    ],
)
def test_other_functions(fn, expected):
    assert operators(check(fn, f32("B", "H", "W", 3))) == expected
