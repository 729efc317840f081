"""A weight that is used in several forms is stored once, and the values stay."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.export.passes import DEFAULT
from jaxport.export.passes.tied import tied
from jaxport.testing import check, expect_graph, f32, i32

GENERATOR = np.random.default_rng(3)
TABLE = jnp.asarray(GENERATOR.normal(size=(30, 16)).astype(np.float32))
IDS = i32("B", "T")


def stored(exported):
    """The shapes of the large initializers."""
    values = exported.model.graph.initializers.values()
    return sorted(tuple(value.shape) for value in values if value.const_value.nbytes > 1024)


FORMS = {
    "a head": lambda ids: jnp.tanh(TABLE[ids]) @ TABLE.T,
    "the same form": lambda ids: TABLE[ids] + TABLE[ids + 1],
    "in heads": lambda ids: jnp.einsum("btd,dnh->btnh", TABLE[ids], TABLE.T.reshape(16, 5, 6)),
    "reshaped": lambda ids: TABLE[ids].sum() * TABLE.reshape(5, 6, 16),
    "turned and reshaped": lambda ids: TABLE[ids].sum() * TABLE.reshape(5, 6, 16).transpose(2, 0, 1),
    "three times": lambda ids: (jnp.tanh(TABLE[ids]) @ TABLE.T) @ TABLE.reshape(30, 4, 4).reshape(30, 16),
}


@pytest.mark.parametrize("fn", FORMS.values(), ids=FORMS)
def test_forms_of_one_weight(fn):
    exported = check(fn, IDS, without={"empty": "of the rules"}, rtol=1e-4, atol=1e-4)
    assert stored(exported) == [(30, 16)]


def test_a_tied_head():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.words = nnx.Embed(40, 12, rngs=rngs)

        def __call__(self, ids):
            return self.words.attend(nnx.relu(self.words(ids)))

    exported = check(Model(nnx.Rngs(0)), IDS)
    expect_graph(exported, ["Transpose -> MatMul"])
    assert [v.name for v in exported.model.graph.initializers.values() if v.const_value.nbytes > 1024] == [
        "words.embedding"
    ]
    apart = jaxport.to_onnx(Model(nnx.Rngs(0)), [IDS], passes=[p for p in DEFAULT if p is not tied])
    assert stored(apart) == [(12, 40), (40, 12)]


def test_a_kernel_in_two_layouts():
    kernel = jnp.asarray(GENERATOR.normal(size=(16, 20)).astype(np.float32))
    images = jnp.asarray(GENERATOR.normal(size=(3, 3, 4, 16)).astype(np.float32))
    conv = lambda x: nnx.tanh(nnx.relu(x) @ kernel)
    outside = {"float64": "the weights are float32"}
    check(lambda x: (conv(x), jnp.tanh(x @ kernel) @ kernel.T, images), f32("B", 5, 6, 16), without=outside, rtol=1e-4)


APART = {
    "another weight that is equal": lambda x: (x @ TABLE) @ jnp.asarray(np.array(TABLE)).T,
    "a slice of it": lambda x: (x @ TABLE) @ TABLE[:20].T,
    "one form": lambda x: x @ TABLE,
}


@pytest.mark.parametrize("fn", APART.values(), ids=APART)
def test_what_is_no_form_of_another_weight(fn):
    exported = check(fn, f32("B", 30), without={"float64": "the weights are float32"})
    (report,) = (r.text for r in exported.pass_reports if r.name == "tied")
    assert report == "nothing to do"


def test_small_constants_are_stored_as_they_are_used():
    small = jnp.asarray(GENERATOR.normal(size=(4, 5)).astype(np.float32))
    exported = check(lambda x: jnp.tanh(x @ small) @ small.T, f32("B", 4))
    expect_graph(exported, counts={"Transpose": 0})
