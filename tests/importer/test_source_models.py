"""Whole models as printed source: equal to the program, gradients included, where jaxport cannot be imported."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from examples.models import MODELS, build
from jaxport.jaxprs.releases import QUICKLY
from tests.importer import printed

QUICK = ("cnn_train", "gpt2", "lstm")
WITHOUT_GRADIENT = ("gpt2_greedy", "llama_greedy")  # they return tokens


def floats(outputs):
    return [leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def scalar(call, params, arrays):
    return sum(jnp.sum(jnp.nan_to_num(leaf) ** 2) for leaf in floats(call(params, arrays)))


# Doubles that are out of the range of float32, as the exporter writes them next to NaN in TopK, are infinite there.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
)
def test_printed_models_equal_their_programs(name: str):
    example = build(name, next(iter(MODELS[name])), "small")
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    program = jaxport.from_onnx(exported.model)
    module = printed.load(program.to_source(framework="jax"))
    inputs = exported.flatten(example.sample(np.random.default_rng(0), example.sizes[-1]), {})
    arrays = {key: jnp.asarray(inputs[key]) for key in program.input_names}
    calls = (
        lambda params, arrays: program.apply(params, **arrays),
        lambda params, arrays: module.model(params, *(arrays[key] for key in program.input_names)),  # JAX sorts dicts
    )
    if name in WITHOUT_GRADIENT or not program.params:
        ours, theirs = (
            jax.tree.leaves(jax.jit(call, compiler_options=QUICKLY)(program.params, arrays)) for call in calls
        )
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
        return
    derived = [
        jax.jit(jax.value_and_grad(lambda *args, call=call: scalar(call, *args)), compiler_options=QUICKLY)(
            params, arrays
        )
        for call, params in zip(calls, (program.params, module.params), strict=True)
    ]
    (value, gradients), (printed_value, printed_gradients) = derived
    np.testing.assert_allclose(printed_value, value, rtol=1e-5)
    largest = max(float(jnp.abs(gradient).max()) for gradient in gradients.values())
    assert largest > 0
    for key, gradient in gradients.items():
        np.testing.assert_allclose(printed_gradients[key], gradient, rtol=1e-4, atol=1e-6 * largest, err_msg=key)
