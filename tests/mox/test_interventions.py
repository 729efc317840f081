"""Patches and captures: of values, functions, inputs and gradients, under `vmap` and in loops."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from tests.mox.test_modules import NnxStack, Recurrent
from tests.mox.test_trust import Shared

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 8, rngs=rngs)
        self.down = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jnp.tanh(self.up(x)))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(3)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(scope="module")
def model():
    return Model(nnx.Rngs(0))


@pytest.fixture(scope="module")
def mox(model):
    return jaxport.make_mox(model)(X)


def test_values_and_functions_take_the_place_of_results(model, mox):
    value = jnp.full((2, 4), 0.5)
    patched = mox.patch({"blocks.1": value, "blocks.2.up": lambda y: 0 * y})
    down = model.blocks[2].down
    np.testing.assert_allclose(patched(X), value + down(jnp.zeros((2, 8))), rtol=1e-6)
    assert patched.params.keys() < mox.params.keys()
    np.testing.assert_allclose(mox.patch({"//Block": 0.0})(X), jnp.zeros((2, 4)))
    same = mox.patch(mox.capture("//Block")(X))
    np.testing.assert_allclose(same(2 * X), mox(X), rtol=1e-6)


def test_all_layers_and_positions_are_patched_by_one_vmap(mox):
    clean = mox.capture("//Block")(X)["blocks.0"]

    def run(row):
        return mox.patch({"blocks.0": lambda y: y.at[row].set(clean[row])})(2 * X)

    rows = jax.vmap(run)(jnp.arange(2))
    np.testing.assert_allclose(rows[0, 0], mox(X)[0], rtol=1e-5)
    np.testing.assert_allclose(rows[0, 1], mox(2 * X)[1], rtol=1e-5)
    values = jnp.stack([clean, 2 * clean])
    both = jax.jit(jax.vmap(lambda value: mox.patch({"blocks.0": value})(X)))(values)
    np.testing.assert_allclose(both[0], mox(X), rtol=1e-5)
    gradient = jax.grad(lambda value: mox.patch({"blocks.2": value})(X).sum())(clean)
    np.testing.assert_array_equal(gradient, jnp.ones((2, 4)))


def test_a_patch_under_vmap_is_of_the_whole_batch():
    linear = eqx.nn.Linear(4, 3, key=jax.random.key(0))
    mox = jaxport.make_mox(jax.vmap(linear))(X)
    captured = mox.capture("//Linear")(X)
    np.testing.assert_allclose(mox.patch(captured)(2 * X), mox(X), rtol=1e-6)
    np.testing.assert_allclose(mox.patch({"//Linear": lambda y: y.at[0].set(0)})(X)[0], jnp.zeros(3))


def test_each_step_of_a_scan_has_its_own_value():
    mox = jaxport.make_mox(NnxStack(nnx.Rngs(0)))(X)
    captured = mox.capture("//Linear")(X)
    np.testing.assert_allclose(mox.patch(captured)(2 * X), mox(X), rtol=1e-6)
    found = mox.capture("//Linear", inputs=True, grads=lambda y: y.sum())(X)["layers"]
    assert found.grad.shape == found.output.shape == found.inputs[0].shape == (3, 2, 4)
    np.testing.assert_allclose(found.grad[2], 1 - jnp.tanh(found.output[2]) ** 2, rtol=1e-5)


def test_inputs_outputs_and_gradients_are_captured(model, mox):
    found = mox.capture("//Linear[@out_features=8]", inputs=True, grads=lambda y: (y**2).sum())(X)
    assert list(found) == ["blocks.0.up", "blocks.1.up", "blocks.2.up"]
    last = found["blocks.2.up"]
    np.testing.assert_allclose(model.blocks[2].up(last.inputs[0]), last.output, rtol=1e-6)

    def rest(up):
        return ((last.inputs[0] + model.blocks[2].down(jnp.tanh(up))) ** 2).sum()

    np.testing.assert_allclose(last.grad, jax.grad(rest)(last.output), rtol=1e-5)
    assert mox.capture("blocks.1", inputs=True)(X)["blocks.1"].grad is None


def test_the_calls_of_a_shared_module_have_gradients_of_their_own():
    mox = jaxport.make_mox(Shared(nnx.Rngs(0)))(X)
    first, second = mox.capture("//Linear", grads=lambda y: y.sum())(X)["one"]
    np.testing.assert_array_equal(second.grad, jnp.ones((2, 4)))
    np.testing.assert_allclose(first.grad, jnp.ones((2, 4)) @ mox.params["one.kernel"].T, rtol=1e-6)
    two = mox.patch({"//Linear": (first.output, 3.0)})
    np.testing.assert_array_equal(two(X), jnp.full((2, 4), 3.0))


def test_a_block_inside_of_a_replaced_one_stays_what_it_is(model, mox):
    parallel = lambda k: lambda x: x + k["down"](jnp.sin(k["up"](x)))
    edited = mox.sub("//Block", jaxport.mox.factory(parallel), expect=3)
    assert edited.params.keys() == mox.params.keys()
    wanted = X
    for block in model.blocks:
        wanted = wanted + block.down(jnp.sin(block.up(wanted)))
    np.testing.assert_allclose(jax.jit(edited)(X), wanted, rtol=1e-5)
    assert edited.select("//Linear").paths() == mox.select("//Linear").paths()
    assert edited["blocks.1.up"].params.keys() == {"blocks.1.up.kernel", "blocks.1.up.bias"}
    gradient = jax.grad(lambda p: edited.apply(p, X).sum())(edited.params)
    assert all(np.abs(np.asarray(value)).max() > 0 for value in gradient.values())
    again = edited.sub("//Linear", jaxport.mox.lora(rank=2))
    np.testing.assert_allclose(again(X), wanted, rtol=1e-5)
    tuned = jaxport.mox.write_back(model, {path: 2 * value for path, value in edited.params.items()})
    np.testing.assert_array_equal(tuned.blocks[0].up.kernel[...], 2 * model.blocks[0].up.kernel[...])
    with pytest.raises(jaxport.InvalidArgument, match=r"cannot be called inside the replacement(.|\n)*is given"):
        mox.sub("//Block", jaxport.mox.factory(lambda k: lambda x: k["down"](x)))


WRONG = {
    "shape": (lambda mox: mox.patch({"blocks.1": jnp.ones(3)}), jaxport.InvalidArgument, r"returns float32\[3\]"),
    "twice": (
        lambda mox: mox.patch({"blocks.1": 0.0, "//Block": 1.0}),
        jaxport.InvalidArgument,
        "`blocks.1` is patched twice",
    ),
    "path": (lambda mox: mox.patch({"blocks.7": 0.0}), jaxport.QueryError, "there is nothing at `blocks.7`"),
    "nothing": (
        lambda mox: mox.patch({"//Conv": 0.0}),
        jaxport.QueryError,
        "matches nothing, so nothing would be patched",
    ),
    "loss": (
        lambda mox: mox.capture("//Block", grads=lambda y: y)(X),
        jaxport.InvalidArgument,
        r"the loss is float32\[2,4\]",
    ),
    "loop": (
        lambda _: jaxport.make_mox(Recurrent(nnx.Rngs(0)))(X).capture("//Linear", grads=jnp.sum),
        jaxport.InvalidArgument,
        "runs in a loop whose steps share its parameters",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_intervention_is_refused(mox, name):
    run, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        run(mox)
