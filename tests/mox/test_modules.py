"""Modules that are stacked, shared, batched or stateful: what becomes of them, and of the parameters of their edits."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax import lax

import jaxport
from jaxport.mox import Replacement, factory, lora, merge_lora
from tests.blocks.checks import assert_same

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)
scaled = Replacement(lambda original, params, x: params["scale"] * original(x), {"scale": jnp.full(4, 1.5)})


# -- stacked layers ----------------------------------------------------------------------------------------------------


class NnxStack(nnx.Module):
    def __init__(self, rngs):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs):
            return nnx.Linear(4, 4, rngs=rngs)

        self.layers = make(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def step(x, layer):
            return jnp.tanh(layer(x))

        return step(x, self.layers)


class LinenStep(linen.Module):
    @linen.compact
    def __call__(self, x, _):
        return jnp.tanh(linen.Dense(4, name="layers")(x)), None


class LinenStack(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.scan(LinenStep, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(name="stack")(
            x, None
        )[0]


def eqx_stack():
    layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 4, key=key))(jax.random.split(jax.random.key(0), 3))
    dynamic, static = eqx.partition(layers, eqx.is_array)
    step = lambda x, layer: (jnp.tanh(jax.vmap(eqx.combine(layer, static))(x)), None)
    return lambda x: lax.scan(step, x, dynamic)[0]


def linen_stack():
    model = LinenStack()
    return functools.partial(model.apply, model.init(jax.random.key(0), X))


STACKS = {
    "nnx": (lambda: NnxStack(nnx.Rngs(0)), "//Linear"),
    "linen": (linen_stack, "//Dense"),
    "equinox": (eqx_stack, "//Linear"),
}


@pytest.mark.parametrize("name", STACKS)
def test_each_step_of_stacked_layers_has_its_own_new_parameters(name):
    make, query = STACKS[name]
    mox = jaxport.make_mox(make())(X)
    edited = mox.sub(query, scaled, expect=1)
    (new,) = set(edited.params) - set(mox.params)
    assert edited.params[new].shape == (3, 4)
    assert new.endswith("scale")
    scale = jnp.asarray([[1.0] * 4, [2.0] * 4, [0.5] * 4])
    kernel = next(k for k in mox.params if k.endswith(("kernel", "weight")))
    bias = next(k for k in mox.params if k.endswith("bias"))
    wanted = X
    for step in range(3):
        weight = mox.params[kernel][step]
        weight = weight.T if kernel.endswith("weight") else weight
        wanted = jnp.tanh(scale[step] * (wanted @ weight + mox.params[bias][step]))
    np.testing.assert_allclose(edited.apply({**edited.params, new: scale}, X), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STACKS)
def test_adapters_of_stacked_layers_differ_and_merge(name):
    make, query = STACKS[name]
    mox = jaxport.make_mox(make())(X)
    adapted = mox.sub(query, lora(rank=2))
    a = next(value for path, value in adapted.params.items() if path.endswith("lora_a"))
    assert a.shape == (3, 4, 2)
    assert not np.array_equal(a[0], a[1])
    numbers = np.random.default_rng(1)
    params = {
        path: jnp.asarray(numbers.normal(size=value.shape), jnp.float32) if path.endswith("lora_b") else value
        for path, value in adapted.params.items()
    }
    merged = mox.with_params(merge_lora(adapted, params))
    np.testing.assert_allclose(adapted.apply(params, X), merged(X), rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(merged(X) - mox(X))).max() > 1e-2


def test_steps_that_would_differ_in_what_they_do_are_refused():
    mox = jaxport.make_mox(NnxStack(nnx.Rngs(0)))(X)

    def make(match):
        total = float(match.param("kernel").sum())
        return lambda x: match(x) * total

    differing = factory(make)
    with pytest.raises(jaxport.InvalidArgument, match="differs between the steps of a scan"):
        mox.sub("//Linear", differing)


def test_equal_shapes_share_a_trace_but_no_config():
    mox = jaxport.make_mox(NnxStack(nnx.Rngs(0)))(X)
    with pytest.raises(jaxport.InvalidArgument, match="'Original' object has no attribute 'config'"):
        mox.sub("//Linear", Replacement(lambda original, params, x: original(x) * original.config["in_features"]))


def test_a_block_of_a_stack_is_looked_at_step_by_step():
    model = NnxStack(nnx.Rngs(0))
    match = jaxport.make_mox(model)(X).select("//Linear")[0]
    assert match.lengths == (3,)
    wanted = X @ model.layers.kernel[1] + model.layers.bias[1]
    np.testing.assert_allclose(match.step(1)(X), wanted, rtol=1e-6)
    with pytest.raises(jaxport.InvalidArgument, match=r"the input `layers.kernel` is missing"):
        match(X)
    with pytest.raises(jaxport.InvalidArgument, match=r"there is no step 3 of `layers`(.|\n)*it runs 3 times"):
        match.step(3)


class Recurrent(nnx.Module):
    def __init__(self, rngs):
        self.cell = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(None, nnx.Carry, None), out_axes=nnx.Carry, length=3)
        def step(cell, x, _):
            return jnp.tanh(cell(x))

        return step(self.cell, x, None)


def test_the_steps_of_a_recurrence_share_the_new_parameters():
    model = Recurrent(nnx.Rngs(0))
    edited = jaxport.make_mox(model)(X).sub("//Linear", scaled, expect=1)
    assert edited.params["cell.scale"].shape == (4,)
    wanted = X
    for _ in range(3):
        wanted = jnp.tanh(1.5 * model.cell(wanted))
    np.testing.assert_allclose(edited(X), wanted, rtol=1e-5)


# -- shared modules ----------------------------------------------------------------------------------------------------


class Shared(nnx.Module):
    def __init__(self, rngs):
        self.one = nnx.Linear(4, 4, rngs=rngs)
        self.two = self.one

    @nnx.jit
    def jitted(self, x):
        return self.two(self.one(x))

    def __call__(self, x):
        return self.two(self.one(x))


@pytest.mark.parametrize("method", ["__call__", "jitted"])
def test_calls_of_a_shared_module_share_its_new_parameters(method):
    model = Shared(nnx.Rngs(0))
    mox = jaxport.make_mox(getattr(model, method))(X)
    edited = mox.sub("//Linear", scaled, expect=2)
    assert list(edited.params) == ["one.bias", "one.kernel", "one.scale"]
    np.testing.assert_allclose(edited(X), 1.5 * model.one(1.5 * model.one(X)), rtol=1e-5)


class Tied(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(5, 4, rngs=rngs)

    def __call__(self, ids):
        return self.embed.attend(jnp.tanh(self.embed(ids)))


def test_adapters_of_a_tied_embedding_are_one_update():
    mox = jaxport.make_mox(Tied(nnx.Rngs(0)))(jnp.arange(3))
    adapted = mox.sub("//Embed", lora(rank=2), expect=2)
    assert {p: v.shape for p, v in adapted.params.items() if "lora" in p} == {
        "embed.lora_a": (5, 2),
        "embed.lora_b": (2, 4),
    }
    params = {**adapted.params, "embed.lora_b": jnp.ones((2, 4))}
    merged = mox.with_params(merge_lora(adapted, params))
    np.testing.assert_allclose(adapted.apply(params, jnp.arange(3)), merged(jnp.arange(3)), rtol=1e-5, atol=1e-5)


def test_a_method_of_the_model_itself_is_adapted():
    embed, x = nnx.Embed(5, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 4))
    adapted = jaxport.make_mox(embed.attend)(x).sub("//Embed", lora(rank=2))
    update = {"lora_a": jnp.full((4, 2), 0.5), "lora_b": jnp.arange(10.0).reshape(2, 5)}
    expected = x @ (embed.embedding[...].T + update["lora_a"] @ update["lora_b"])
    np.testing.assert_allclose(adapted.apply(update, x), expected, rtol=1e-5)


def test_another_module_takes_the_place_of_all_methods_of_a_tied_one():
    model, ids = Tied(nnx.Rngs(0)), jnp.arange(3)
    larger = nnx.Embed(7, 4, rngs=nnx.Rngs(1))
    edited = jaxport.make_mox(model)(ids).sub("//Embed", larger, expect=2)
    tied = Tied(nnx.Rngs(0))
    tied.embed = larger
    assert list(edited.params) == ["embed.embedding"]
    assert [node.block.method for node in edited.tree.nodes if node.block and node.block.path] == ["__call__", "attend"]
    np.testing.assert_allclose(edited(ids), tied(ids), rtol=1e-5)
    np.testing.assert_allclose(jaxport.mox.write_back(model, edited)(ids), tied(ids), rtol=1e-5)
    gradients = jax.grad(lambda params: edited.apply(params, ids).sum())(edited.params)
    expected = nnx.grad(lambda model: model(ids).sum())(tied)
    np.testing.assert_allclose(gradients["embed.embedding"], expected["embed"]["embedding"][...], rtol=1e-5)


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [((0,), 0), ((1,), 0), ((0,), 1), ((-1,), -1)], ids=str)
def test_a_replacement_under_vmap_sees_one_example(axes):
    in_axes, out_axes = axes
    linear = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    model = jax.vmap(linear, in_axes=in_axes, out_axes=out_axes)
    rows = jnp.moveaxis(jnp.stack([X[0], X[1], X[0] + 1]), 0, in_axes[0])
    seen = []

    def replacement(x):
        seen.append(x.shape)
        return jnp.flip(jnp.cumsum(x))

    edited = jaxport.make_mox(model)(rows).sub("//Linear", replacement)
    assert seen == [(4,)]
    wanted = jax.vmap(lambda x: jnp.flip(jnp.cumsum(x)), in_axes=in_axes, out_axes=out_axes)(rows)
    np.testing.assert_array_equal(edited(rows), wanted)
    around = jaxport.make_mox(model)(rows).sub("//Linear", factory(lambda m: lambda x: jnp.cumsum(m(2 * x))))
    wanted = jax.vmap(lambda x: jnp.cumsum(linear(2 * x)), in_axes=in_axes, out_axes=out_axes)(rows)
    np.testing.assert_allclose(around(rows), wanted, rtol=1e-5)


def test_a_replacement_under_two_vmaps_sees_one_example():
    linear = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    model = lambda x: jax.vmap(jax.vmap(linear, in_axes=1, out_axes=0), in_axes=1, out_axes=2)(x)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2, 3)), jnp.float32)
    edited = jaxport.make_mox(model)(x).sub("//Linear", factory(lambda m: lambda x: jnp.cumsum(m(jnp.sin(x)))))
    new = lambda x: jnp.cumsum(linear(jnp.sin(x)))
    wanted = jax.vmap(jax.vmap(new, in_axes=1, out_axes=0), in_axes=1, out_axes=2)(x)
    np.testing.assert_allclose(edited(x), wanted, rtol=1e-5)


# -- state -------------------------------------------------------------------------------------------------------------


class Stateful(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.noise = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.noise(self.drop(self.norm(x)))


def test_state_is_exact():
    model = Stateful(nnx.Rngs(0))
    mox = jaxport.make_mox(model)(X)
    state = dict(mox.state)
    run = lambda state: mox.apply({**mox.params, **state}, X, state=True)
    results = []
    for _ in range(3):
        result, new = run(state)
        state |= new
        results.append(result)
    assert_same(results, [model(X) for _ in range(3)])
    assert_same(state["norm.mean"], model.norm.mean.get_value())
    assert_same(state["norm.var"], model.norm.var.get_value())
    assert_same(state["drop.rngs.count"], model.drop.rngs.count.get_value())
    assert_same(state["noise.rngs.count"], model.noise.rngs.count.get_value())


def test_linen_statistics_and_equinox_state_are_results():
    model = linen.BatchNorm(use_running_average=False)
    variables = model.init(jax.random.key(0), X)
    call = functools.partial(model.apply, mutable=["batch_stats"])
    mox = jaxport.make_mox(call)(variables, X)
    assert_same(jax.jit(mox)(variables, X), jax.jit(call)(variables, X))
    norm, memory = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="batch")
    batched = jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    mox = jaxport.make_mox(batched)(X, memory)
    assert_same(jax.jit(mox)(X, memory)[0], jax.jit(batched)(X, memory)[0])


def test_a_replaced_block_changes_no_state_any_more():
    mox = jaxport.make_mox(Stateful(nnx.Rngs(0)))(X)
    edited = mox.sub("//BatchNorm", lambda x: x)
    assert set(mox.traced.state_outputs) - set(edited.traced.state_outputs) == {"norm.mean", "norm.var"}
    assert set(edited.dropped) >= {"norm.bias", "norm.scale", "norm.mean", "norm.var"}
    wrapped = mox.select("//BatchNorm").after(lambda y: 2 * y)
    assert wrapped.traced.state_outputs == mox.traced.state_outputs
    new = wrapped.apply(wrapped.params, X, state=True)[1]
    assert_same(new, mox.apply(mox.params, X, state=True)[1])


# -- edits of edits ----------------------------------------------------------------------------------------------------


def test_an_edited_mox_is_edited_again_and_the_first_is_left_as_it_was():
    mox = jaxport.make_mox(Shared(nnx.Rngs(0)))(X)
    before = str(mox), mox(X)
    once = mox.sub("//Linear", scaled)
    twice = once.sub("//Linear", scaled)
    assert list(twice.params) == ["one.bias", "one.kernel", "one.scale", "one.scale_1"]
    assert (str(mox), np.asarray(mox(X)).tolist()) == (before[0], np.asarray(before[1]).tolist())
    np.testing.assert_allclose(twice(X), 1.5**4 * mox(X), rtol=1e-5)
    for query in ("//Linear", "one"):  # a function takes the place of the layer with its edits, however it is selected
        np.testing.assert_array_equal(twice.sub(query, lambda x: x)(X), X)


def test_blocks_in_selected_blocks_are_replaced_too():
    model = Shared(nnx.Rngs(0))
    mox = jaxport.make_mox(model)(X)
    edited = mox.select("//module_call").after(lambda y: 2 * y)
    assert len(mox.select("//module_call")) == 3
    np.testing.assert_allclose(edited(X), 2 * (2 * model.one(2 * model.one(X))), rtol=1e-6)
    captured = mox.capture("//module_call")(X)
    assert_same(dict(captured), {"": mox(X), "one": (model.one(X), model.one(model.one(X)))})


def test_a_traced_mox_is_traced_again_with_its_blocks():
    mox = jaxport.make_mox(NnxStack(nnx.Rngs(0)))(X).sub("//Linear", scaled)
    again = jaxport.make_mox(mox)(X)
    assert again.params.keys() == mox.params.keys()
    assert [node.path for node in again.tree.nodes] == [node.path for node in mox.tree.nodes]
    assert_same(again(X), mox(X))
    inside = jaxport.make_mox(lambda x: mox(x) + 1)(X)
    assert inside.select("//Linear").count() == 1


def test_a_module_and_a_mox_replace_a_block():
    mox = jaxport.make_mox(Shared(nnx.Rngs(0)))(X)
    other = nnx.Linear(4, 4, rngs=nnx.Rngs(7))
    for replacement in (other, jaxport.make_mox(other)(X), jaxport.make_mox(other)(X).select("//Linear")[0]):
        edited = mox.sub("//Linear", replacement)
        np.testing.assert_allclose(edited(X), other(other(X)), rtol=1e-5)
        assert_same(edited.params["one.kernel"], other.kernel.get_value())
        assert edited.dropped == ("one.bias", "one.kernel")


class Named(nnx.Module):
    """Takes and returns dicts whose order is not that of their names."""

    def __init__(self):
        self.scale = nnx.Param(jnp.asarray(3.0))

    def __call__(self, given):
        return {"sum": self.scale * given["x"] + given["k"], "difference": [None, given["x"] - given["k"]]}


def test_the_arrays_of_dicts_go_by_their_names():
    model = Named()
    program = lambda x: (made := model({"x": jnp.sin(x), "k": x}))["sum"] * made["difference"][1]
    mox = jaxport.make_mox(program)(X)
    (match,) = mox.select("//Named")
    given = {"x": X + 1, "k": X}
    assert_same(match(given), model(given) | {"difference": tuple(model(given)["difference"])})
    same = mox.sub("//Named", factory(lambda match: lambda given: match(given)))
    assert_same(same(X), program(X))
    turned = mox.sub("//Named", factory(lambda match: lambda given: match({"x": given["k"], "k": given["x"]})))
    made = model({"x": X, "k": jnp.sin(X)})
    assert_same(turned(X), made["sum"] * made["difference"][1])
    again = jaxport.mox.loads(jaxport.mox.dumps(match), weights=match.params)
    assert_same(again(given), match(given))
    (captured,) = mox.capture("//Named")(X).values()
    assert_same(captured["sum"], model({"x": jnp.sin(X), "k": X})["sum"])
