"""Expectations of a graph hold where they should, and fail with what the model has."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

from jaxport.testing import expect_graph, expectation
from tests.exports import export


@pytest.fixture(scope="module")
def branching():
    """x → Sin → { Cos → Neg, Exp } → Add."""
    return export(lambda x: -jnp.cos(jnp.sin(x)) + jnp.exp(jnp.sin(x)), ("B", 3))


@pytest.mark.parametrize(
    ("paths", "exact"),
    [
        (["Sin -> Cos -> Neg -> Add"], False),
        (["Sin -> Exp -> Add"], False),
        (["Cos->Neg"], False),
        (["Add"], False),
        (["Sin -> Cos -> Neg -> Add", "Exp -> Add"], False),
        (["Sin -> Cos -> Neg -> Add", "Exp"], True),
        (["Sin", "Cos", "Neg", "Exp", "Add"], True),
        (["Sin[B, 3] -> Cos[?, 3] -> Neg[B,?]"], False),
    ],
)
def test_paths_that_are_there(branching, paths, exact):
    expect_graph(branching, paths, exact=exact)
    expect_graph(branching.model, paths, exact=exact)


@pytest.mark.parametrize(
    ("paths", "exact", "text"),
    [
        (["Sin -> Neg"], False, "there is no path `Sin -> Neg`; the model has\n  Sin\n  Cos -> Neg\n"),
        (["Sin[B, 4]"], False, "there is no path `Sin[B, 4]`"),
        (["Sin[B]"], False, "there is no path `Sin[B]`"),
        (["Sin -> Cos -> Neg -> Add"], True, "no path names Exp"),
        (["Sin", "Sin", "Cos", "Neg", "Exp", "Add"], True, "there is no path `Sin`"),
        (["Sin -> "], False, "` ` is not an element of a path"),
    ],
)
def test_paths_that_are_not_there(branching, paths, exact, text):
    with pytest.raises(AssertionError) as caught:
        expect_graph(branching, paths, exact=exact)
    assert text in str(caught.value)


def test_counts_shapes_and_functions(branching):
    expect_graph(branching, counts={"Sin": 1, "Cast": 0}, shapes={"output": ("B", 3), "x": ("B", 3)}, functions={})
    with pytest.raises(AssertionError, match="there are 1 Sin, 2 are expected"):
        expect_graph(branching, counts={"Sin": 2})
    with pytest.raises(AssertionError, match=r"`output` has the shape \('B', 3\), \(3,\) is expected"):
        expect_graph(branching, shapes={"output": (3,)})
    with pytest.raises(AssertionError, match="there is no value `nothing`"):
        expect_graph(branching, shapes={"nothing": (3,)})


def test_functions_are_counted_by_their_calls():
    layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    exported = export(lambda x: jnp.tanh(layer(jnp.sin(layer(x)))), ("B", 3), functions="flax.nnx.Linear")
    expect_graph(
        exported,
        ["flax.nnx.Linear -> Sin -> flax.nnx.Linear -> Tanh", "MatMul -> Add"],
        functions={"flax.nnx.Linear": 2},
    )
    with pytest.raises(AssertionError, match="the functions are called"):
        expect_graph(exported, functions={})


def test_symbols_in_shapes():
    exported = export(lambda x: jnp.concatenate([x, x]).reshape(-1), ("B", "T"))
    expect_graph(exported, shapes={"output": ("2*B*T",)})
    expect_graph(export(lambda x: jnp.sin(x), ("max(B, 2)",)), ["Sin[max(B, 2)]"])


def test_bodies_are_searched():
    exported = export(lambda xs: lax.scan(lambda c, x: (jnp.cos(jnp.sin(c + x)), c), 0.0, xs), ("T",))
    expect_graph(exported, ["Sin -> Cos"], counts={"Sin": 1})


MODELS = {
    "branching": lambda: export(lambda x: -jnp.cos(jnp.sin(x)) + jnp.exp(jnp.sin(x)), ("B", 3)),
    "functions": lambda: export(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), ("B", 3), functions=nnx.Linear),
    "softmax": lambda: export(jax.nn.softmax, ("B", "T")),
    "nothing": lambda: export(lambda x: x, ("B",)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_meets_its_own_expectation_and_not_that_of_another(name):
    exported = MODELS[name]()
    text = expectation(exported)
    eval(text, {"expect_graph": expect_graph, "exported": exported})
    other = export(lambda x: jnp.log(x), ("B", 7))
    with pytest.raises(AssertionError):
        eval(text, {"expect_graph": expect_graph, "exported": other})


def test_the_command_prints_the_expectation(tmp_path):
    exported = MODELS["branching"]()
    exported.save(tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "jaxport.testing", str(tmp_path / "m.onnx")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expectation(exported)
