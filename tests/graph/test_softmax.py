from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxport.jaxprs import release
from jaxport.testing import boolean, check, f32, f64, spec
from tests.export.passes.fusions import operators, report

INF, NAN = np.inf, np.nan
VIEWS = {"Reshape": 1, "Unsqueeze": 1} if release >= (0, 10) else {"Reshape": 2}  # of a product with a batch of one
ODD = np.array(
    [[1, 2, 3], [NAN, 1, 2], [1, NAN, 2], [1, 2, NAN], [INF, 1, 2], [-INF, -INF, -INF], [-INF, 1, 2], [3e38, -3e38, 0]],
    np.float32,
)


def by_hand(x):
    exponential = jnp.exp(x - x.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


def log_by_hand(x):
    shifted = x - jnp.max(x, axis=1, keepdims=True)
    return shifted - jnp.log(jnp.exp(shifted).sum(1, keepdims=True))


def exponential_used_twice(x):
    exponential = jnp.exp(x - x.max(-1, keepdims=True))
    return exponential / exponential.sum(-1, keepdims=True) + exponential


@pytest.mark.parametrize(
    ("fn", "specs", "expected"),
    [
        (jax.nn.softmax, [f32("B", 5)], {"Softmax": 1}),
        (lambda x: jax.nn.softmax(x, axis=1), [f32("B", 5, 3)], {"Softmax": 1}),
        (by_hand, [f32("B", "T")], {"Softmax": 1}),
        (jax.vmap(jax.vmap(jax.nn.softmax)), [f32("B", 5, 4)], {"Softmax": 1}),
        (jax.vmap(jax.nn.softmax, in_axes=1, out_axes=1), [f32(4, "B", 3)], {"Softmax": 1}),
        (lambda x: nn.softmax(x, axis=0), [f32(3, "B")], {"Softmax": 1}),
        (jax.nn.softmax, [spec("B", 5, dtype=np.float16)], {"Softmax": 1}),
        (jax.nn.log_softmax, [f32("B", 5)], {"LogSoftmax": 1}),
        (log_by_hand, [f32("B", 5, 3)], {"LogSoftmax": 1}),
        (lambda x: jax.nn.softmax(jax.nn.softmax(x)), [f32("B", 5)], {"Softmax": 2}),
        (lambda x: jax.lax.map(jax.nn.softmax, x), [f32("B", 5)], {"Softmax": 1, "Scan": 1}),
        (lambda x: jax.nn.softmax(x.reshape(-1, 12)), [f32("B", 3, 4)], {"Reshape": 1, "Softmax": 1}),
        (lambda x: jax.nn.log_softmax(x.reshape(2, 12)), [f32(2, 3, 4)], {"Reshape": 1, "LogSoftmax": 1}),
        (lambda x: jax.nn.softmax(x.reshape(-1, 2, 6), 1), [f32("B", 3, 4)], {"Reshape": 1, "Softmax": 1}),
        (lambda x: jax.nn.softmax(x.reshape(-1, 4), 0), [f32("B", 4)], {"Softmax": 1}),
        (
            lambda x: jax.nn.softmax(x @ x / 4),
            [f32(1, 6, 6)],
            {**VIEWS, "MatMul": 1, "Div": 1, "Softmax": 1},
        ),
    ],
)
def test_recognised(fn, specs, expected):
    assert operators(check(fn, *specs)) == expected


@pytest.mark.parametrize("fn", [jax.nn.softmax, jax.nn.log_softmax])
def test_not_a_number_and_infinity(fn):
    check(fn, f32(*ODD.shape), values=[ODD])


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: jax.nn.softmax(x, axis=(1, 2)), "Softmax is over one axis, this is over 2"),
        (lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True), "nothing to do"),
        (lambda x: jnp.exp(x - x.max(1, keepdims=True)) / jnp.exp(x - x.max(1, keepdims=True)).sum(2, keepdims=True), "nothing to do"),
        (lambda x: jnp.exp(x - x.max(2, keepdims=True)) / jnp.exp(x - x.max(2, keepdims=True)).sum(1, keepdims=True), "nothing to do"),
        (exponential_used_twice, "in it is used elsewhere too"),
    ],
)  # fmt: skip
def test_declined(fn, reason):
    exported = check(fn, f32("B", 4, 4))
    assert "Softmax" not in operators(exported)
    assert reason in report(exported, "softmax")


def test_chosen_elements_are_something_else():
    exported = check(lambda x, where: jax.nn.softmax(x, where=where), f32("B", 5), boolean("B", 5))
    assert "Softmax" not in operators(exported)


def test_double_precision_log_softmax_would_lose_nan():
    exported = check(jax.nn.log_softmax, f64(*ODD.shape), values=[ODD.astype(np.float64)], double_precision=True)
    assert "1 declined: the runtime's LogSoftmax of DOUBLE loses NaN" in report(exported, "softmax")
