"""Nodes that compute the same are one, and those that do not stay."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxport.export.passes.repeated import repeated
from jaxport.testing import check, expect_graph, f32

CASES = {
    "the same twice": (lambda x: jnp.tanh(x) + jnp.exp(jnp.tanh(x)), {"Tanh": 1}),
    "operands in another order": (lambda x: jnp.sin(x + x[0]) * jnp.cos(x[0] + x), {"Add": 1}),
    "operands that may not change places": (lambda x: jnp.sin(x - x[0]) * jnp.cos(x[0] - x), {"Sub": 2}),
    "equal constants": (lambda x: jnp.sin(x * 3.5) + jnp.cos(x * 3.5), {"Mul": 1}),
    "other constants": (lambda x: jnp.sin(x * 3.5) + jnp.cos(x * 2.5), {"Mul": 2}),
    "other attributes": (lambda x: x.argmax(0).sum() + x.argmax(1).sum(), {"ArgMax": 4}),
}


@pytest.mark.parametrize(("fn", "counts"), CASES.values(), ids=CASES)
def test_cases(fn, counts):
    exported = check(fn, f32("B", 3), without={"empty": "of the indices"})
    expect_graph(exported, counts=counts)
    assert repeated(exported.model) == "nothing to do"  # it has run
