"""Edits of the structure written back into objects of NNX and Equinox, and what no such object can do."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.mox import cast, dora, lora, quantize, write_back

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return self.head(x)


class EqxNet(eqx.Module):
    layers: list
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.layers = [eqx.nn.Linear(4, 4, key=k) for k in keys[:2]]
        self.head = eqx.nn.Linear(4, 3, key=keys[2])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return self.head(x)


MODELS = {"nnx": lambda: NnxNet(nnx.Rngs(0)), "equinox": lambda: EqxNet(jax.random.key(0))}
LINEARS = {
    "nnx": lambda size, bias=True: nnx.Linear(4, size, use_bias=bias, rngs=nnx.Rngs(7)),
    "equinox": lambda size, bias=True: eqx.nn.Linear(4, size, use_bias=bias, key=jax.random.key(7)),
}
each = pytest.mark.parametrize("name", MODELS)


def traced(name):
    model = MODELS[name]()
    x = X if name == "nnx" else X[0]
    return model, x, jaxport.make_mox(model)(x)


def changed(mox):
    return mox.with_params({path: value + 0.1 for path, value in mox.params.items()})


@each
@pytest.mark.parametrize(("path", "size", "bias"), [("head", 5, True), ("head", 3, False), ("layers.1", 4, False)])
def test_another_module_in_a_field(name, path, size, bias):
    model, x, mox = traced(name)
    before = mox(x)
    edited = changed(mox.sub(path, LINEARS[name](size, bias)))
    written = write_back(model, edited)
    np.testing.assert_allclose(written(x), edited(x), rtol=1e-6)
    assert type(written) is type(model)
    np.testing.assert_array_equal(model(x), before)
    again = jaxport.make_mox(written)(x)
    assert again.params.keys() == edited.params.keys()


@each
def test_several_and_adapters(name):
    model, x, mox = traced(name)
    edited = mox.sub("head", LINEARS[name](6)).sub("layers.0", LINEARS[name](4, False))
    edited = changed(edited.sub("//Linear", lora(rank=2)))
    np.testing.assert_allclose(write_back(model, edited)(x), edited(x), rtol=1e-5, atol=1e-6)


@each
@pytest.mark.parametrize("edit", [lora, dora])
def test_adapters_are_merged(name, edit):
    model, x, mox = traced(name)
    edited = changed(mox.sub("//Linear", edit(2)))
    np.testing.assert_allclose(write_back(model, edited)(x), edited(x), rtol=1e-5, atol=1e-6)


@each
def test_the_last_replacement_of_a_module_counts(name):
    model, x, mox = traced(name)
    edited = mox.sub("head", LINEARS[name](6)).sub("head", LINEARS[name](7))
    written = write_back(model, edited)
    assert written(x).shape[-1] == 7
    np.testing.assert_allclose(written(x), edited(x), rtol=1e-6)


@each
def test_a_module_that_is_changed_later_is_not_looked_at(name):
    model, x, mox = traced(name)
    new = LINEARS[name](4)
    edited = mox.sub("layers.0", new)
    if name == "nnx":
        new.kernel[...] = jnp.zeros((4, 4))
    np.testing.assert_allclose(write_back(model, edited)(x), edited(x), rtol=1e-6)


@pytest.mark.parametrize("name", ["nnx", "equinox"])
def test_shared_modules_change_in_all_their_places(name):
    linear = LINEARS[name](4)
    model, x = (nnx.Sequential(linear, linear), X) if name == "nnx" else (eqx.nn.Sequential([linear, linear]), X[0])
    mox = jaxport.make_mox(model)(x)
    edited = changed(mox.sub("//Linear", LINEARS[name](4, False)))
    np.testing.assert_allclose(write_back(model, edited)(x), edited(x), rtol=1e-6)
    np.testing.assert_allclose(write_back(model, changed(mox))(x), changed(mox)(x), rtol=1e-6)


@each
@pytest.mark.parametrize(
    "edit",
    [
        lambda mox, new, x: mox.sub("//tanh", jnp.sin),
        lambda mox, new, x: mox.sub("head", quantize()),
        lambda mox, new, x: mox.select("head").after(lambda y: 2 * y),
        lambda mox, new, x: mox.sub("head", jaxport.make_mox(new)(x)),
        lambda mox, new, x: mox.sub("head", new).select("head").after(lambda y: 2 * y),
        lambda mox, new, x: mox.sub("//Linear", lora(rank=2)).sub("/*/*", cast(jnp.bfloat16)),
        lambda mox, new, x: mox.sub("head", new).sub("(//tanh)[1]", jnp.sin),
        lambda mox, new, x: mox.sub("head", new).sub("layers.0", lambda h: h),
        lambda mox, new, x: mox.sub("head", jaxport.make_mox(new)(x)).sub("layers.0", lora(rank=2)),
    ],
)
def test_what_no_module_does_is_refused(name, edit):
    model, x, mox = traced(name)
    edited = edit(mox, LINEARS[name](3), x)
    with pytest.raises(jaxport.InvalidArgument, match=r"does not compute what the edited Mox computes|no place|merge"):
        write_back(model, edited)


def test_one_of_two_calls_of_a_module_is_refused():
    class Twice(nnx.Module):
        def __init__(self, rngs):
            self.one = nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x):
            return self.one(self.one(x))

    model = Twice(nnx.Rngs(0))
    edited = jaxport.make_mox(model)(X).sub("(//Linear)[1]", LINEARS["nnx"](4))
    with pytest.raises(jaxport.InvalidArgument, match="in only some of its calls"):
        write_back(model, edited)


def test_what_was_read_from_a_file_is_refused(tmp_path):
    model, _, mox = traced("nnx")
    mox.sub("head", LINEARS["nnx"](5)).save(tmp_path / "model.json")
    with pytest.raises(jaxport.InvalidArgument, match="does not compute"):
        write_back(model, jaxport.mox.load(tmp_path / "model.json"))
    mox.save(tmp_path / "plain.json")
    np.testing.assert_array_equal(write_back(model, jaxport.mox.load(tmp_path / "plain.json"))(X), model(X))


def test_a_function_has_no_fields():
    linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    function = lambda x: jnp.tanh(linear(x))
    edited = jaxport.make_mox(function)(X).sub("//Linear", LINEARS["nnx"](3))
    with pytest.raises(jaxport.InvalidArgument, match=r"no place|cannot hold another module"):
        write_back(function, edited)


class Tied(nnx.Module):
    """Two layers that share a kernel, and statistics."""

    def __init__(self, rngs):
        self.one, self.other = nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)
        self.other.kernel = self.one.kernel
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.norm(jnp.tanh(self.one(x))) + 2 * self.other(x)


class TiedArrays(eqx.Module):
    one: eqx.Module
    other: eqx.Module

    def __call__(self, x):
        return jnp.tanh(self.one(x)) + 2 * self.other(x)


def tied(name):
    if name == "nnx":
        return Tied(nnx.Rngs(0)), X
    layers = [eqx.nn.Linear(4, 4, key=jax.random.key(number)) for number in range(2)]
    return TiedArrays(layers[0], eqx.tree_at(lambda layer: layer.weight, layers[1], layers[0].weight)), X[0]


@each
@pytest.mark.parametrize("place", ["one", "other"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_module_whose_kernel_is_shared_is_replaced(name, place, bias):
    model, x = tied(name)
    edited = jaxport.make_mox(model)(x).sub(place, LINEARS[name](4, bias))
    values = {**edited.params, **edited.state}
    edited = edited.with_params({path: value + 0.1 * (1 + i) for i, (path, value) in enumerate(values.items())})
    np.testing.assert_allclose(write_back(model, edited)(x), edited(x), rtol=1e-6)


@pytest.mark.parametrize("edit", [lambda mox: mox, lambda mox: mox.sub("one", lora(rank=2))], ids=["plain", "lora"])
def test_statistics_are_written(edit):
    model = Tied(nnx.Rngs(0))
    model.other = nnx.Linear(4, 4, rngs=nnx.Rngs(1))
    mox = edit(jaxport.make_mox(model)(X))
    for _ in range(3):
        _, state = mox.apply({}, X, state=True)
        mox = mox.with_params(state)
    written = write_back(model, mox)
    for path in ("mean", "var"):
        np.testing.assert_array_equal(getattr(written.norm, path)[...], mox.state[f"norm.{path}"])
        assert not np.allclose(getattr(model.norm, path)[...], mox.state[f"norm.{path}"])
    np.testing.assert_allclose(written(X), mox(X), rtol=1e-6)


def test_a_constant_that_was_given_has_no_place():
    table = jnp.arange(4.0)
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    mox = jaxport.make_mox(lambda x: model(x) + table)(X)
    (path,) = mox.state
    np.testing.assert_array_equal(write_back(model, mox)(X), model(X))
    with pytest.raises(jaxport.InvalidArgument, match=f"no place for 1 parameters, `{path}` first"):
        write_back(model, mox.with_params({path: 2 * table}))
