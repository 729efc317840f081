"""Weights that `trainable` leaves out: they stay in their layers, under their paths, and are not trained."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import onnx
import pytest
from flax import nnx

import jaxport
from jaxport.codegen.modules import prefixes
from tests.codegen.structured import load, loss_of
from tests.codegen.test_loops import Graph
from tests.codegen.test_structured import FRAMEWORKS

HEAD = ["head.weight", "head.bias"]


def classifier() -> onnx.ModelProto:
    """A stack of blocks, and a head."""
    graph, x = Graph(x=["batch", 8]), "x"
    for number in range(3):
        x = graph.block(x, f"body.layers.{number}")
    return graph.model(y=graph.linear(graph.node("Tanh", [x]), "head"))


def trained_paths(module: object, model: object, framework: str) -> set[str]:
    """The paths of what is trained, as the framework tells."""
    if framework == "nnx":
        gradients = nnx.grad(lambda model: loss_of(model(np.ones((2, 8), np.float32))))(model)
        return {".".join(map(str, path)) for path, _ in nnx.to_flat_state(gradients)}
    trained, _ = eqx.partition(model, module.is_trained(model))
    return set(module.named(trained))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_frozen_weights_stay_in_their_layers(framework: str, tmp_path: Path) -> None:
    whole, part = jaxport.from_onnx(classifier()), jaxport.from_onnx(classifier(), trainable=HEAD)
    source = part.to_source(tmp_path, framework=framework)
    assert set(source.tensors) == set(whole.to_source(framework=framework).tensors)
    assert set(part.params) == set(HEAD)
    module = load(tmp_path)
    model = module.load()
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_allclose(model(x), part(x), rtol=1e-5, atol=1e-5)
    origins = {path for path, name in source.origins.items() if name in HEAD}
    assert trained_paths(module, model, framework) == origins
    module.save(model, tmp_path / "again.safetensors")
    again = module.load(tmp_path / "again.safetensors")
    assert all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(model)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_single_weights_are_trained(framework: str, tmp_path: Path) -> None:
    """LoRA's authors train some biases: those of the second block."""
    names = ["body.layers.1.up.bias", "body.layers.1.down.bias"]
    program = jaxport.from_onnx(classifier(), trainable=names)
    source = program.to_source(tmp_path, framework=framework)
    module = load(tmp_path)
    found = trained_paths(module, module.load(), framework)
    assert {source.origins[path] for path in found} == set(names)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_frozen_if_all_is_trained(framework: str) -> None:
    code = jaxport.from_onnx(classifier()).to_source(framework=framework).code
    again = jaxport.from_onnx(classifier(), trainable=list(jaxport.from_onnx(classifier()).params))
    assert "TRAINED" not in code
    assert again.to_source(framework=framework).code == code


def test_nothing_may_be_trained(tmp_path: Path) -> None:
    jaxport.from_onnx(classifier(), trainable=[]).to_source(tmp_path, framework="nnx")
    assert not jax.tree.leaves(nnx.state(load(tmp_path).load(), nnx.Param))


def test_prefixes_are_parts_of_paths() -> None:
    assert prefixes({"a.b.c", "a.b.d", "ab.c"}, {"a.bb.c", "abc"}) == ["a.b", "ab"]
    assert prefixes({"layers.1.w"}, {"layers.10.w"}) == ["layers.1"]


@pytest.mark.parametrize(("names", "says"), [(HEAD, 'Only those under "head" are'), ([], "None is")])
def test_a_crate_has_frozen_weights_in_its_layers(names: list[str], says: str) -> None:
    source = jaxport.from_onnx(classifier(), trainable=names).to_source(framework="burn")
    assert set(source.tensors) == set(jaxport.from_onnx(classifier()).to_source(framework="burn").tensors)
    assert f"{says} trained." in source.code
