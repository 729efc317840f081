"""The ready-made edits, each against what it says it does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import jaxport
from jaxport.blocks.marking.boundary import boundary
from jaxport.mox import (
    account,
    activations,
    calibrate,
    cast,
    lora,
    merge_lora,
    prune,
    qdq,
    quantize,
    trainable,
    write_back,
)
from tests.blocks.checks import assert_same
from tests.exports import operators
from tests.mox.models import CASES

pytestmark = pytest.mark.sampled(2)

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(2, 6, 6, 3)), jnp.float32)
ROWS = jnp.asarray(RNG.normal(size=(5, 8)), jnp.float32)


class Zoo(nnx.Module):
    """One layer of each kind that has a kernel."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.grouped = nnx.Conv(4, 4, (3, 3), feature_group_count=2, rngs=rngs)
        self.turned = nnx.ConvTranspose(4, 4, (2, 2), rngs=rngs)
        self.general = nnx.LinearGeneral((6, 4), (2, 4), axis=(-2, -1), rngs=rngs)
        self.einsum = nnx.Einsum("bhkd,kde->bhe", (2, 4, 8), (8,), rngs=rngs)
        self.cell = nnx.GRUCell(8, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.table = nnx.Embed(5, 8, rngs=rngs)

    def __call__(self, x):
        x = self.general(self.turned(self.grouped(self.conv(x))))
        x = self.norm(self.einsum(x))[:, 0]
        return self.cell(x, self.table(jnp.arange(2)))[1]


@pytest.fixture(scope="module")
def zoo():
    return jaxport.make_mox(Zoo(nnx.Rngs(0)))(X)


def trained(mox, names=("lora_a", "lora_b")):
    numbers = np.random.default_rng(1)
    noise = lambda v: jnp.asarray(numbers.normal(size=v.shape) / 3, v.dtype)
    return {path: noise(v) if path.endswith(names) else v for path, v in mox.params.items()}


@pytest.mark.parametrize("name", ["conv", "grouped", "turned", "general", "einsum", "cell", "table"])
def test_any_layer_with_a_kernel_is_adapted_and_merged(zoo, name):
    adapted = zoo.sub(f'//*[@path="{name}"]', lora(rank=2, alpha=6.0), expect=1)
    assert_same(jax.jit(adapted)(X), jax.jit(zoo)(X))
    params = trained(adapted)
    merged = zoo.with_params(merge_lora(adapted, params))
    np.testing.assert_allclose(jax.jit(adapted.apply)(params, X), jax.jit(merged)(X), rtol=1e-4, atol=1e-4)
    assert np.abs(np.asarray(merged(X) - zoo(X))).max() > 1e-3
    gradients = jax.jit(jax.grad(lambda p: (adapted.apply(p, X) ** 2).sum()))(params)
    assert all(np.abs(np.asarray(g)).max() > 0 for path, g in gradients.items() if "lora" in path)


@pytest.mark.parametrize("again", ["inside", "around"])
def test_adapters_of_adapted_layers_add_up(again):
    mox = jaxport.make_mox(nnx.Linear(8, 4, rngs=nnx.Rngs(0)))(ROWS)
    twice = mox.sub("//Linear", lora(rank=2)).sub("//Linear" if again == "inside" else "//lora", lora(rank=3))
    if again == "around":  # the factors are weights that are multiplied, and have adapters of their own
        with pytest.raises(jaxport.InvalidArgument, match="merge"):
            merge_lora(twice)
        return
    params = trained(twice, ("lora_a", "lora_b", "lora_a_1", "lora_b_1"))
    merged = mox.with_params(merge_lora(twice, params))
    np.testing.assert_allclose(twice.apply(params, ROWS), merged(ROWS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("edit", [quantize(), prune(0.5)])
def test_edits_of_values_need_a_program_that_holds_them(edit):
    dense = linen.Dense(4)
    variables = dense.init(jax.random.key(0), ROWS)
    with pytest.raises(jaxport.InvalidArgument, match=r"not a parameter that the program holds(.|\n)*model.apply"):
        jaxport.make_mox(dense.apply)(variables, ROWS).sub("//Dense", edit)
    mox = jaxport.make_mox(lambda x: dense.apply(variables, x))(ROWS)
    edited = mox.sub("//Dense", edit)
    assert any(path.endswith(("quantized", "mask")) for path in edited.state)
    np.testing.assert_allclose(edited(ROWS), mox(ROWS), atol=2)
    assert np.abs(np.asarray(edited(ROWS) - mox(ROWS))).max() > 1e-4


def test_a_norm_has_nothing_to_adapt(zoo):
    for edit, word in ((lora(), "adapt"), (quantize(), "quantize"), (prune(0.5), "prune")):
        with pytest.raises(jaxport.InvalidArgument, match=f"`norm` has no weight to {word}"):
            zoo.sub("//LayerNorm", edit)


def test_low_rank_updates_are_two_products():
    mox = jaxport.make_mox(nnx.Linear(8, 4, rngs=nnx.Rngs(0)))(ROWS).sub("//Linear", lora(rank=2))
    shapes = [match.out_avals[0].shape for match in mox.select("//lora//dot_general")]
    assert shapes == [(5, 2), (5, 4), (5, 4)]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", CASES)
def test_a_cast_block_computes_in_its_type(name, dtype):
    case = CASES[name]()
    mox = jaxport.make_mox(case.fn)(*case.args)
    edited = mox.sub(case.dense, cast(dtype))
    dtypes = {m.out_avals[0].dtype for m in edited.select("//dot_general[ancestor::*[@path='head']]")}
    assert dtypes == {np.dtype(dtype)}
    assert edited.select(case.dense).paths() == mox.select(case.dense).paths()
    assert edited.params.keys() == mox.params.keys()
    found, wanted = jax.jit(edited)(*case.args), jax.jit(mox)(*case.args)
    np.testing.assert_allclose(found, wanted, atol=0.2)
    assert not np.array_equal(found, wanted)


def test_a_whole_model_is_cast_with_its_loops_and_rules():
    model = lambda x: jax.lax.scan(lambda c, row: (jax.nn.relu(c @ jnp.outer(row, row)), row), x[0], x)[0]
    mox = jaxport.make_mox(boundary(model))(ROWS)
    edited = mox.sub("/*/*", cast(jnp.bfloat16))
    wanted = model(ROWS.astype(jnp.bfloat16)).astype(jnp.float32)
    np.testing.assert_allclose(jax.jit(edited)(ROWS), wanted, rtol=0.1, atol=0.1)
    gradient = jax.jit(jax.grad(lambda x: edited(x).sum()))(ROWS)
    assert np.isfinite(np.asarray(gradient)).all()


def test_what_a_type_does_not_allow_is_refused():
    bits = boundary(lambda x: jax.lax.bitcast_convert_type(x, jnp.int32) + 1)
    with pytest.raises(jaxport.InvalidArgument, match="cannot be computed in bfloat16"):
        jaxport.make_mox(bits)(ROWS).sub("/*/*", cast(jnp.bfloat16))
    with pytest.raises(jaxport.InvalidArgument, match="`int8` is not a floating-point type"):
        cast(jnp.int8)
    with pytest.raises(jaxport.InvalidArgument, match="`sin` is not a block"):
        jaxport.make_mox(jnp.sin)(ROWS).sub("//sin", cast(jnp.bfloat16))


@pytest.mark.parametrize("name", ["nnx", "equinox"])
def test_int8_weights_are_close_small_and_exported(name):
    case = CASES[name]()
    mox = jaxport.make_mox(case.fn)(*case.args)
    small = mox.sub(case.dense, quantize(), expect=case.count)
    stored = {path: value for path, value in small.state.items() if path.endswith("quantized")}
    assert len(stored) == case.count
    assert {str(value.dtype) for value in stored.values()} == {"int8"}
    assert not any(path.endswith((".kernel", "proj.weight")) for path in small.params)
    np.testing.assert_allclose(jax.jit(small)(*case.args), jax.jit(mox)(*case.args), atol=0.1)
    if name == "nnx":
        exported = jaxport.to_onnx(small, list(case.args))
        # ONNX Runtime multiplies int8 weights in a faster, coarser way.
        assert exported.verify(atol=0.1).ok
        used = operators(exported)
        assert used.count("DequantizeLinear") == case.count


def test_rounded_activations_are_exported_as_quantize_and_dequantize():
    mox = jaxport.make_mox(nnx.Linear(8, 4, rngs=nnx.Rngs(0)))(ROWS)
    scales = calibrate(mox, "//Linear", ROWS)
    rounded = mox.sub("//Linear", qdq(scales))
    wanted = np.round(np.asarray(mox(ROWS)) / scales[""]) * scales[""]
    np.testing.assert_allclose(rounded(ROWS), wanted, atol=1e-6)
    exported = jaxport.to_onnx(rounded, [ROWS])
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(operators(exported))
    assert exported.verify().ok
    with pytest.raises(jaxport.InvalidArgument, match="has no scale"):
        mox.sub("//Linear", qdq({"elsewhere": 1.0}))


def test_pruned_weights_stay_zero_while_they_are_trained():
    mox = jaxport.make_mox(nnx.Linear(8, 4, rngs=nnx.Rngs(0)))(ROWS)
    pruned = mox.sub("//Linear", prune(0.5))
    mask = np.asarray(pruned.state["kernel.mask"])
    kernel = np.asarray(mox.params["kernel"])
    assert mask.sum() == 16
    assert np.abs(kernel[mask]).min() >= np.abs(kernel[~mask]).max()
    np.testing.assert_allclose(pruned(ROWS), ROWS @ (kernel * mask) + mox.params["bias"], rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda p: pruned.apply(p, ROWS).sum())(pruned.params)["kernel"]
    assert (np.asarray(gradient)[~mask] == 0).all()


def test_only_the_chosen_parameters_are_trained():
    mox = jaxport.make_mox(nnx.Linear(8, 4, rngs=nnx.Rngs(0)))(ROWS)
    adapted = mox.sub("//Linear", lora(rank=2))
    mask = trainable(adapted, lambda path: "lora" in path)
    frozen = {path: not value for path, value in mask.items()}
    optimizer = optax.chain(optax.adam(0.1), optax.masked(optax.set_to_zero(), frozen))
    params = adapted.params
    gradient = jax.grad(lambda p: (adapted.apply(p, ROWS) ** 2).sum())(params)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    after = optax.apply_updates(params, updates)
    changed = {path for path in params if not np.array_equal(params[path], after[path])}
    assert changed == {"lora_b"}  # while B is zero, A has no gradient
    assert trainable(adapted, '//*[@type="Linear"]')["kernel"]
    with pytest.raises(jaxport.QueryError, match="matches nothing, so nothing would be trained"):
        trainable(adapted, "//Conv")


def test_activations_are_found_and_replaced():
    model = lambda x: jax.nn.silu(jax.nn.relu(jax.nn.gelu(x)))
    mox = jaxport.make_mox(model, functions=["jax.nn.gelu"])(ROWS)
    assert mox.select(activations).paths() == ["gelu", "relu", "silu"]
    edited = mox.sub(activations, jnp.tanh, expect=3)
    assert_same(edited(ROWS), jnp.tanh(jnp.tanh(jnp.tanh(ROWS))))


def test_a_layer_is_dropped():
    case = CASES["nnx"]()
    mox = jaxport.make_mox(case.fn)(*case.args)
    dropped = mox.select('//*[@path="layers.1"]').remove()
    model = CASES["nnx"]().fn
    model.layers = nnx.List([model.layers[0]])
    assert_same(jax.jit(dropped)(*case.args), jax.jit(model)(*case.args))
    assert len(dropped.dropped) == len([path for path in mox.params if path.startswith("layers.1.")])
    with pytest.raises(
        jaxport.InvalidArgument, match=r"returns float32\[2,3,8\](.|\n)*`Linear` returns float32\[2,3,4\]"
    ):
        jaxport.make_mox(lambda *args: jnp.tanh(case.fn(*args)))(*case.args).select("//*[@path='head']").remove()


def test_a_mox_is_written_back_unless_it_was_edited():
    linear = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    mox = jaxport.make_mox(linear)(ROWS)
    doubled = mox.with_params({path: 2 * value for path, value in mox.params.items()})
    assert_same(write_back(linear, doubled)(ROWS), doubled(ROWS))
    with pytest.raises(jaxport.InvalidArgument, match="does not compute what the edited Mox computes"):
        write_back(linear, mox.sub("//dot_general", lambda x, y: 2 * (x @ y)))


def test_the_last_layer_is_dropped():
    """Nothing but the model's own result depends on it."""
    case = CASES["nnx"]()
    dropped = jaxport.make_mox(case.fn)(*case.args).select('//*[@path="head"]').remove()
    assert jax.eval_shape(dropped, *case.args).shape == (2, 3, 8)


# -- write back --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_merged_weights_are_written_back(name):
    case = CASES[name]()
    mox = jaxport.make_mox(case.fn)(*case.args)
    adapted = mox.sub(case.dense, lora(rank=2))
    params = trained(adapted)
    wanted = jax.jit(adapted.apply)(params, *case.args)
    if name == "linen":
        variables, x = case.args
        merged = merge_lora(adapted, params, {"variables": variables})
        result = jax.jit(case.fn)(write_back(variables, merged, prefix="variables"), x)
    elif name == "nnx":
        model = write_back(case.fn, merge_lora(adapted, params))
        assert type(model) is type(case.fn)
        result = jax.jit(model)(*case.args)
    else:
        model = write_back(case.fn.__wrapped__, merge_lora(adapted, params))
        assert type(model) is type(case.fn.__wrapped__)
        result = jax.jit(jax.vmap(model))(*case.args)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_not_written_back():
    linear = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    mox = jaxport.make_mox(linear)(ROWS)
    with pytest.raises(jaxport.InvalidArgument, match="`Linear` has no place for 2 parameters, `lora_a` first"):
        write_back(linear, mox.sub("//Linear", lora(rank=2)).params)
    with pytest.raises(jaxport.InvalidArgument, match=r"`bias` is float32\[3\](.|\n)*`Linear` has float32\[4\]"):
        write_back(linear, {"bias": jnp.zeros(3)})


# -- account -----------------------------------------------------------------------------------------------------------


def test_costs_are_counted():
    case = CASES["nnx"]()
    mox = jaxport.make_mox(case.fn)(*case.args)
    costs = account(mox)
    up = costs["layers.0.up"]
    assert (up.calls, up.params, up.bytes) == (1, 8 * 16 + 16, 4 * (8 * 16 + 16))
    assert up.flops == 2 * 6 * 8 * 16 + 6 * 16
    assert up.activations == 4 * 6 * 16
    assert costs.total.params == sum(value.size for value in mox.params.values())
    assert costs.total.flops == costs[""].flops >= sum(costs[f"layers.{i}"].flops for i in range(2))
    assert str(costs).splitlines()[0].split()[:3] == ["path", "type", "calls"]
    assert costs.as_dict()[0]["type"] == "(program)"


def test_shared_parameters_are_counted_once_and_steps_as_calls():
    shared = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    costs = account(jaxport.make_mox(lambda x: shared(shared(x)))(ROWS))
    assert (costs[""].calls, costs.total.params, costs.total.flops) == (2, 72, 2 * (2 * 5 * 64 + 40))
    scanned = lambda x: jax.lax.scan(lambda c, _: (shared(c), None), x, None, length=3)[0]
    costs = account(jaxport.make_mox(scanned)(ROWS))
    assert (costs[""].calls, costs[""].params, costs[""].flops) == (3, 72, 3 * (2 * 5 * 64 + 40))


def test_parameters_that_are_arguments_are_counted():
    case = CASES["linen"]()
    costs = account(jaxport.make_mox(case.fn)(*case.args))
    assert costs["head"].params == 8 * 4 + 4
    assert costs.total.params == sum(leaf.size for leaf in jax.tree.leaves(case.args[0]))


def test_a_match_that_was_taken_from_the_selection_is_no_original():
    layers = jaxport.make_mox(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))(jnp.ones(2)).select("//Linear")
    held, seen = layers[0], []

    def twice(x):
        seen.append(held.is_replaced)
        return 2 * held(x)

    np.testing.assert_allclose(layers.sub(twice)(jnp.ones(2)), 2 * held(jnp.ones(2)), rtol=1e-6)
    assert seen == [False]
