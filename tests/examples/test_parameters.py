"""What a parameter is: the same arrays under the same paths in the model, after export and import, and in printed source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from examples.models import MODELS, Example, build, cells
from jaxport.importer import Program

STEPS, RATE = 20, 0.002


def _sizes(arrays: Mapping[str, Any]) -> dict[str, int]:
    return {path: int(np.prod(array.shape)) for path, array in arrays.items()}


def _exported(example: Example) -> tuple[jaxport.Exported, Program]:
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    return exported, jaxport.from_onnx(exported.proto)


def of_the_model(exported: jaxport.Exported, role: str) -> dict[str, int]:
    """The sizes of the arrays of the user's model by path: parameters, or statistics."""
    chosen = [w for w in exported.traced.weights if w.trainable == (role == "parameter")]
    floats = [w for w in chosen if (role == "parameter" or w.owned) and jnp.issubdtype(w.value.dtype, jnp.inexact)]
    return _sizes({weight.path: weight.value for weight in floats})


def mapped(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """The sizes after the export by the paths before: parts of stacked layers are one again."""
    whole: Counter[str] = Counter()
    for name, size in after.items():
        stacked = re.sub(r"\.\d+$", "", name)
        whole[stacked if stacked in before and name not in before else name] += size
    return dict(whole)


def check_roles(example: Example) -> Program:
    exported, program = _exported(example)
    for role in ("parameter", "statistic"):
        before = of_the_model(exported, role)
        names = [name for name, own in program.roles.items() if own == role]
        tensors = exported.model.graph.initializers
        after = {name: tensors[name].const_value.size for name in names}
        assert mapped(before, after) == before, role
    assert set(program.params) == {name for name, role in program.roles.items() if role == "parameter"}
    assert set(program.params).isdisjoint(program.constants)
    return program


def check_printed(program: Program) -> None:
    """Each parameter is in the printed source once, and nothing else is trained there."""
    from flax import nnx

    source = program.to_source(framework="nnx")
    namespace: dict[str, Any] = {"__name__": "printed"}
    exec(compile(source.code, "printed", "exec"), namespace)  # what the project itself has printed
    model = namespace["filled"](source.tensors)
    params = {".".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    assert {source.origins[path] for path in params} == set(program.params)
    assert sum(_sizes(params).values()) == sum(_sizes(program.param_specs).values())


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        pytest.param(name, framework, marks=() if framework == next(iter(MODELS[name])) else pytest.mark.slow)
        for name, framework in cells()
    ],
)
def test_parameters_and_statistics_come_back(name: str, framework: str):
    example = build(name, framework, "small")
    check_printed(check_roles(example))


def curve(loss: Callable[[Any], jax.Array], params: Any) -> list[float]:
    """The losses of some steps of gradient descent."""
    step, losses = jax.jit(jax.value_and_grad(loss)), []
    for _ in range(STEPS):
        value, gradients = step(params)
        losses.append(float(value))
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
    return losses


def first_of_floats(outputs: Any) -> jax.Array | None:
    return next((leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.floating)), None)


SENSITIVE = {("resnet50_train", "linen")}
QUICK = {("mlp", "nnx"), ("cnn", "equinox"), ("lstm", "nnx"), ("llama_scan", "nnx"), ("moe", "linen")}


@pytest.mark.parametrize(
    ("name", "framework"),
    [pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow) for cell in cells()],
)
def test_training_is_the_same(name: str, framework: str):
    example = build(name, framework, "small")
    # Flax updates a cache in place, which an array of NumPy without axes does not take.
    arguments = jax.tree.map(jnp.asarray, example.sample(np.random.default_rng(0), example.sizes[-1]))
    exported, program = _exported(example)
    mox = jaxport.make_mox(example.fn)(*arguments)
    if not mox.params or not program.params or first_of_floats(mox(*arguments)) is None:
        pytest.skip("nothing is trained")
    inputs = exported.flatten(arguments, {})

    def loss(outputs: Any) -> jax.Array:
        result = first_of_floats(outputs)
        assert result is not None
        return jnp.mean((result - 0.5) ** 2)

    trained = dict(mox.params)

    def original(params: Any) -> jax.Array:
        return loss(mox.apply(params, *arguments))

    before = curve(original, trained)
    static = {name: inputs[name] for name in program.static_inputs}
    after = curve(lambda params: loss(program.apply(params, **{**inputs, **static})), program.params)
    # Batch normalization over a few elements multiplies rounding errors: as those of the original, trained by itself.
    rounded = jax.tree.map(lambda p: p * (1 + 1e-6), trained) if (name, framework) in SENSITIVE else trained
    moved = np.abs(np.subtract(curve(original, rounded), before)).max() if rounded is not trained else 0.0
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-5 * before[0] + 3 * moved)
    assert moved < 0.05 * before[0]
    assert before[-1] != before[0]
