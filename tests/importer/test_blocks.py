"""The modules of an imported program as blocks, and the way back to ONNX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from examples.models import build
from jaxport import jaxprs
from jaxport.blocks.block import block_p
from jaxport.blocks.tracing import trace
from jaxport.blocks.ungrouping import ungroup
from jaxport.importer import from_onnx
from tests.importer.models import model
from tests.importer.test_modules import Net


def block_tree(jaxpr, depth: int = 0) -> list[tuple[int, str, str]]:
    """The blocks of a program: depth, path and target."""
    tree = []
    for equation in jaxpr.eqns:
        if equation.primitive is block_p:
            block = equation.params["block"]
            tree.append((depth, block.path, block.target))
            tree += block_tree(equation.params["jaxpr"].jaxpr, depth + 1)
    return tree


@pytest.mark.parametrize("functions", [None, ["flax.nnx.Linear"]], ids=["inlined", "functions"])
def test_a_traced_program_has_the_modules_as_blocks(functions):
    exported = jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 4)], functions=functions)
    traced = trace(from_onnx(exported.model), (jnp.ones((2, 4)),))
    assert block_tree(traced.jaxpr.jaxpr)[:3] == [
        (0, "blocks.0", "tests.importer.test_modules.Block"),
        (1, "blocks.0.up", "flax.nnx.Linear"),
        (1, "blocks.0.down", "flax.nnx.Linear"),
    ]
    assert traced.input_paths == ("x",)
    assert {weight.path for weight in traced.weights} == set(exported.model.graph.initializers)
    weights = next(e.params["block"].weights for e in traced.jaxpr.eqns if e.primitive is block_p)
    assert set(weights.values()) == {
        f"blocks.0.{layer}.{name}" for layer in ("up", "down") for name in ("kernel", "bias")
    }


SHARED = """g (float[N, 3] x, float[N] mask) => (float[N, 3] y) <int64[1] axes = {1}, float[3] v = {1, 2, 3}> {
    a = Cast<to = 1>(mask) b = Unsqueeze(a, axes) s = Mul(x, v) p = Add(s, b) q = Mul(p, v) y = Sub(q, b) }"""


def test_what_all_layers_read_alike_is_in_front_of_the_first():
    made = model(SHARED)
    layers = [0, 0, 0, 0, 1, 1]
    for node, layer in zip(made.graph.node, layers, strict=True):
        node.name = f"/layers.{layer}/attn/{node.op_type}"
    program = from_onnx(made)
    mox = jaxport.make_mox(program)(jnp.ones((2, 3)), jnp.ones(2))
    first, second = (mox.select(f'//*[@path="layers.{layer}"]')[0] for layer in (0, 1))
    assert [len(block.jaxpr.out_avals) for block in (first, second)] == [1, 1]
    x, mask = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([3, 5], np.float32)
    v = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(mox(x, mask), (x * v + mask[:, None]) * v - mask[:, None])

    made.graph.node[3].input[1] = made.graph.node[5].input[1] = "s"  # which the first layer computes with its weight
    made.graph.node[5].name = "/layers.1/attn/Sub"
    mox = jaxport.make_mox(from_onnx(made))(jnp.ones((2, 3)), jnp.ones(2))
    assert len(mox.select('//*[@path="layers.0"]')[0].jaxpr.out_avals) == 2


FUNCTIONS = """<domain: "d", opset_import: ["": 18, "d": 1]> Layer (x, w) => (y) { a = d.Dense(x, w) b = Relu(a) y = d.Dense(b, w) }
    <domain: "d", opset_import: ["": 18]> Dense (x, w) => (y) { y = MatMul(x, w) }"""
LAYERS = "g (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { a = d.Layer(x, w) y = d.Layer(a, w) }"
SCANNED = """g (float[3, 2] x, float[2] h) => (float[2] e, float[3, 2] y) <float[2] w = {1, 2}> {
    e, y = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] r) => (float[2] t, float[2] o) {
        a = Mul(r, w) t = Add(s, a) o = Tanh(t) }>(h, x) }"""


def test_functions_in_functions_are_blocks():
    x = np.ones((3, 2), np.float32)
    program = from_onnx(model(LAYERS, functions=FUNCTIONS, domains=', "d": 1'))
    mox = jaxport.make_mox(program)(x)
    assert [match.path for match in mox.select("//Layer/Dense")] == [
        f"{layer}.{dense}" for layer in ("Layer", "Layer_2") for dense in ("Dense", "Dense_2")
    ]
    np.testing.assert_array_equal(mox(x), program(x))
    zeros = mox.sub("//Layer/Dense[2]", lambda x, w: jnp.zeros_like(x @ w))
    np.testing.assert_array_equal(zeros(x), 0 * x)


def test_modules_in_the_body_of_a_loop_are_blocks():
    made = model(SCANNED)
    for node in made.graph.node[0].attribute[1].g.node[:2]:
        node.name = f"/cell/gate/{node.op_type}"
    x, h = np.ones((3, 2), np.float32), np.zeros(2, np.float32)
    program = from_onnx(made)
    mox = jaxport.make_mox(program)(x, h)
    assert mox.select('//*[@path="cell.gate"]').count() == 1
    for result, wanted in zip(mox(x, h), program(x, h), strict=True):
        np.testing.assert_array_equal(result, wanted)
    gradients = jax.grad(lambda x: mox(x, h)[1].sum())(x), jax.grad(lambda x: program(x, h)[1].sum())(x)
    np.testing.assert_array_equal(*gradients)


def test_blocks_compute_what_the_program_computes():
    exported = jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 4)])
    program = from_onnx(exported.model)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    traced = trace(program, (x,))
    plain = jaxprs.jaxpr_as_fun(ungroup(traced.jaxpr))
    (result,) = plain(*(weight.value for weight in traced.weights), x)
    np.testing.assert_allclose(result, program(x), rtol=1e-6)


def test_values_that_are_known_leave_a_block_too():
    made = model("""g (float[n, 4] x) => (float[a, b] y) { s = Shape(x) o = Constant<value_ints = [1]>() h = Neg(x)
        y = Reshape(h, s) }""")
    for node, name in zip(
        made.graph.node, ("/sizes/Shape", "/sizes/Constant", "/sizes/Neg", "/out/Reshape"), strict=True
    ):
        node.name = name
    traced = trace(from_onnx(made), (jnp.ones((2, 4)),))
    assert [path for _, path, _ in block_tree(traced.jaxpr.jaxpr)] == ["sizes", "out"]


def test_modules_survive_another_export():
    exported = jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 4)])
    again = jaxport.to_onnx(from_onnx(exported.model), [("B", 4)])
    assert set(again.model.graph.initializers) == set(exported.model.graph.initializers)
    first, second = (from_onnx(each.model).modules for each in (exported, again))
    assert [(m.path, m.type) for m in first.walk()][1:] == [(m.path, m.type) for m in second.walk()][1:]


CELLS = [
    ("mlp", "nnx"),
    ("cnn", "linen"),
    ("gpt2", "nnx"),
    ("lstm", "nnx"),
    ("moe", "nnx"),
    ("mlp", "jax"),
    ("gpt2_greedy", "nnx"),
]


@pytest.mark.parametrize(("name", "framework"), CELLS)
def test_what_was_imported_is_exported_again(name: str, framework: str):
    example = build(name, framework, "small")
    program = from_onnx(jaxport.to_onnx(example.fn, list(example.inputs), **example.options).model)
    again = jaxport.to_onnx(program, list(example.inputs))
    arguments = example.sample(np.random.default_rng(0), example.sizes[-1])
    assert again.verify(list(arguments)).ok
