"""Training steps as graphs: gradients of whole models, and an optimizer's step with its state as inputs and outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxport
from examples.models import build, cells
from examples.models.example import as_specs
from jaxport.jaxprs import dims
from jaxport.testing import seeded
from jaxport.verify.comparing import difference

#: Models whose results are no floats, or that are not meant to be trained.
NOT_TRAINED = {"preprocess"}
DIFFERENTIABLE = [(name, framework) for name, framework in cells() if name not in NOT_TRAINED]


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.second = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.norm(self.first(x))))


DEFINITION, PARAMETERS = nnx.split(seeded(Network))
OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "adamw, clipped, with a schedule": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-2, 10), weight_decay=1e-3)
    ),
    "sgd with momentum": optax.sgd(0.1, momentum=0.9),
}


def loss(parameters, x, labels):
    logits = nnx.merge(DEFINITION, parameters)(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def stepping(optimizer):
    def step(parameters, state, x, labels):
        value, gradient = jax.value_and_grad(loss)(parameters, x, labels)
        updates, state = optimizer.update(gradient, state, parameters)
        return value, optax.apply_updates(parameters, updates), state

    return step


def structs(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype), tree)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_an_optimizer(name):
    """Three steps, each side on its own results, with a batch size that changes."""
    optimizer = OPTIMIZERS[name]
    step, state = stepping(optimizer), optimizer.init(PARAMETERS)
    inputs = [
        structs(PARAMETERS), structs(state), jax.ShapeDtypeStruct(("B", 4), np.float32),
        jax.ShapeDtypeStruct(("B",), np.int32),
    ]  # fmt: skip
    exported = jaxport.to_onnx(step, inputs)
    generator = np.random.default_rng(0)
    expected = actual = (PARAMETERS, state)
    for batch in (5, 2, 7):
        data = generator.normal(size=(batch, 4)).astype(np.float32), generator.integers(0, 3, batch).astype(np.int32)
        wanted, *expected = jax.jit(step)(*expected, *data)
        value, *actual = exported(*actual, *data)
        for a, b in zip(jax.tree.leaves((wanted, expected)), jax.tree.leaves((value, actual)), strict=True):
            found = difference(a, b, rtol=1e-4, atol=1e-5)
            assert not found.problem, f"batch {batch}: {found.problem}"


def test_the_names_of_parameters_and_state_are_those_of_the_pytrees():
    optimizer = OPTIMIZERS["adam"]
    inputs = [structs(PARAMETERS), structs(optimizer.init(PARAMETERS)), (5, 4), jax.ShapeDtypeStruct((5,), np.int32)]
    exported = jaxport.to_onnx(stepping(optimizer), inputs)
    assert "parameters.first.kernel" in exported.input_names
    assert len(exported.output_names) == 1 + len(jax.tree.leaves(inputs[:2]))


def squares(results):
    """A number that depends on all results of a model."""
    floats = [leaf for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return sum(jnp.mean(leaf**2) for leaf in floats)


def within(model):
    """A model that may be called under `grad`: the state that a call changes belongs to the trace."""
    if not isinstance(model, nnx.Module):
        return model
    definition, state = nnx.split(model)
    return lambda *args: nnx.merge(definition, state, copy=True)(*args)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "framework"), DIFFERENTIABLE)
def test_the_gradient_of_a_model(name, framework):
    """With respect to the first input of floats, or where there is none to all weights that the function closes over."""
    example = build(name, framework, "small")
    specs = as_specs(example.inputs)
    sizes = example.sizes[0]
    arguments = example.sample(np.random.default_rng(0), sizes)
    positions = [
        i for i, a in enumerate(arguments) if all(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(a))
    ]
    if not positions:
        pytest.skip("no argument of floats")
    model = within(example.fn)
    function = jax.value_and_grad(lambda *args: squares(model(*args)), positions[0])
    static = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(tuple(dims.evaluate(d, sizes) for d in s.shape), s.dtype), specs
    )
    exported = jaxport.to_onnx(function, list(static), **{"state": "discard", **example.options})
    report = exported.verify(list(arguments), atol=None)
    for output in report.outputs:
        assert output.difference.relative <= 1e-4, f"{output.name}: {report}"
