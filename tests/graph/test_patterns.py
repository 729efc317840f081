from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.graph.patterns import Pattern

F32 = np.dtype("float32")


def pattern(function):
    return Pattern.of(function, F32, 23)


@pytest.mark.parametrize(
    ("looked_for", "written"),
    [
        (lambda x: 2 * x * jnp.exp(x), lambda x: jnp.exp(x) * (x * 2)),
        (lambda x: 2 * x * jnp.exp(x), lambda x: x / 0.5 * jnp.exp(x)),
        (lambda x: jnp.sin(x) - x, lambda x: -x + jnp.sin(x)),
        (lambda x: x**3 + jnp.sin(x), lambda x: x * x * x + jnp.sin(x)),
        (lambda x: x**3 + jnp.sin(x), lambda x: jnp.sin(x) - lax.pow(-x, jnp.float32(3))),
        (lambda x: x**2 + jnp.sin(x), lambda x: jnp.sin(x) + lax.pow(-x, jnp.float32(2))),
        (lambda x: jnp.maximum(x, 1), lambda x: jnp.maximum(1, x)),
        (lambda x: jnp.exp(-x / 3), lambda x: jnp.exp(x * (-1 / 3))),
    ],
)
def test_the_same_in_other_words(looked_for, written):
    one, other = pattern(looked_for), pattern(written)
    match = one.match(other.result)
    assert match is not None
    assert match.x is other.inputs[0]


@pytest.mark.parametrize(
    ("looked_for", "written"),
    [
        (lambda x: jnp.sin(x) - x, lambda x: x - jnp.sin(x)),
        (lambda x: x / jnp.exp(x), lambda x: jnp.exp(x) / x),
        (lambda x: x**3 + jnp.sin(x), lambda x: x**2 + jnp.sin(x)),
        (lambda x: x**3 + jnp.sin(x), lambda x: lax.pow(x, jnp.float32(2.5)) + jnp.sin(x)),
        (lambda x: x**3 + jnp.sin(x), lambda x: lax.pow(-x, jnp.float32(3)) + jnp.sin(x)),
        (lambda x: 2 * x * jnp.exp(x), lambda x: 2.1 * x * jnp.exp(x)),
        (lambda x: x * jnp.exp(x), lambda x: x * jnp.exp(jnp.flip(x))),
        (lambda x: jnp.where(x > 0, x, 1), lambda x: jnp.where(x > 0, 1, x)),
        (lambda x: jnp.exp(x) * 0, lambda x: jnp.exp(x) * 1),
    ],
)
def test_something_else(looked_for, written):
    assert pattern(looked_for).match(pattern(written).result) is None


@pytest.mark.parametrize(("slope", "found"), [(0.25, 0.25), (1.0, 1.0), (-3.0, -3.0)])
def test_parameters_are_found(slope, found):
    looked_for = pattern(lambda x, *, alpha: jnp.where(x > 0, x, alpha * jnp.sin(x)))
    match = looked_for.match(pattern(lambda x: jnp.where(x > 0, x, slope * jnp.sin(x))).result)
    assert match is not None
    assert match.parameters == {"alpha": pytest.approx(found)}


def test_a_parameter_has_one_value():
    looked_for = pattern(lambda x, *, a: jnp.sin(x) * a + jnp.cos(x) * a)
    assert looked_for.match(pattern(lambda x: jnp.sin(x) * 2 + jnp.cos(x) * 2).result) is not None
    assert looked_for.match(pattern(lambda x: jnp.sin(x) * 2 + jnp.cos(x) * 3).result) is None


def test_long_patterns_that_fail_at_the_very_end_fail_soon():
    """Sums and products may be read in several ways: not in all combinations."""

    def nested(x, last):
        for _ in range(60):
            x = (x * 0.5 + 1) * jnp.maximum(x, 2)
        return x + last

    one, other = pattern(lambda x: nested(lax.erf(x), 3.0)), pattern(lambda x: nested(lax.erf(x), 3.5))
    started = time.perf_counter()
    assert one.match(other.result) is None
    assert one.match(one.result) is not None
    assert time.perf_counter() - started < 2


def test_the_longest_pattern_matches_soon():
    gelu = pattern(lambda x: jax.nn.gelu(x, approximate=False))
    started = time.perf_counter()
    assert gelu.match(gelu.result) is not None
    assert time.perf_counter() - started < 2
