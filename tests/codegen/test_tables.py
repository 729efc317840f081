"""Weights that no call of a layer reads: tables that nobody trains, tables of layers that are never called, lists of lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from flax import nnx
from safetensors.numpy import load_file

import jaxport
from tests.codegen import structured
from tests.codegen.structured import load
from tests.codegen.test_loops import Graph, X
from tests.codegen.test_structured import FRAMEWORKS, check_model

ANGLES = np.arange(16)[:, None] * np.array([1.0, 0.1, 0.01, 0.001])


def with_table(name: str, array: np.ndarray, path: str) -> onnx.ModelProto:
    graph = Graph(x=[16, 8])
    graph.tensors[name] = array.astype(np.float32)
    x = graph.node("Add", ["x", name], path)
    return graph.model(y=graph.linear(graph.node("Tanh", [x], path), f"{path}.up" if path else "up"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_table_of_sines_is_not_trained(framework: str, tmp_path: Path) -> None:
    table = np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], axis=1)
    code = check_model(with_table("repeat_1", table, "block"), tmp_path, framework)
    assert {"nnx": "self.table = Table(", "equinox": "lax.stop_gradient(self.table)"}[framework] in code


def test_a_mask_is_not_trained(tmp_path: Path) -> None:
    mask = np.where(np.arange(16)[:, None] < np.arange(8), -100.0, 0.0)
    assert "self.table = Table(" in check_model(with_table("val_3", mask, "block"), tmp_path, "nnx")


def test_a_tensor_of_the_module_itself_is_trained_and_one_without_a_name_is_not(tmp_path: Path) -> None:
    table = np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], axis=1)
    assert "Table" not in check_model(with_table("block.positions", table, "block"), tmp_path, "nnx")
    assert "Table(" in check_model(with_table("val_3", ANGLES.repeat(2, axis=1), "block"), tmp_path, "nnx")


def relative(named: bool) -> onnx.ModelProto:
    """Two layers that read rows of a table of the module around, which the first of them cuts out."""
    graph = Graph(x=X)
    table = graph.weight("encoder.positions.weight" if named else "val_1", 12, 8)
    graph.tensors |= {"from": np.array([2]), "to": np.array([3])}
    rows = graph.node("Slice", [table, "from", "to"], "encoder.layers.0")
    x = "x"
    for layer in range(2):
        path = f"encoder.layers.{layer}"
        x = graph.linear(graph.node("Add", [x, rows], path), f"{path}.up")
    return graph.model(y=graph.node("Tanh", [x]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_table_of_the_module_around_is_one_of_its_layers(framework: str, tmp_path: Path) -> None:
    code = check_model(relative(named=True), tmp_path, framework)
    assert "in self.layers:" in code
    assert {"nnx": "self.positions.embedding[...][", "equinox": "self.positions.weight["}[framework] in code
    assert any(path.startswith("encoder.positions.") for path in load(tmp_path).named(load(tmp_path).load()))


def test_a_table_without_a_name_stays_where_it_is_read(tmp_path: Path) -> None:
    assert "Embed(" not in check_model(relative(named=False), tmp_path, "nnx")


class Stages(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.stages = nnx.List([nnx.List([Block(rngs) for _ in range(count)]) for count in (2, 1)])

    def __call__(self, x):
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return x


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.down = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(x)))


def test_a_list_of_lists_is_one(tmp_path: Path) -> None:
    code = check_model(jaxport.to_onnx(Stages(nnx.Rngs(0)), [("batch", 4)]).model, tmp_path, "nnx")
    assert "in self.stages[0]:" in code
    keys = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(Stages(nnx.Rngs(0)), nnx.Param))}
    assert keys == set(load(tmp_path).named(load(tmp_path).load()))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_modules_that_look_up_in_one_table_get_what_its_embedding_returns(framework: str, tmp_path: Path) -> None:
    """A translator: the words of both sides have one table, which the logits are computed with, too."""
    graph = Graph()
    graph.inputs = [onnx.helper.make_tensor_value_info(name, 7, ["n", 3]) for name in ("source", "target")]
    table, memory = graph.weight("encoder.words.weight", 9, 8), ""
    for side, word in (("encoder", "source"), ("decoder", "target")):
        words = graph.node("Gather", [table, word], f"{side}.words")
        words = graph.node("Mul", [words, memory], side) if memory else words
        memory = graph.block(words, f"{side}.block")
    turned = graph.node("Transpose", [table], "head", perm=[1, 0])
    model = graph.model(y=graph.node("MatMul", [memory, turned], "head"))
    code = structured.check(
        model, {"source": np.array([[0, 8, 3]]), "target": np.array([[1, 1, 5]])}, tmp_path, framework
    )
    assert "self.encoder.words(target)" in code
    assert [name for name in load_file(tmp_path / "model.safetensors") if "words" in name] == [
        {"nnx": "encoder.words.embedding", "equinox": "encoder.words.weight"}[framework]
    ]
    calls = [line for line in code.splitlines() if "self.decoder(" in line]
    assert calls
    assert not any("embedding" in line or "weight" in line for line in calls)
    rust = jaxport.from_onnx(model).to_source(framework="burn").code
    assert "embed::<2, 3>(&self.encoder.words, target)" in " ".join(rust.split())


def test_what_an_exporter_computed_of_equal_weights_belongs_to_each_layer(tmp_path: Path) -> None:
    graph, value = Graph(x=["n", 8]), "x"
    for layer in range(2):
        path = f"layers.{layer}"
        decay = graph.node("Tanh", [graph.weight("onnx::Exp_17", 8, 8)], path)
        value = graph.node("MatMul", [graph.block(value, path), decay], path)
    code = check_model(graph.model(y=value), tmp_path, "nnx")
    assert code.count("self.Exp = nnx.Param(") == 1
    assert "for layer in self.layers" in code
