"""The modules of an imported program as blocks, and the way back to ONNX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from examples.models import build
from jaxport import blocks
from jaxport.importer import from_onnx
from tests.importer.models import model
from tests.importer.test_modules import Net


def block_tree(jaxpr, depth: int = 0) -> list[tuple[int, str, str]]:
    """The blocks of a program: depth, path and target."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive is blocks.block_p:
            block = equation.params["block"]
            found.append((depth, block.path, block.target))
            found += block_tree(equation.params["jaxpr"].jaxpr, depth + 1)
    return found


@pytest.mark.parametrize("functions", [None, ["flax.nnx.Linear"]], ids=["inlined", "functions"])
def test_a_traced_program_has_the_modules_as_blocks(functions):
    exported = jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 4)], functions=functions)
    traced = blocks.trace(from_onnx(exported.model), (jnp.ones((2, 4)),))
    assert block_tree(traced.jaxpr.jaxpr)[:3] == [
        (0, "blocks.0", "tests.importer.test_modules.Block"),
        (1, "blocks.0.up", "flax.nnx.Linear"),
        (1, "blocks.0.down", "flax.nnx.Linear"),
    ]
    assert traced.input_paths == ("x",)
    assert {weight.path for weight in traced.weights} == set(exported.model.graph.initializers)
    weights = next(e.params["block"].weights for e in traced.jaxpr.eqns if e.primitive is blocks.block_p)
    assert set(weights.values()) == {
        f"blocks.0.{layer}.{name}" for layer in ("up", "down") for name in ("kernel", "bias")
    }


def test_blocks_compute_what_the_program_computes():
    exported = jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 4)])
    program = from_onnx(exported.model)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    traced = blocks.trace(program, (x,))
    plain = jax.extend.core.jaxpr_as_fun(blocks.ungroup(traced.jaxpr))
    (result,) = plain(*(weight.value for weight in traced.weights), x)
    np.testing.assert_allclose(result, program(x), rtol=1e-6)


def test_values_that_are_known_leave_a_block_too():
    made = model("""g (float[n, 4] x) => (float[a, b] y) { s = Shape(x) o = Constant<value_ints = [1]>() h = Neg(x)
        y = Reshape(h, s) }""")
    for node, name in zip(
        made.graph.node, ("/sizes/Shape", "/sizes/Constant", "/sizes/Neg", "/out/Reshape"), strict=True
    ):
        node.name = name
    traced = blocks.trace(from_onnx(made), (jnp.ones((2, 4)),))
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
