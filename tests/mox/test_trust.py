"""Edits of edited models, constants, types and gradients: what could go wrong without a word."""

from __future__ import annotations

import json
import re

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

import jaxport
from jaxport.mox import Replacement, account, cast, factory, lora, merge_lora, prune, qdq, quantize, trainable
from tests.exports import operators
from tests.mox.models import CASES

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)


class Shared(nnx.Module):
    """One layer, called twice."""

    def __init__(self, rngs):
        self.one = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x):
        return self.one(self.one(x))


@pytest.fixture
def shared():
    return jaxport.make_mox(Shared(nnx.Rngs(0)))(X)


def other():
    return nnx.Linear(4, 4, rngs=nnx.Rngs(7))


# -- replaced modules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_mox", [False, True])
def test_a_replaced_call_of_a_shared_module_has_the_new_weights(shared, as_mox):
    new = other()
    first = shared.sub("(//Linear)[1]", jaxport.make_mox(new)(X) if as_mox else new)
    replaced, kept = first.select("//Linear", expect=2)
    np.testing.assert_array_equal(replaced(X), new(X))
    np.testing.assert_array_equal(kept(X), shared.select("//Linear")[1](X))
    small = first.sub("(//Linear)[1]", quantize())
    np.testing.assert_allclose(small(X), first(X), atol=0.1)
    assert [path for path, value in small.state.items() if value.dtype == jnp.int8] == ["one.kernel_1.quantized"]
    chosen = trainable(first, "(//Linear)[1]")
    assert {path for path, value in chosen.items() if value} == {"one.kernel_1", "one.bias_1"}
    adapted = first.sub("(//Linear)[1]", lora(rank=2))
    params = {path: value + path.endswith("lora_b") for path, value in adapted.params.items()}
    merged = first.with_params(merge_lora(adapted, params))
    np.testing.assert_allclose(merged(X), adapted.apply(params, X), rtol=1e-4, atol=1e-5)


def test_a_module_as_a_replacement_is_one_element():
    mox = jaxport.make_mox(Shared(nnx.Rngs(0)))(X)
    for new in (nnx.RMSNorm(4, rngs=nnx.Rngs(0)), jaxport.make_mox(nnx.RMSNorm(4, rngs=nnx.Rngs(0)))(X)):
        edited = mox.sub("//Linear", new)
        norms = edited.select("//RMSNorm", expect=2)
        assert norms.paths() == ["one", "one"]
        assert norms[0].config["num_features"] == 4
        np.testing.assert_allclose(norms.after(lambda y: 2 * y)(X), 2 * edited(2 * X / 2), rtol=1e-5)
        assert {row.path: row.calls for row in account(edited)}["one"] == 2
        assert list(edited.params) == ["one.scale"]


def test_names_that_fell_free_are_used_again(shared):
    new = other()
    edited = shared.sub("//Linear", new)
    assert list(edited.params) == ["one.bias", "one.kernel"]
    np.testing.assert_array_equal(edited.params["one.kernel"], new.kernel.get_value())
    assert edited.dropped == ("one.bias", "one.kernel")
    again = edited.sub("//Linear", lora(rank=2), expect=2)
    assert set(again.params) == {"one.bias", "one.kernel", "one.lora_a", "one.lora_b"}


def test_a_batched_module_as_a_replacement_is_one_element():
    linear = other()
    mox = jaxport.make_mox(jax.vmap(linear, in_axes=1, out_axes=1))(X.T)
    edited = mox.sub("//Linear", nnx.Linear(4, 4, rngs=nnx.Rngs(3)), expect=1)
    assert edited.select("//Linear").count() == 1
    np.testing.assert_allclose(edited(X.T), nnx.Linear(4, 4, rngs=nnx.Rngs(3))(X).T, rtol=1e-5)


def test_an_adapted_mox_as_a_replacement_keeps_its_adapters(shared):
    adapted = jaxport.make_mox(other())(X).sub("//Linear", lora(rank=2))
    edited = shared.sub("(//Linear)[1]", adapted)
    params = {path: value + path.endswith("lora_b") for path, value in edited.params.items()}
    assert merge_lora(edited, params).keys() == {"one.kernel", "one.bias", "one.kernel_1", "one.bias_1"}


# -- constants ---------------------------------------------------------------------------------------------------------


def test_arrays_that_are_closed_over_are_no_parameters(shared):
    mask, shift = jnp.ones(4), np.ones(4, np.float32)
    mox = jaxport.make_mox(lambda x: x * mask + shift)(X)
    assert not mox.params
    edited = shared.sub("//Linear", factory(lambda match: lambda x: match(x) * mask))
    assert edited.params.keys() == shared.params.keys()
    assert any(value is mask or value.shape == (4,) for value in edited.state.values())
    assert not jaxport.make_mox(edited)(X).params.keys() - shared.params.keys()


