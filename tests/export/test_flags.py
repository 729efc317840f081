"""Flags that the model takes at run time: dropout and normalization choose inside of the graph."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx

import jaxport
from jaxport.jaxprs.alike import same_value
from jaxport.testing import check
from jaxport.verify import verify_file
from tests.exports import operators

FLAG = {"deterministic": bool}
KEY = jax.random.key(3)


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x, *, deterministic):
        x = self.dropout(jnp.tanh(self.linear(x)), deterministic=deterministic)
        return self.norm(x, use_running_average=deterministic)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([Layer(rngs), Layer(rngs)])

    def __call__(self, x, *, deterministic):
        for layer in self.layers:
            x = layer(x, deterministic=deterministic)
        return x


@pytest.fixture
def net():
    return Net(nnx.Rngs(0))


def verified(fn, inputs, **options):
    exported = jaxport.to_onnx(fn, inputs, **options)
    report = exported.verify()
    assert any(True in output.sizes.values() for output in report.outputs)
    return exported


@pytest.mark.parametrize("flag", [bool, jax.ShapeDtypeStruct((), np.bool_), np.bool_(True)])
def test_nnx_chooses_inside_of_its_modules(net, flag):
    exported = verified(net, [("B", 4)], input_params={"deterministic": flag}, state="discard")
    assert exported.input_names == ["x", "deterministic"]
    # What does not depend on the flag stands in the graph once.
    assert operators(exported).count("MatMul") == 2
    assert operators(exported).count("Tanh") == 2
    names = {node.metadata_props.get("namespace", "") for node in exported.model.graph if node.op_type == "If"}
    assert any("layers.0.dropout" in name or "layers.0" in name for name in names)


def test_nnx_normalizes_by_what_the_flag_chooses(net):
    exported = jaxport.to_onnx(net, [(3, 4)], input_params=FLAG, state="discard")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(exported(x, deterministic=True), net(x, deterministic=True), rtol=1e-4, atol=1e-5)
    assert not np.allclose(exported(x, deterministic=False), exported(x, deterministic=True))


def test_state_that_changes_for_one_value_keeps_its_values_for_the_other(net):
    exported = verified(net, [("B", 4)], input_params=FLAG, state="outputs")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    _, kept = exported(x, deterministic=True)
    _, changed = exported(x, deterministic=False)
    np.testing.assert_array_equal(kept["layers.0.norm.mean"], net.layers[0].norm.mean[...])
    assert not np.allclose(kept["layers.0.norm.mean"], changed["layers.0.norm.mean"])


def test_state_is_refused_as_without_a_flag(net):
    with pytest.raises(jaxport.StateChanged, match=r"layers\.0\.norm\.mean"):
        jaxport.to_onnx(net, [("B", 4)], input_params=FLAG)


def test_linen_with_a_key_as_an_input():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, deterministic):
            x = nn.Dropout(0.3)(nn.Dense(4)(x), deterministic=deterministic)
            return nn.Dense(2)(nn.BatchNorm(use_running_average=deterministic)(x))

    model = Model()
    variables = model.init({"params": KEY, "dropout": KEY}, jnp.ones((1, 4)), True)

    def apply(x, key, *, deterministic):
        return model.apply(variables, x, deterministic, rngs={"dropout": key}, mutable=["batch_stats"])

    exported = verified(apply, [("B", 4), KEY], input_params=FLAG)
    assert exported.input_names == ["x", "key", "deterministic"]
    assert operators(exported).count("MatMul") == 2


def test_equinox_dropout_and_inference_mode():
    dropout = eqx.nn.Dropout(0.5)
    mlp = eqx.nn.MLP(4, 4, 8, 1, key=KEY)

    def called(x, key, *, inference):
        keys = jax.random.split(key, x.shape[0])
        return jax.vmap(lambda row, key: mlp(dropout(row, key=key, inference=inference)))(x, keys)

    verified(called, [(3, 4), KEY], input_params={"inference": bool})
    switched = lambda x, key, *, train: eqx.nn.inference_mode(dropout, value=not train)(x, key=key)
    verified(switched, [("B", 4), KEY], input_params={"train": bool})


def test_equinox_batch_normalization():
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, axis_name="batch", mode="batch")

    def called(x, state, *, inference):
        normalized = jax.vmap(lambda row, state: norm(row, state, inference=inference), (0, None), (0, None), "batch")
        return normalized(x, state)[0]

    verified(called, [(3, 4), state], input_params={"inference": bool})


def test_a_flag_may_stand_anywhere():
    verified(lambda x, train: x * 2 if train else x, [("B",), bool])
    exported = verified(lambda x, o: x * o["s"] if o["train"] else x, [("B",), {"train": bool, "s": np.float32(2)}])
    assert exported.input_names == ["x", "o.s", "o.train"]


def test_two_flags():
    def fn(x, *, double, sine):
        x = x * 2 if double else x
        return jnp.sin(x) if sine else jnp.cos(x)

    exported = verified(fn, [("B",)], input_params={"double": bool, "sine": bool})
    x = np.float32([1, 2])
    for double in (False, True):
        for sine in (False, True):
            np.testing.assert_allclose(
                exported(x, double=double, sine=sine), fn(x, double=double, sine=sine), rtol=1e-5
            )


def test_a_flag_may_be_compared_by_identity():
    exported = verified(lambda x, *, train: x * 2 if train is True else x, [("B",)], input_params={"train": bool})
    np.testing.assert_array_equal(exported(np.float32([3]), train=True), [6])


def test_a_flag_that_jax_can_trace_costs_nothing():
    assert operators(jaxport.to_onnx(lambda x, *, f: jnp.where(f, x, -x), [("B",)], input_params={"f": bool})) == [
        "Neg",
        "Where",
    ]
    exported = jaxport.to_onnx(lambda x, *, f: x * f.astype(jnp.float32), [("B",)], input_params={"f": bool})
    assert operators(exported) == ["Cast", "Mul"]


def test_a_flag_in_the_body_of_a_loop():
    def fn(x, train):
        return jax.lax.scan(lambda carry, row: (carry + (row * 2 if train else row), jnp.tanh(row)), x[0], x)

    verified(fn, [("B", 3), bool])


def test_a_value_that_one_branch_hands_to_a_later_one():
    def fn(x, train):
        noise = jnp.sin(x) * 3 if train else x
        y = jnp.exp(x) + 1
        return y * jnp.cos(noise) if train else y

    verified(fn, [("B",), bool])


def test_the_checker_runs_flags():
    check(lambda x, train: jnp.tanh(x) if train else x, ("B", 3), bool, without={"float64": "a flag has no precision"})


def test_a_saved_model_with_a_flag(tmp_path):
    fn = lambda x, *, train: x * 2 if train else x
    jaxport.to_onnx(fn, [("B",)], input_params={"train": bool}).save(tmp_path / "model.onnx")
    assert verify_file(tmp_path / "model.onnx", fn, [("B",)], input_params={"train": bool}).ok


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x, *, train: x if train else x[0], r"`output` is float32\[B\], or float32\[\]"),
        (lambda x, *, train: (x, x) if train else x, "PyTreeDef"),
        (lambda x, *, train: (x, "a" if train else "b"), "which are not arrays"),
    ],
)
def test_results_that_differ_in_more_than_values_are_refused(fn, why):
    with pytest.raises(jaxport.ExportError, match=why) as caught:
        jaxport.to_onnx(fn, [("B",)], input_params={"train": bool})
    assert "depends on the flag `train`" in str(caught.value)
    assert "static_params" in str(caught.value)


def test_too_many_flags_are_refused():
    names = [f"f{index}" for index in range(6)]
    with pytest.raises(jaxport.InvalidArgument, match="there are 6 flags"):
        jaxport.to_onnx(lambda x, **flags: x, [("B",)], input_params=dict.fromkeys(names, bool))


def test_a_flag_that_is_no_bool_is_refused_with_its_module():
    with pytest.raises(jaxport.ExportError, match=r"it depends on the inputs? .*`deterministic`") as caught:
        jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 4)], input_params={"deterministic": ()}, state="discard")
    assert "in the module `layers.0.dropout` (flax.nnx.Dropout)" in str(caught.value)
    assert "declare a flag as `bool`" in str(caught.value)


def test_programs_that_differ_in_a_constant_are_not_the_same():
    one, other = (jax.make_jaxpr(lambda x, k=k: jnp.asarray([k, 1.0]) * x)(1.0) for k in (1.0, 2.0))
    assert same_value(one, one)
    assert not same_value(one, other)
