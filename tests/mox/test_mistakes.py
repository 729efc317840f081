"""Mistakes that are easily made: each has an answer that says what to do."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from flax import nnx

import jaxport
from jaxport.mox import dora, ia3, lora, merge_lora, quantize, write_back

X = jnp.ones((2, 4))


@pytest.fixture
def mox():
    return jaxport.make_mox(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))(X)


@pytest.mark.parametrize("edit", [lora, dora, ia3, quantize])
def test_an_edit_that_is_not_called(mox, edit):
    with pytest.raises(jaxport.InvalidArgument, match=f"`{edit.__name__}` must be called first"):
        mox.sub("//Linear", edit)


def test_an_edit_that_is_called_with_a_mox(mox):
    with pytest.raises(jaxport.InvalidArgument, match=r"`mox.sub\(query, factory\)`"):
        lora(2)(mox)


def test_a_class_in_the_place_of_a_model():
    with pytest.raises(jaxport.InvalidArgument, match="`Linear` is a class"):
        jaxport.make_mox(nnx.Linear)(X)


def test_another_model(mox):
    other = nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))
    with pytest.raises(jaxport.InvalidArgument, match="give the model that was traced"):
        write_back(other, mox)
    with pytest.raises(jaxport.InvalidArgument, match="`Conv` has float32"):
        write_back(nnx.Conv(4, 3, (2,), rngs=nnx.Rngs(0)), mox)


NESTED = {"linear": {"kernel": jnp.ones((4, 4))}}


@pytest.mark.parametrize(
    "use",
    [
        lambda mox: mox.apply(NESTED, X),
        lambda mox: mox.with_params(NESTED),
        lambda mox: write_back(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), NESTED),
        lambda mox: merge_lora(mox.sub("//Linear", lora(2)), NESTED),
    ],
)
def test_a_nested_dict_of_parameters(mox, use):
    with pytest.raises(jaxport.InvalidArgument, match="full paths"):
        use(mox)


@pytest.mark.parametrize("kind", [nnx.LinearGeneral, int])
def test_a_class_that_matches_nothing(mox, kind):
    with pytest.raises(jaxport.QueryError, match="no module of the class"):
        mox.select(kind)
    assert mox.select(kind, strict=False).count() == 0


def test_a_class_that_is_nearly_there(mox):
    with pytest.raises(jaxport.QueryError, match="there is `Linear`"):
        mox.select(nnx.LinearGeneral)


def test_nothing_to_unroll(mox):
    with pytest.raises(jaxport.QueryError, match="nothing would be unrolled"):
        mox.unroll()
