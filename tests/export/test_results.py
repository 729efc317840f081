"""A function whose result is no result: a model, a function, or nothing."""

from __future__ import annotations

import functools

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxport

X = jnp.ones((2, 4))
LINEAR = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

MODELS = {
    "nnx": lambda depth=1: LINEAR,
    "equinox": lambda x: eqx.nn.Linear(4, 4, key=jax.random.key(0)),
    "linen": lambda x: linen.Dense(3),
    "function": lambda x: lambda y: y,
    "jit": lambda x: jax.jit(jnp.sin),
    "partial": lambda x: functools.partial(jnp.add, x),
    "class": lambda x: nnx.Linear,
}
NOTHING = {
    "none": lambda x: None,
    "text": lambda x: "a text",
    "empty": lambda x: (),
    "dict": lambda x: {"a": None, "b": ["c"]},
}
RESULTS = {
    "with others": lambda x: (x, None, "a"),
    "number": lambda x: 3.0,
    "state": lambda x: nnx.state(LINEAR),
    "parameter": lambda x: LINEAR.kernel,
    "module that holds arrays": lambda x: Held(x),
}


class Held(eqx.Module):
    value: jax.Array


@pytest.mark.parametrize("name", MODELS)
def test_a_function_that_returns_a_model_is_refused(name):
    with pytest.raises(jaxport.InvalidArgument, match=r"which is called itself(.|\n)*export what it returns"):
        jaxport.to_onnx(MODELS[name], [X])


@pytest.mark.parametrize("name", NOTHING)
def test_a_function_that_returns_no_array_is_refused(name):
    with pytest.raises(jaxport.InvalidArgument, match=r"returns no array(.|\n)*return what the model computes"):
        jaxport.to_onnx(NOTHING[name], [X])


@pytest.mark.parametrize("name", RESULTS)
def test_other_results_are_results(name):
    assert jaxport.to_onnx(RESULTS[name], [X]).verify().ok
