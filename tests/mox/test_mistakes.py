"""Mistakes that are easily made: each has an answer that says what to do."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxport
from jaxport.mox import cast, dora, ia3, lora, merge_lora, prune, qdq, quantize, write_back

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


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda mox: lora("2"), "rank='2' is not a valid rank"),
        (lambda mox: lora(2.5), "rank=2.5"),
        (lambda mox: lora(True), "rank=True"),
        (lambda mox: dora(0), "rank=0"),
        (lambda mox: lora(alpha="x"), "alpha='x'"),
        (lambda mox: lora(alpha=float("nan")), "alpha=nan"),
        (lambda mox: lora(seed="x"), "seed='x'"),
        (lambda mox: lora(name=3), "`3` is not a valid name"),
        (lambda mox: lora(weights="kernel"), "weights='kernel' is not a function"),
        (lambda mox: dora(weights="kernel"), "weights='kernel' is not a function"),
        (lambda mox: ia3(weights=["kernel"]), "is not a function"),
        (lambda mox: cast("float33"), "'float33' is not a dtype"),
        (lambda mox: cast(None), "None is not a dtype"),
        (lambda mox: prune("x"), "fraction='x'"),
        (lambda mox: mox.sub("//Linear", quantize(axis=7)), "axis=7 is out of range"),
        (lambda mox: mox.sub("//Linear", quantize(axis=-3)), "axis=-3 is out of range"),
        (lambda mox: quantize(axis="x"), "axis='x'"),
        (lambda mox: quantize(group="x"), "group='x'"),
        (lambda mox: qdq("x"), "scale='x'"),
        (lambda mox: qdq(0), "scale=0"),
        (lambda mox: qdq({"": -1.0}), "scale=-1.0"),
        (lambda mox: qdq(jnp.zeros(())), "scale="),
        (lambda mox: mox.with_params([1]), "the parameters are a `list`"),
        (lambda mox: mox.with_params({"kernel": "x"}), "`kernel` is given a `str`"),
        (lambda mox: mox.apply([1], X), "the parameters are a `list`"),
        (lambda mox: mox[3], "3 is not the path of a block"),
        (lambda mox: mox[""][3], "3 is not the path of a block"),
    ],
)
def test_arguments_of_other_kinds(mox, use, text):
    with pytest.raises(jaxport.InvalidArgument, match=text):
        use(mox)


def test_pickling(mox):
    keyed = jaxport.make_mox(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))(X)
    for one in (mox, mox.sub("//Linear", lora(2)), mox[""], keyed):
        again = pickle.loads(pickle.dumps(one))
        assert jnp.array_equal(again(X), one(X))
        assert again.params.keys() == one.params.keys()
    assert copy.deepcopy(mox) is mox
    assert copy.copy(mox) is mox


def test_what_cannot_be_pickled():
    def program(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(jaxport.Unsupported, match="pure_callback"):
        pickle.dumps(jaxport.make_mox(program)(X))


def test_a_traced_value_is_not_one_that_was_baked_in():
    mox = jaxport.make_mox(lambda x, scale: x * scale)(jnp.ones(2), 1.0)
    for call in (lambda s: mox(jnp.ones(2), s).sum(), lambda s: mox(jnp.ones(2), s * jnp.ones(2)).sum()):
        with pytest.raises(jaxport.InvalidArgument, match="baked in when it was traced"):
            jax.grad(call)(1.0)
    with pytest.raises(jaxport.InvalidArgument, match="or with an array"):
        mox(jnp.ones(2), jnp.ones(2))


def test_a_mask_of_no_parameter_is_refused():
    mox = jaxport.make_mox(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))(jnp.ones((2, 4)))
    for which in (lambda path: "lora" in path, "//add"):
        with pytest.raises(jaxport.QueryError, match="chooses no parameter"):
            jaxport.mox.trainable(mox, which)