def test_what_a_replacement_declares_is_trained_or_not(shared):
    for declared in (True, False):
        new = Replacement(lambda o, p, x: o(x) * p["s"], {"s": jnp.ones(4)}, trainable=declared)
        edited = shared.sub("//Linear", new)
        assert ("one.s" in edited.params) is declared
        again = jaxport.mox.loads(jaxport.mox.dumps(edited), {**edited.params, **edited.state})
        assert ("one.s" in again.params) is declared


class Normed(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.BatchNorm(use_running_average=True)(linen.Dense(4)(x))


@pytest.mark.parametrize("held", ["together", "apart"])
def test_the_statistics_of_a_closure_are_no_parameters(held):
    model = Normed()
    variables = model.init(jax.random.key(0), X)
    parameters, statistics = variables["params"], variables["batch_stats"]
    apart = lambda x: model.apply({"params": parameters, "batch_stats": statistics}, x)
    mox = jaxport.make_mox((lambda x: model.apply(variables, x)) if held == "together" else apart)(X)
    assert {path.rpartition(".")[2] for path in mox.params} == {"kernel", "bias", "scale"}
    assert {path.rpartition(".")[2] for path in mox.state} == {"mean", "var"}


def test_calls_of_one_module_may_have_constants_of_their_own(shared):
    factors = iter([2.0, 3.0])

    def make(match):
        factor = jnp.full(4, next(factors))
        return lambda x: x * factor

    np.testing.assert_allclose(shared.sub("//Linear", factory(make))(X), 6 * X, rtol=1e-6)


def test_a_pruned_head_stays_pruned(shared):
    pruned = shared.sub("//Linear", prune(0.5))
    gradient = jax.grad(lambda p: pruned.apply(p, X).sum())(pruned.params)
    after = pruned.with_params({path: value - gradient[path] for path, value in pruned.params.items()})
    kernel = pruned.state["one.kernel.mask"]
    assert (np.asarray(after.state["one.kernel.mask"]) == np.asarray(kernel)).all()


def test_the_frequencies_of_an_imported_file_are_no_parameters():
    onnx = pytest.importorskip("onnx")
    from onnx import parser

    text = """<ir_version: 10, opset_import: ["" : 21]>
    rotary (float[N, 1] positions, float[N, 2] x) => (float[N, 2] y)
    <float[1, 2] inv_freq = {1.0, 0.1}, float[2, 2] w = {1.0, 2.0, 3.0, 4.0}>
    { angles = MatMul(positions, inv_freq)
      cos = Cos(angles)
      up = MatMul(x, w)
      y = Mul(up, cos) }"""
    model = parser.parse_model(text)
    onnx.checker.check_model(model)
    imported = jaxport.make_mox(jaxport.from_onnx(model))(jnp.ones((3, 1)), jnp.ones((3, 2)))
    assert list(imported.params) == ["w"]


# -- types and gradients -----------------------------------------------------------------------------------------------


def test_a_block_that_computes_in_bfloat16_is_cast_to_float32():
    linear = nnx.Linear(4, 4, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    mox = jaxport.make_mox(lambda x: linear(x))(X)
    edited = mox.sub("//Linear", cast(jnp.float32))
    wanted = nnx.Linear(4, 4, rngs=nnx.Rngs(0))(X)
    assert edited.select("//dot_general")[0].out_avals[0].dtype == jnp.float32
    assert np.abs(np.asarray(edited(X), np.float32) - np.asarray(wanted)).max() < 0.02
    assert edited(X).dtype == jnp.bfloat16


def test_parameters_are_stored_in_another_type(shared):
    narrow = shared.with_params({path: value.astype(jnp.bfloat16) for path, value in shared.params.items()})
    assert {value.dtype for value in narrow.params.values()} == {np.dtype(jnp.bfloat16)}
    np.testing.assert_allclose(jax.jit(narrow)(X), shared(X), atol=0.05)
    assert narrow(X).dtype == jnp.float32
    gradient = jax.grad(lambda p: narrow.apply(p, X).sum())(narrow.params)
    assert gradient["one.kernel"].dtype == jnp.bfloat16
    for edit in (lora(rank=2), quantize(), prune(0.5)):
        assert narrow.sub("//Linear", edit)(X).dtype == jnp.float32
    again = jaxport.mox.loads(jaxport.mox.dumps(narrow), narrow.params)
    np.testing.assert_array_equal(again(X), narrow(X))
    assert jaxport.to_onnx(narrow, [X]).verify().ok
    with pytest.raises(jaxport.InvalidArgument, match=r"`one.bias` is given int32\[4\]"):
        shared.with_params({"one.bias": jnp.ones(4, jnp.int32)})


def test_rounding_is_passed_straight_through():
    mox = jaxport.make_mox(jnp.tanh)(X).sub("//tanh", qdq(0.5 / 127))
    x = jnp.asarray([[0.1, -0.2, 2.0, -3.0]] * 2)
    plain = jax.grad(lambda x: jnp.tanh(x).sum())(x)
    np.testing.assert_allclose(jax.grad(lambda x: mox(x).sum())(x), plain * (jnp.abs(jnp.tanh(x)) < 0.5), rtol=1e-6)
    exported = jaxport.to_onnx(mox, [X])
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(operators(exported))
    assert exported.verify().ok


# -- edits of edits ----------------------------------------------------------------------------------------------------


def test_quantized_layers_are_adapted(shared):
    small = shared.sub("//Linear", quantize())
    adapted = small.sub("//Linear", lora(rank=2), expect=2)
    np.testing.assert_allclose(adapted(X), small(X), rtol=1e-6)
    assert set(adapted.params) == {"one.bias", "one.lora_a", "one.lora_b"}
    gradient = jax.grad(lambda p: (adapted.apply(p, X) ** 2).sum())(adapted.params)
    assert np.abs(np.asarray(gradient["one.lora_b"])).max() > 0
    again = jaxport.mox.loads(jaxport.mox.dumps(adapted), {**adapted.params, **adapted.state})
    np.testing.assert_array_equal(again(X), adapted(X))
    assert again.sub("//Linear", lora(rank=2, name="more"))(X).shape == (2, 4)
    assert "DequantizeLinear" in operators(jaxport.to_onnx(adapted, [X]))
    moved = adapted.with_params({path: value + 0.1 for path, value in adapted.params.items() if "lora" in path})
    np.testing.assert_allclose(shared.with_params(merge_lora(moved))(X), moved(X), rtol=1e-4, atol=1e-5)


def test_pruned_layers_are_pruned_again_and_quantized(shared):
    once = shared.sub("//Linear", prune(0.5))
    twice = once.sub("//Linear", prune(0.75))
    kernel = np.asarray(shared.params["one.kernel"])
    kept = np.abs(kernel) >= np.sort(np.abs(kernel), axis=None)[12]
    alone = shared.with_params({"one.kernel": jnp.asarray(kernel * kept)})
    np.testing.assert_allclose(twice(X), alone(X), rtol=1e-6)
    small = twice.sub("//Linear", quantize())
    np.testing.assert_allclose(small(X), alone(X), atol=0.05)
    (quantized,) = [value for value in small.state.values() if value.dtype == jnp.int8]
    assert ((np.asarray(quantized) != 0) <= kept).all()
    assert list(small.params) == ["one.bias"]


def test_named_adapters_are_switched_merged_and_saved(shared, tmp_path):
    both = shared.sub("//Linear", lora(2, name="one")).sub("//Linear", lora(3, alpha=6.0, name="two"))
    assert {path for path in both.params if "lora" in path} == {
        f"one.{name}.lora_{factor}" for name in ("one", "two") for factor in "ab"
    }
    params = {path: value + path.endswith("lora_b") for path, value in both.params.items()}
    both = both.with_params(params)
    for names in ((), ("one",), ("two",), ("one", "two")):
        chosen = jaxport.mox.set_adapter(both, *names)
        merged = shared.with_params(merge_lora(chosen))
        np.testing.assert_allclose(chosen(X), merged(X), rtol=1e-3, atol=1e-3)
    jaxport.mox.save_adapter(both, "two", tmp_path / "two.safetensors")
    again = jaxport.mox.load_adapter(shared, tmp_path / "two.safetensors")
    np.testing.assert_allclose(again(X), jaxport.mox.set_adapter(both, "two")(X), rtol=1e-4, atol=1e-4)
    onto = jaxport.mox.load_adapter(shared.sub("//Linear", quantize()), tmp_path / "two.safetensors")
    assert set(onto.params) == {"one.bias", "one.two.lora_a", "one.two.lora_b"}


def test_wrong_adapters_are_refused(shared, tmp_path):
    adapted = shared.sub("//Linear", lora(2, name="math"))
    with pytest.raises(jaxport.InvalidArgument, match=r"has no adapter `maths`(.|\n)*it has `math`"):
        jaxport.mox.set_adapter(adapted, "maths")
    with pytest.raises(jaxport.InvalidArgument, match="`a b` is not a valid name for an adapter"):
        lora(2, name="a b")
    with pytest.raises(jaxport.InvalidArgument, match="has no adapter `x`"):
        jaxport.mox.save_adapter(adapted, "x", tmp_path / "x.safetensors")
    jaxport.mox.save_adapter(adapted, "math", tmp_path / "math.safetensors")
    with pytest.raises(jaxport.InvalidArgument, match="has an adapter `math`"):
        jaxport.mox.load_adapter(adapted, tmp_path / "math.safetensors")
    with pytest.raises(jaxport.InvalidArgument, match=r"has no layer `one` with `one.kernel`"):
        jaxport.mox.load_adapter(jaxport.make_mox(jnp.sin)(X), tmp_path / "math.safetensors")
    jaxport.mox.save_params(shared.params, tmp_path / "plain.safetensors")
    with pytest.raises(jaxport.ModelError, match="does not contain an adapter"):
        jaxport.mox.load_adapter(shared, tmp_path / "plain.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_a_head_has_another_number_of_classes(name):
    case = CASES[name]()
    mox = jaxport.make_mox(case.fn)(*case.args)
    if name == "equinox":
        head = eqx.nn.Linear(8, 7, key=jax.random.key(0))
        wanted = mox.capture("//*[@path='layers.1']", expect=1)(*case.args)["layers.1"] @ head.weight.T + head.bias
    else:
        head = nnx.Linear(8, 7, rngs=nnx.Rngs(0))
        wanted = head(next(iter(mox.capture("//*[@path='layers.1' or @path='layers_1']")(*case.args).values())))
    edited = mox.select("//*[@path='head']", expect=1).sub(head)
    np.testing.assert_allclose(jax.jit(edited)(*case.args), wanted, rtol=1e-4, atol=1e-5)
    twice = edited.sub("//*[@path='head']", factory(lambda match: lambda x: match(x)[..., :2]))
    np.testing.assert_allclose(twice(*case.args), wanted[..., :2], rtol=1e-4, atol=1e-5)
    with pytest.raises(jaxport.InvalidArgument, match="later operations depend on it"):
        mox.select("//*[@path='layers.0' or @path='layers_0']", expect=1).sub(lambda x: x[..., :2])


MISTAKES = {
    "an edit that is not called": (lambda mox: mox.sub("//Linear", lora), r"`lora` must be called first"),
    "nested parameters": (lambda mox: mox.apply({"one": {"kernel": X}}, X), r"it is a dict(.|\n)*full paths"),
    "nested values": (lambda mox: mox.with_params({"one": {"kernel": X}}), r"it is a dict(.|\n)*full paths"),
    "a path": (lambda mox: mox.with_params({"one.kernle": X}), r"there (is|are) `one.kernel`"),
    "a class": (
        lambda mox: mox.sub(nnx.Conv, quantize()),
        "no module of the class `flax.nnx.Conv` is called",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_an_answer(shared, name):
    run, message = MISTAKES[name]
    with pytest.raises((jaxport.InvalidArgument, jaxport.QueryError), match=message):
        run(shared)


GOOD = {"rank": 2, "scale": 1.0, "weights": ["kernel"], "params": {"math.lora_a": "a", "math.lora_b": "b"}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rank": 10**15}, "no factors of the rank 1000000000000000"),
        ({"rank": 0}, "no factors of the rank 0"),
        ({"rank": "2"}, "the rank '2'"),
        ({"scale": float("inf")}, "the scale inf"),
        ({"weights": [1]}, "names no weights"),
        ({"params": ["a"]}, "names no parameters"),
        ({"params": {}}, "no factors"),
        ({"params": {"math.lora_a": "a", "math.lora_b": "c"}}, "no tensor `c`"),
        ({"params": {"x": "a", "math.lora_b": "b"}}, "has math.lora_b, x"),
        ({"more": 1}, "unexpected keyword"),
    ],
    ids=str,
)
def test_a_malformed_adapter_is_refused(tmp_path, change, why):
    mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    values = {"a": np.ones((3, 2), np.float32), "b": np.ones((2, 4), np.float32)}
    file = tmp_path / "adapter.safetensors"
    data = {"name": "math", "layers": {"": {**GOOD, **change}}}
    safetensors.numpy.save_file(values, file, {"jaxport.adapter": json.dumps(data)})
    with pytest.raises(jaxport.ModelError, match=re.escape(why)):
        jaxport.mox.load_adapter(mox, file)
