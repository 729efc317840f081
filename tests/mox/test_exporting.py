"""Edited and imported programs between ONNX and Mox: what was edited is claimed by no rule and no shared function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from onnx import helper, numpy_helper

import jaxport
from jaxport.blocks.marking.boundary import boundary
from jaxport.export import rules as registry
from jaxport.mox import lora, prune, quantize
from tests.cli.running import run

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)), jnp.float32)


class Inner(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return jnp.sin(self.linear(x))


class Outer(nnx.Module):
    def __init__(self, rngs):
        self.inner = Inner(rngs)
        self.other = Inner(rngs)

    def __call__(self, x):
        return self.other(self.inner(x))


@pytest.fixture
def a_rule(monkeypatch):
    """A rule for `Inner` that is right for the original, and wrong for an edited one."""
    from jaxport.blocks.marking.window import target_of

    target = target_of(Inner)
    monkeypatch.setitem(registry.BLOCK_RULES, target, None)
    del registry.BLOCK_RULES[target]

    @jaxport.rule(block=target)
    def inner(op, x, kernel, bias, *, block, jaxpr):
        return op.Sin(op.Add(op.MatMul(x, kernel), bias))

    yield target
    del registry.BLOCK_RULES[target]


def rules_used(exported):
    return [record.rule for record in exported.records if record.rule.endswith("inner")]


def test_a_rule_claims_the_original_and_not_what_was_edited_inside(a_rule):
    mox = jaxport.make_mox(Outer(nnx.Rngs(0)))(X)
    assert len(rules_used(jaxport.to_onnx(mox, [X]))) == 2
    edited = mox.sub('//Inner[@name="inner"]/sin', jnp.cos)
    exported = jaxport.to_onnx(edited, [X])
    assert len(rules_used(exported)) == 1
    np.testing.assert_allclose(exported(X), edited(X), rtol=1e-5)
    assert np.abs(np.asarray(edited(X) - mox(X))).max() > 0.1


def test_a_shared_function_does_not_claim_what_was_edited():
    mox = jaxport.make_mox(Outer(nnx.Rngs(0)))(X)
    whole = jaxport.to_onnx(mox, [X], functions=["Inner"])
    assert [call.path for call in whole.function_calls] == ["inner", "other"]
    edited = mox.sub('//Inner[@name="inner"]/sin', jnp.cos)
    exported = jaxport.to_onnx(edited, [X], functions=["Inner"])
    assert [call.path for call in exported.function_calls] == ["other"]
    np.testing.assert_allclose(exported(X), edited(X), rtol=1e-5)


def test_a_decorated_function_that_was_edited_is_inlined():
    halve = jaxport.onnx_function(lambda x: jnp.sin(x) / 2)
    mox = jaxport.make_mox(lambda x: halve(halve(x)))(X)
    edited = mox.sub("(//sin)[1]", jnp.cos)
    exported = jaxport.to_onnx(edited, [X])
    assert len(exported.function_calls) == 1
    np.testing.assert_allclose(exported(X), edited(X), rtol=1e-5)


def test_a_symbolic_mox_is_exported_and_its_names_are_kept():
    (batch,) = jax.export.symbolic_shape("B")
    mox = jaxport.make_mox(Outer(nnx.Rngs(0)))(jax.ShapeDtypeStruct((batch, 3), jnp.float32))
    exported = jaxport.to_onnx(mox.sub("//Linear", lora(rank=2)), [("B", 3)])
    assert exported.input_names == ["x"]
    assert {"inner.linear.kernel", "inner.linear.lora_a"} <= set(exported.model.graph.initializers)
    assert exported.verify().ok


def test_inputs_of_an_edit_are_inputs_of_the_graph():
    added = jaxport.mox.Replacement(
        lambda original, params, x, shift: original(x) + shift,
        inputs={"shift": jax.ShapeDtypeStruct((3,), jnp.float32)},
    )
    edited = jaxport.make_mox(Outer(nnx.Rngs(0)))(X).sub("//Linear", added)
    exported = jaxport.to_onnx(edited, [X], input_params={"shift": jax.ShapeDtypeStruct((3,), jnp.float32)})
    assert exported.input_names == ["x", "shift"]
    shift = jnp.asarray([1.0, 2.0, 3.0])
    np.testing.assert_allclose(exported(X, shift=shift), edited(X, shift=shift), rtol=1e-5)


# -- imported programs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), jax.nn.relu, nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    jaxport.to_onnx(model, [("B", 3)]).save(path)
    return path


def test_an_onnx_model_is_a_mox(file):
    program = jaxport.from_onnx(file)
    mox = jaxport.make_mox(program)(X)
    np.testing.assert_array_equal(mox(X), program(X))
    assert mox.params.keys() == program.params.keys()
    assert mox.select("//MatMul").count() == 2
    assert mox.select("//Relu").count() == 1
    gradients = [jax.grad(lambda p, f=f: f(p, X).sum())(program.params) for f in (mox.apply, program.apply)]
    jax.tree.map(np.testing.assert_array_equal, *gradients)
    edited = mox.sub("//Relu", jnp.tanh)
    inner = mox.capture('//*[@path="layers.0"]')(X)["layers.0"]
    last = program.params["layers.2.kernel"], program.params["layers.2.bias"]
    np.testing.assert_allclose(edited(X), jnp.tanh(inner) @ last[0] + last[1], rtol=1e-5)


@pytest.mark.parametrize("edit", [quantize(), prune(0.5), lora(2)])
def test_an_operator_with_weights_among_its_arguments_is_edited(file, edit):
    mox = jaxport.make_mox(jaxport.from_onnx(file))(X)
    edited = mox.sub("//MatMul", edit, expect=2)
    np.testing.assert_allclose(edited(X), mox(X), atol=0.5)
    assert jaxport.to_onnx(edited, [X]).verify().ok


def test_the_command_shows_queries_and_edits_onnx_files(file, tmp_path, capsys):
    assert run("tree", file) == 0
    assert "layers.0: Linear()  [kernel: f32[3,4], bias: f32[4]]" in capsys.readouterr().out
    assert run("query", file, "//MatMul", "--expect", 2) == 0
    assert "layers.2.MatMul" in capsys.readouterr().out
    assert run("account", file) == 0
    assert "(program)" in capsys.readouterr().out
    out = tmp_path / "out.onnx"
    assert run("sub", file, "//Relu", "jax.nn.gelu", "-o", out) == 0
    edited = jaxport.make_mox(jaxport.from_onnx(file))(X).sub("//Relu", jax.nn.gelu)
    np.testing.assert_allclose(jaxport.from_onnx(out)(X), edited(X), rtol=1e-5)


def test_the_command_takes_functions_and_saved_programs(tmp_path, capsys):
    assert run("tree", "jax.nn:relu", "-i", "B,3") == 0
    assert "jit[relu]" in capsys.readouterr().out
    jaxport.mox.save(jaxport.make_mox(boundary(jnp.sin))(X), tmp_path / "saved.xml")
    assert run("query", tmp_path / "saved.xml", "//sin") == 0
    assert "f32[2,3]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("query", "FILE", "//MatMul", "--expect", 3), 1, "matches 2, not 3"),
        (("query", "FILE", "//MatMul["), 1, "is not a valid XPath expression"),
        (("sub", "FILE", "//Relu", "jax.nn.nothing", "-o", "x.onnx"), 2, "`jax.nn.nothing` is not a function"),
        (("tree", "jax.nn:relu"), 2, "needs inputs"),
        (("tree", "missing.onnx"), 2, "missing.onnx"),
    ],
)
def test_the_command_refuses(file, capsys, arguments, code, message):
    assert run(*(file if argument == "FILE" else argument for argument in arguments)) == code
    assert message in capsys.readouterr().err


def test_the_parameters_of_an_operator_of_an_imported_model():
    kernel = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
    ends = [helper.make_tensor_value_info(name, 1, [2, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(kernel, "w")])
    x = np.ones((2, 4), np.float32)
    mox = jaxport.make_mox(jaxport.from_onnx(helper.make_model(graph, ir_version=10)))(x)
    (gemm,) = mox.select("//Gemm[@params!='']")
    assert list(gemm.params) == list(mox.params) == ["w"]
    np.testing.assert_allclose(gemm.apply(gemm.params, x, kernel), x @ kernel.T, rtol=1e-6)
    with pytest.raises(jaxport.InvalidArgument, match="`w` is an argument of `Gemm`"):
        gemm.apply({"w": 2 * kernel}, x, kernel)
