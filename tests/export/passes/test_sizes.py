"""A shape is read from a value that has it, if there is one."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax import lax

from jaxport.testing import check, f32
from tests.exports import operators


def halved_and_split(x):
    """An image of half the size, with its rows in one axis and back again."""
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.cumsum(x.reshape(x.shape[0], -1), axis=1).reshape(x.shape)


CASES = {
    "the shape of an inner value": (halved_and_split, f32("B", 3, "2*H", "2*W"), {"Shape": 1}),
    "the shape of the input": (
        lambda x: jnp.cumsum(x.reshape(-1)).reshape(x.shape),
        f32("B", 3, "H"),
        {"Shape": 1, "Concat": 0},
    ),
    "a run of sizes": (lambda x: x.reshape(*x.shape[:2], 2, 3, 1) * 2, f32("B", "T", 6), {"Shape": 0, "Concat": 0}),
    "sizes that nothing has": (
        lambda x: x.reshape(-1).reshape(x.shape[1], x.shape[0], 2),
        f32("B", "T", 2),
        {"Shape": 2, "Concat": 1},
    ),
}


@pytest.mark.parametrize(("fn", "spec", "counts"), CASES.values(), ids=CASES)
def test_cases(fn, spec, counts):
    exported = check(fn, spec, without={"empty": "of the rules"})
    found = operators(exported)
    assert {name: found.count(name) for name in counts} == counts
