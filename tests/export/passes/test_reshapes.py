"""Reshapes that split axes go behind arithmetic with constants."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.export.passes.reshapes import reshapes
from jaxport.testing import check, expect_graph, f32

KERNEL = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8)), jnp.float32)
BIAS = jnp.arange(8.0).reshape(2, 4)


def test_a_bias_of_heads_is_added_before_they_are_split():
    heads = lambda x: (x @ KERNEL).reshape(-1, 2, 4) + BIAS
    exported = check(heads, f32("B", 6))
    expect_graph(exported, ["MatMul -> Add -> Reshape"])
    assert reshapes(exported.model) == "nothing to do"  # it has run


def test_what_is_split_and_merged_again_is_not_moved_at_all():
    merged = lambda x: ((x @ KERNEL).reshape(-1, 2, 4) + BIAS).reshape(-1, 8)
    expect_graph(check(merged, f32("B", 6)), ["MatMul -> Add"], counts={"Reshape": 0})


def test_a_reshape_that_others_use_stays_in_front():
    both = lambda x: ((split := (x @ KERNEL).reshape(-1, 2, 4)) + BIAS, split)
    expect_graph(check(both, f32("B", 6)), ["Reshape -> Add"])
