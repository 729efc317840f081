"""What does not change inside of a loop is computed before it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxport
from jaxport.export.passes import DEFAULT
from jaxport.export.passes.hoisting import hoisting
from jaxport.testing import boolean, check, f32, i32
from tests.exports import operators


def bodies(exported):
    """The operators in the bodies of the loops of a model, the outer ones first."""
    loops = [node for node in exported.model.graph.all_nodes() if node.op_type in ("Loop", "Scan")]
    return [[inner.op_type for inner in loop.attributes["body"].as_graph()] for loop in loops]


def report(exported):
    return next(r.text for r in exported.pass_reports if r.name == "hoisting")


def masked(x):
    def step(h, row):
        mask = jnp.arange(h.shape[0]) < h.shape[0] // 2
        return jnp.where(mask, h * row, h), None

    return lax.scan(step, x, jnp.arange(3.0))[0]


def test_a_mask_is_made_once():
    exported = check(masked, f32("T"))
    assert bodies(exported) == [["Mul", "Where"]]
    assert report(exported).endswith("nodes moved out of loops")


def test_it_can_be_switched_off():
    exported = jaxport.to_onnx(masked, [("T",)], passes=[p for p in DEFAULT if p is not hoisting])
    assert "Range" in bodies(exported)[0]


def test_out_of_nested_loops():
    def nested(x, w):
        inner = lambda c: lax.fori_loop(0, 4, lambda _, d: d + jnp.tanh(w) + jnp.tanh(c), c)
        return lax.fori_loop(0, 3, lambda _, c: inner(c), x)

    exported = check(nested, f32(4), f32(4))
    assert [body.count("Tanh") for body in bodies(exported)] == [1, 0]
    assert operators(exported).count("Tanh") == 1


def test_out_of_a_loop_that_may_take_no_step():
    values = [np.int32(0), np.ones(3, np.float32)]
    check(lambda n, w: lax.fori_loop(0, n, lambda _, c: c + jnp.tanh(w), w), i32(), f32(3), values=values)


def test_branches_keep_what_only_they_need():
    exported = check(lambda c, x: lax.cond(c, jnp.tanh, lambda x: x, x), boolean(), f32("B"))
    assert report(exported) == "nothing to do"
    assert operators(exported) == ["If"]


def test_what_a_body_returns_stays():
    check(lambda x, w: lax.scan(lambda c, r: (c + r, jnp.tanh(w)), 0.0, x), f32("T"), f32("B"))
