"""Modules that call their elements one after the other: printed in place, with functions between them."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import nnx

import jaxport
from tests.codegen.structured import load
from tests.codegen.test_loops import Graph, X
from tests.codegen.test_structured import FRAMEWORKS, check_model

FORMS = {"nnx": "class Sequential(nnx.List):", "equinox": "class Sequential(eqx.Module):"}


def with_gaps() -> onnx.ModelProto:
    """`Sequential(Linear, Tanh, Dropout, Linear, Sigmoid)`, as a file for inference has it."""
    graph = Graph(x=X)
    x = graph.node("Tanh", [graph.linear("x", "net.0")], "net.1")
    return graph.model(y=graph.node("Sigmoid", [graph.linear(x, "net.3")], "net.4"))


def of_blocks() -> onnx.ModelProto:
    """A sequence in a sequence, and a module of its own in it."""
    graph = Graph(x=X)
    x = graph.node("Tanh", [graph.linear("x", "net.0.0")], "net.0.1")
    x = graph.block(graph.linear(x, "net.0.2"), "net.1")
    return graph.model(y=graph.node("Neg", [x]))


def with_functions() -> onnx.ModelProto:
    """Functions of several operators, two of which are equal."""
    graph = Graph(x=X)
    graph.tensors["two"] = np.array(2, np.float32)

    def squared(x: str, path: str) -> str:
        return graph.node("Mul", [graph.node("Mul", [x, "two"], path), graph.node("Tanh", [x], path)], path)

    x = squared(graph.linear("x", "net.0"), "net.1")
    x = squared(graph.linear(x, "net.2"), "net.3")
    x = graph.linear(x, "net.4")
    return graph.model(y=graph.node("Softmax", [x], "net.5", axis=-1))


SEQUENCES = {
    "gaps": (with_gaps, ["nn.identity,", "nn.sigmoid,"], {"net.0", "net.3"}),
    "blocks": (of_blocks, ["Sequential("], {"net.0.0", "net.0.2", "net.1.up", "net.1.down"}),
    "functions": (with_functions, ["def net_1(", "softmax"], {"net.0", "net.2", "net.4"}),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", SEQUENCES)
def test_a_container_that_is_called_is_a_sequence(case: str, framework: str, tmp_path: Path) -> None:
    make, texts, modules = SEQUENCES[case]
    code = check_model(make(), tmp_path, framework)
    assert FORMS[framework] in code
    assert "net = Sequential(" in code
    assert all(text in code for text in texts)
    assert "def net_3(" not in code
    paths = {path.rpartition(".")[0].replace(".layers.", ".") for path in load(tmp_path).named(load(tmp_path).load())}
    assert paths == modules


def with_a_shortcut() -> onnx.ModelProto:
    """The second element reads what the first reads, too."""
    graph = Graph(x=X)
    x = graph.node("Add", ["x", graph.linear("x", "net.0")], "net")
    return graph.model(y=graph.linear(graph.node("Tanh", [x], "net.1"), "net.2"))


def with_state() -> onnx.ModelProto:
    """The value between two elements is an output."""
    graph = Graph(x=X)
    x = graph.node("Tanh", [graph.linear("x", "net.0")], "net.1")
    return graph.model(y=graph.linear(x, "net.2"), z=x)


def without_a_number() -> onnx.ModelProto:
    """A function stands between two elements that follow one another."""
    graph = Graph(x=X)
    return graph.model(y=graph.linear(graph.node("Tanh", [graph.linear("x", "net.0")]), "net.1"))


def twice() -> onnx.ModelProto:
    """The first element is called again behind the second."""
    graph = Graph(x=X)
    x = graph.node("Tanh", [graph.linear("x", "net.0")], "net.1")
    return graph.model(y=graph.linear(graph.node("Tanh", [graph.linear(x, "net.2")], "net.3"), "net.0"))


@pytest.mark.parametrize("make", [with_a_shortcut, with_state, without_a_number, twice])
def test_what_is_no_chain_is_no_sequence(make, tmp_path: Path) -> None:
    assert "Sequential" not in check_model(make(), tmp_path, "nnx")


def test_a_layer_that_another_was_folded_into_is_itself(tmp_path: Path) -> None:
    graph = Graph(x=X)
    folded = graph.node("MatMul", ["x", graph.weight("folded", 8, 8)], "stem.1")
    folded = graph.node("Add", [folded, graph.weight("folded_bias", 8)], "stem.1")
    assert "self.stem = nnx.Linear(" in check_model(graph.model(y=graph.node("Tanh", [folded])), tmp_path, "nnx")


@pytest.mark.parametrize("kept", [False, True])
def test_a_layer_that_a_normalization_was_folded_into_is_itself(kept: bool, tmp_path: Path) -> None:
    """Its node has the place of the normalization, unless the file has the layer, too."""
    graph = Graph(x=X)
    x = graph.node("MatMul", ["x", graph.weight("block.first.weight", 8, 8)], "block.norm")
    x = graph.linear(
        graph.node("Tanh", [graph.node("Add", [x, graph.weight("b", 8)], "block.norm")], "block"), "block.second"
    )
    x = graph.node("Mul", [x, graph.weight("block.first.factor", 8)], "block.first") if kept else x
    code = check_model(graph.model(y=graph.node("Neg", [x])), tmp_path, "nnx")
    assert ("self.norm = nnx.Linear" in code) == kept
    assert ("self.first = nnx.Linear" in code) != kept


class Stack(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.Sequential(
            nnx.Linear(6, 8, rngs=rngs), nnx.relu, nnx.Dropout(0.5, deterministic=True), nnx.Linear(8, 6, rngs=rngs)
        )
        self.head = nnx.Sequential(nnx.LayerNorm(6, rngs=rngs), lambda x: x[:, 1:], nnx.Linear(5, 2, rngs=rngs))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.layers(x))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sequences_of_flax_keep_their_paths(framework: str, tmp_path: Path) -> None:
    model = Stack(nnx.Rngs(0))
    code = check_model(jaxport.to_onnx(model, [("batch", 6)]).model, tmp_path, framework)
    assert code.count("nnx.Sequential(") == 2 * (framework == "nnx")
    if framework == "nnx":
        keys = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))}
        assert keys == set(load(tmp_path).named(load(tmp_path).load()))


def test_rust_has_short_sequences_in_the_structure_around_them() -> None:
    """But those that are called twice, in a loop, or share a table with others are structures; so are long ones."""

    def linear(start: int, end: int) -> nnx.Linear:
        return nnx.Linear(start, end, rngs=rngs)

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.twice = nnx.Sequential(linear(4, 4), nnx.relu)
            self.blocks = nnx.List([nnx.Sequential(linear(4, 4), nnx.relu) for _ in range(3)])
            self.nested = nnx.Sequential(nnx.Sequential(linear(4, 8), jnp.tanh), nnx.LayerNorm(8, rngs=rngs))
            self.long = nnx.Sequential(linear(8, 7), linear(7, 6), linear(6, 5), linear(5, 4), linear(4, 3))
            self.table = nnx.Sequential(nnx.Embed(5, 4, rngs=rngs))

        def __call__(self, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = self.twice(self.twice(self.table(ids)))
            for block in self.blocks:
                x = block(x)
            return self.long(self.nested(x)), self.table.layers[0].attend(x)

    rngs = nnx.Rngs(0)
    ids = jax.ShapeDtypeStruct(("batch", "length"), np.int32)
    source = jaxport.to_source(Model(), [ids], framework="burn")
    fields = source.code.partition("pub struct Model {")[2].partition("}")[0]
    kinds = dict(line.strip(" ,").removeprefix("pub ").split(": ") for line in fields.strip().splitlines())
    assert kinds == {
        "table": "Table", "twice": "Twice", "blocks": "Vec<Block>", "nested_layers_0_0": "Linear", "nested_1": "LayerNorm",
        "long": "Long",
    }  # fmt: skip
    assert source.origins["nested_layers_0_0.weight"] == "nested.layers.0.layers.0.kernel"
