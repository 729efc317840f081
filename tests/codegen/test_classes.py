"""Which modules become classes: rounds of a scan do, wrappers and names of operators do not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import nnx
from onnx import helper

import jaxport
from jaxport.importer import from_onnx
from tests.codegen import structured
from tests.codegen.test_loops import Graph
from tests.importer.models import model


class Block(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm(x))
        return x + self.down(nnx.gelu(self.up(x)))


class Transformer(nnx.Module):
    """A transformer whose blocks are scanned over, in this order or backwards."""

    def __init__(self, *, rngs: nnx.Rngs, reverse: bool = False):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs: nnx.Rngs) -> Block:
            return Block(rngs=rngs)

        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.blocks = stacked(rngs)
        self.head = nnx.Linear(8, 11, rngs=rngs)
        self.reverse = reverse

    def __call__(self, tokens: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, reverse=self.reverse)
        def run(x: jax.Array, block: Block) -> jax.Array:
            return block(x)

        return self.head(run(self.embed(tokens), self.blocks))


def class_names(code: str) -> list[str]:
    return [line.partition("(")[0].removeprefix("class ") for line in code.splitlines() if line.startswith("class ")]


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("reverse", [False, True])
def test_rounds_of_a_scan_are_blocks_in_a_loop(framework: str, reverse: bool, tmp_path):
    transformer = Transformer(rngs=nnx.Rngs(0), reverse=reverse)
    program = from_onnx(jaxport.to_onnx(transformer, [jax.ShapeDtypeStruct(("batch", 5), jnp.int32)]).model)
    source = program.to_source(tmp_path, framework=framework)
    assert {"Block", "Transformer"} <= {*class_names(source.code)}
    assert "for block in" in source.code
    assert not [word for word in ("Kernel", "linear_", "norm_2") if word in source.code]
    assert {"embed", "blocks", "head"} == {key.split(".")[0] for key in source.tensors}
    tokens = np.arange(10, dtype=np.int32).reshape(2, 5)
    made = structured.load(tmp_path).load()
    np.testing.assert_allclose(made(jnp.asarray(tokens)), transformer(jnp.asarray(tokens)), rtol=1e-4, atol=1e-5)
    assert {*source.origins.values()} <= {*program.params}


def convolutions(names: list[str], result: str = "y") -> onnx.ModelProto:
    """Convolutions and activations, whose nodes have these names."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "serving_default_image:0"
    for number, name in enumerate(names):
        kernel = random.normal(size=(4, 4, 3, 3)).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(kernel, f"const_{number}"))
        nodes.append(helper.make_node("Conv", [x, f"const_{number}"], [f"c{number}"], name, pads=[1, 1, 1, 1]))
        x = f"r{number}" if number + 1 < len(names) else result
        nodes.append(helper.make_node("Relu", [f"c{number}"], [x]))
    image: Any = helper.make_tensor_value_info("serving_default_image:0", 1, ["batch", 4, 8, 8])
    output = helper.make_tensor_value_info(result, 1, ["batch", 4, 8, 8])
    graph = helper.make_graph(nodes, "net", [image], [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


NAMES = {
    "joined names": [f"net/conv{n}/BiasAdd;net/conv{n}/Conv2D;net/re_lu_{n}/Relu6" for n in range(3)],
    "operators between modules": [f"net/Reshape_{n}/Cast/ReLu_6/conv{n}/Auto/Helper/Conv2D" for n in range(3)],
    "wrappers": [f"net/outer{n}/inner/core/conv{n}/Conv2D" for n in range(3)],
}


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("name", NAMES)
def test_names_of_exporters_are_no_classes(name: str, framework: str, tmp_path):
    network = convolutions(NAMES[name])
    x = np.random.default_rng(1).normal(size=(2, 4, 8, 8)).astype(np.float32)
    code = structured.check(network, {"serving_default_image:0": x}, tmp_path, framework)
    # The source for Equinox defines a convolution with channels last.
    assert len({*class_names(code)} - {"Conv"}) <= 2, class_names(code)
    assert "serving_default_image: Array" in code


def test_classes_that_differ_in_the_name_of_a_size_are_one(tmp_path):
    made = model("""g (float[batch, n, 6] x, float[batch, m, 6] z) => (float[p, q, r, 3] y, float[p, q, s, 3] w)
        <float[6, 6] k = {1}, float[6, 6] l = {1}, float[3, 3] m = {1}, float[3, 3] o = {1}> {
        t = Constant<value_ints = [0, 0, 2, 3]>() a = Neg(x) c = Neg(z)
        b = MatMul(a, k) d = Reshape(b, t) i = Tanh(d) y = MatMul(i, m)
        e = MatMul(c, l) f = Reshape(e, t) j = Tanh(f) w = MatMul(j, o) }""")
    random = np.random.default_rng(0)
    places = {
        "k": "towers.0.fc.weight",
        "l": "towers.1.fc.weight",
        "m": "towers.0.out.weight",
        "o": "towers.1.out.weight",
    }
    for tensor in made.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(random.normal(size=tuple(tensor.dims)).astype(np.float32), places[tensor.name])
        )
    for node in made.graph.node:
        node.input[:] = [places.get(each, each) for each in node.input]
        tower = 0 if node.output[0] in ("b", "d", "i", "y") else 1
        node.name = f"/towers.{tower}/{node.op_type}" if node.op_type in ("MatMul", "Reshape", "Tanh") else ""
    arrays = [random.normal(size=(2, n, 6)).astype(np.float32) for n in (3, 5)]
    program = from_onnx(made)
    source = program.to_source(tmp_path, framework="nnx")
    printed = structured.load(tmp_path).load()
    for found, wanted in zip(printed(*arrays), program(*arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert class_names(source.code) == ["Tower", "G"], source.code


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_modules_that_differ_in_an_activation_are_one_class(framework: str, tmp_path):
    graph = Graph(x=["batch", 8])
    x = "x"
    for number, activation in enumerate(("Relu", "Tanh", "Sigmoid", "Relu")):
        y = graph.node(activation, [graph.linear(x, f"layers.{number}.up")], f"layers.{number}")
        x = graph.node("Add", [x, graph.linear(y, f"layers.{number}.down")], f"layers.{number}")
    made = graph.model(y=x)
    given = {"x": np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)}
    code = structured.check(made, given, tmp_path, framework, loops=1)
    assert code.count("self.down(") == 1
    assert "activation: Callable[[Array], Array]" in code
    assert "self.down(self.activation(self.up(x)))" in code
    assert "(jnp.tanh, " in code


def test_modules_with_one_activation_do_not_take_it():
    graph = Graph(x=["batch", 8])
    x = "x"
    for number in range(3):
        y = graph.node("Tanh", [graph.linear(x, f"layers.{number}.up")], f"layers.{number}")
        x = graph.node("Add", [x, graph.linear(y, f"layers.{number}.down")], f"layers.{number}")
    assert "activation" not in jaxport.from_onnx(graph.model(y=x)).to_source(framework="nnx").code
