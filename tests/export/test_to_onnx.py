"""The options of `to_onnx`: names, weights, layout at the border, precision, opset, state, static parameters."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx.checker
import onnx.reference
import pytest
from flax import linen as nn, nnx

import jaxport
from jaxport.export.delivery import opsets
from jaxport.export.delivery.opsets import NEWEST
from jaxport.export.delivery.runtime import newest_opset
from jaxport.testing import check, f32, i32, spec
from tests.exports import export


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


@pytest.fixture
def mlp():
    return Mlp(nnx.Rngs(0))


WEIGHTS = ["layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.kernel"]


def initializers(exported):
    return sorted(n for n in exported.model.graph.initializers if not n.startswith("constant"))


def test_weights_are_named_after_their_path(mlp):
    assert initializers(check(mlp, ("B", 3))) == WEIGHTS


def test_weights_of_linen_are_named_after_the_variables():
    model = nn.Dense(4)
    variables = model.init(jax.random.key(0), jnp.ones((1, 3)))
    assert initializers(check(lambda x: model.apply(variables, x), ("B", 3))) == ["params.bias", "params.kernel"]


def test_weights_of_equinox_are_named_after_their_fields():
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    assert initializers(check(jax.vmap(model), ("B", 3))) == [
        "layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("inputs", WEIGHTS),
        ("layers.1.*", WEIGHTS[2:]),
        (["*.bias"], WEIGHTS[::2]),
        (lambda path: "0.kernel" in path, WEIGHTS[1:2]),
    ],
)
def test_weights_may_be_inputs_with_defaults(mlp, weights, expected):
    exported = check(mlp, ("B", 3), weights=weights)
    assert sorted(p.name for p in exported.inputs if p.weight) == expected
    assert exported.input_names == ["x"]
    assert sorted([*initializers(exported), *expected]) == WEIGHTS
    x = np.ones((2, 3), np.float32)
    others = {name: np.full_like(exported.defaults[name], 0.5) for name in expected}
    assert not np.array_equal(exported.run({"x": x, **others})[0], exported.run({"x": x})[0])


def test_run_is_raw_and_calling_is_not(mlp):
    exported = export(lambda batch: {"y": mlp(batch["x"])}, {"x": f32("B", 3)})
    x = np.ones((2, 3), np.float32)
    (raw,) = exported.run({"batch.x": x})
    np.testing.assert_array_equal(exported({"x": x})["y"], raw)


def test_run_refuses_wrong_names(mlp):
    exported = export(mlp, ("B", 3))
    with pytest.raises(jaxport.InvalidArgument, match="`z` is not an input of the model"):
        exported.run({"z": np.ones((1, 3))})
    with pytest.raises(jaxport.InvalidArgument, match="the input `x` is missing"):
        exported.run({})


def test_calling_with_another_structure_is_refused(mlp):
    with pytest.raises(jaxport.InvalidArgument, match="the arguments are not those"):
        export(mlp, ("B", 3))({"x": np.ones((1, 3))})


def test_names_may_be_given():
    exported = check(
        lambda x, y: (x + y, x - y), (3,), (3,), input_names=["a", "b"], output_names=["sum", "difference"]
    )
    assert (exported.input_names, exported.output_names) == (["a", "b"], ["sum", "difference"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"input_names": ["a"]}, "1 names were given for 2 leaves"),
        ({"input_names": ["a", "a"]}, "the name `a` is used twice"),
        ({"output_names": ["a", "b", "c"]}, "3 names were given for 2 leaves"),
        ({"opset": 12}, "opset 12 is out of range"),
        ({"opset": 99}, "opset 99 is out of range"),
        ({"opset": "new"}, "opset 'new' is out of range"),
        ({"state": "keep"}, "state='keep' is unknown"),
        ({"inputs_as_nchw": [0]}, "position 0 has shape"),
        ({"outputs_as_nchw": [7]}, "position 7 is out of range"),
        ({"input_params": {"z": ()}, "static_params": {"z": 1}}, "`z` is in `input_params` and in `static_params`"),
    ],
)
def test_contradictions_are_refused(options, text):
    with pytest.raises(jaxport.InvalidArgument, match=text) as caught:
        export(lambda x, y: (x + y, x - y), (3,), (3,), **options)
    assert "instead:" in str(caught.value)


def test_a_function_that_fails_keeps_its_own_error():
    def broken(x):
        raise KeyError("lost")

    with pytest.raises(jaxport.ExportError, match="`broken` cannot be traced with these inputs: KeyError") as caught:
        export(broken, (3,))
    assert isinstance(caught.value.__cause__, KeyError)


def test_input_params_are_inputs_and_static_params_are_baked_in():
    def scaled(x, *, scale, power, train):
        return x * scale if train else x**power

    exported = check(lambda x, scale: scaled(x, scale=scale, power=2, train=True), f32("B"), ())
    exported = export(scaled, f32("B"), input_params={"scale": 2.0}, static_params={"power": 2, "train": True})
    assert exported.input_names == ["x", "scale"]
    np.testing.assert_array_equal(exported(np.ones(2, np.float32), scale=3.0), [3, 3])
    unused = export(scaled, f32("B"), input_params={"scale": 2.0}, static_params={"power": 2, "train": False})
    assert unused.input_names == ["x", "scale"]


def test_nchw_at_the_border():
    exported = check(
        lambda x: x.mean(axis=(1, 2), keepdims=True) * x,
        f32("B", "H", "W", 3),
        inputs_as_nchw=[0],
        outputs_as_nchw=[0],
    )
    assert str(exported.model.graph.inputs[0].shape) == "[B,3,H,W]"
    assert str(exported.model.graph.outputs[0].shape) == "[B,3,H,W]"
    assert exported(np.ones((2, 4, 5, 3), np.float32)).shape == (2, 4, 5, 3)


def test_double_precision():
    exported = check(lambda x: jnp.sin(x) / 3, ("B", 3), double_precision=True)
    assert exported.inputs[0].dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_the_default_opset_and_ir_version():
    lowest = export(jnp.sin, (3,)).model
    assert (lowest.opset_imports[""], lowest.ir_version) == (18, 8)
    normalized = export(lambda x: x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6), (2, 3)).model
    assert [node.op_type for node in normalized.graph] == ["RMSNormalization"]
    assert (normalized.opset_imports[""], normalized.ir_version) == (23, 11)


@pytest.mark.parametrize("opset", sorted({17, 20, *range(24, NEWEST + 1)}))
def test_opsets(mlp, opset):
    exported = export(mlp, ("B", 3), opset=opset)
    assert exported.model.opset_imports[""] == opset
    onnx.checker.check_model(exported.proto, full_check=True)
    x = np.ones((2, 3), np.float32)
    (result,) = onnx.reference.ReferenceEvaluator(exported.proto).run(None, {"x": x})
    np.testing.assert_allclose(result, mlp(x), rtol=1e-5, atol=1e-6)
    if opset <= newest_opset():
        assert exported.verify()
        return
    with pytest.raises(jaxport.RunError, match=f"opset {opset} needs {opsets.first_release(opset)}"):
        exported.verify()


def test_opsets_that_no_runtime_has_checked_say_so(mlp, monkeypatch):
    monkeypatch.setattr(opsets, "CHECKED", NEWEST - 1)
    with pytest.warns(UserWarning, match=f"opset {NEWEST} is newer than what ONNX Runtime loads"):
        export(mlp, ("B", 3), opset=NEWEST)


def test_state_is_refused_with_its_paths():
    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    before = jax.tree.map(np.asarray, nnx.state(model))
    with pytest.raises(jaxport.StateChanged, match="mean") as caught:
        export(model, ("B", 3))
    assert "state=" in str(caught.value)
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, nnx.state(model)))


def test_state_may_become_outputs():
    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    exported = export(model, ("B", 3), state="outputs")
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    y, state = exported(x)
    np.testing.assert_allclose(y, model(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["mean"], model.mean[...], rtol=1e-5)
    np.testing.assert_allclose(state["var"], model.var[...], rtol=1e-5)


def test_state_may_be_discarded():
    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    exported = export(model, ("B", 3), state="discard")
    assert len(exported.outputs) == 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "float16", "bfloat16", "bool", "uint32"])
def test_dtypes_at_the_border(dtype):
    with jax.enable_x64(True):
        export(lambda x: jnp.concatenate([x, x]), spec("B", 2, dtype=jnp.dtype(dtype)))


def test_integers_of_the_default_width():
    check(lambda x: x + 1, i32("B"))


def test_two_processes_with_different_hash_seeds_write_identical_bytes():
    program = textwrap.dedent(
        """
        import hashlib, jax, jax.numpy as jnp, numpy as np
        from flax import nnx
        import jaxport
        class Net(nnx.Module):
            def __init__(self, rngs):
                self.a, self.b = nnx.Linear(3, 4, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)
            def __call__(self, x, mask):
                return {"z": jnp.where(mask, self.b(self.a(x)), 0), "a": jax.nn.softmax(x)}
        exported = jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 3), jax.ShapeDtypeStruct(("B", 1), bool)], functions=nnx.Linear)
        print(hashlib.sha256(exported.proto.SerializeToString()).hexdigest())
        """
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
