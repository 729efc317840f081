"""What a reviewer would not accept: layers that are counted one by one, the same statements again, weights that begin at zero."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import nnx
from onnx import helper, numpy_helper

import jaxport
from jaxport.importer import from_onnx
from tests.codegen import structured
from tests.importer.models import model

RANDOM = np.random.default_rng(0)


def counted(names: str, blocks: int = 3) -> onnx.ModelProto:
    """Blocks of a depthwise and a pointwise convolution, each with its normalization and an activation."""
    nodes, weights, x = [], [], "image"
    for number in range(2 * blocks):
        sizes = {"w_0": (4, 1, 3, 3) if number % 2 == 0 else (4, 4, 1, 1), "scale": 4, "shift": 4, "mean": 4, "var": 4}
        kinds = ["conv2d"] + ["batch_norm2d"] * 4
        for kind, (role, size) in zip(kinds, sizes.items(), strict=True):
            array = RANDOM.uniform(0.5, 1, size=size).astype(np.float32) * (1 if role in ("scale", "var") else 0.3)
            weights.append(numpy_helper.from_array(array, names.format(kind=kind, n=number, role=role)))
        kernel, *statistics = (
            names.format(kind=kind, n=number, role=role) for kind, role in zip(kinds, sizes, strict=True)
        )
        group, pad = (4, 1) if number % 2 == 0 else (1, 0)
        nodes += [
            helper.make_node("Conv", [x, kernel], [f"c{number}"], group=group, pads=[pad] * 4),
            helper.make_node("BatchNormalization", [f"c{number}", *statistics], [f"b{number}"]),
            helper.make_node("HardSwish", [f"b{number}"], [f"x{number}"]),
        ]
        x = f"x{number}"
    nodes[-1].output[0] = "y"
    values: list[Any] = [helper.make_tensor_value_info(name, 1, ["batch", 4, 8, 8]) for name in ("image", "y")]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("names", ["{kind}_{n}.{role}", "onnx::{kind}_{n}{role}"])
def test_layers_that_are_counted_are_blocks_in_a_loop(names: str, framework: str, tmp_path):
    image = RANDOM.normal(size=(2, 4, 8, 8)).astype(np.float32)
    code = structured.check(counted(names), {"image": image}, tmp_path, framework)
    assert "for layer in self.layers:" in code
    assert code.count("class ConvNorm") == 1
    assert "hard_swish(self.norm(self.conv(x)))" in code


def test_a_bias_is_that_of_its_convolution_however_its_axes_are_added(tmp_path):
    made = model("""g (float[batch, 3, 8, 8] x) => (float[batch, 4, 8, 8] y) <float[4, 3, 1, 1] kernel = {1}, float[4] bias = {1}> {
        c = Conv(x, kernel) s = Constant<value_ints = [1, -1, 1, 1]>() b = Reshape(bias, s) y = Add(c, b) }""")
    for tensor in made.graph.initializer:
        array = RANDOM.normal(size=tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    x = RANDOM.normal(size=(2, 3, 8, 8)).astype(np.float32)
    code = structured.check(made, {"x": x}, tmp_path, "nnx")
    assert "nnx.Param" not in code
    assert "use_bias" not in code


class Experts(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.w1 = nnx.Param(rngs.params.normal((4, 8, 6)))
        self.scale = nnx.Param(1 + 0.1 * rngs.params.normal((8,)))
        self.small = nnx.Param(1e-6 * jnp.ones(8))
        self.shift = nnx.Param(1 + 0.1 * rngs.params.normal((8,)))
        self.place = nnx.Param(rngs.params.normal((1, 5, 8)))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = (jnp.sin(x + self.place[...]) * self.scale[...] + self.shift[...]) * self.small[...]
        return jnp.einsum("bti,eio->ebto", jnp.tanh(x), self.w1[...])


@pytest.mark.parametrize(
    ("framework", "random"),
    [("nnx", "lecun_normal()(rngs.params(), (1, 5, 8))"), ("equinox", "lecun_normal()(next(keys), (1, 5, 8))")],
)
def test_parameters_begin_as_those_of_layers_do(framework: str, random: str):
    program = from_onnx(jaxport.to_onnx(Experts(nnx.Rngs(0)), [("b", 5, 8)]).model)
    code = program.to_source(framework=framework).code
    starts = {
        line.split(" = ")[0].strip(): line.split(" = ")[1]
        for line in code.splitlines()
        if line.lstrip().startswith("self.")
    }
    assert random in starts["self.place"]
    assert "jnp.ones((8,))" in starts["self.scale"]
    assert "jnp.ones((8,))" in starts["self.small"]  # whatever it is in the file
    assert "jnp.zeros((8,))" in starts["self.shift"]
    assert "Linear(" in starts["self.w1"]


def test_matrices_of_a_crate_begin_random():
    program = from_onnx(jaxport.to_onnx(Experts(nnx.Rngs(0)), [("b", 5, 8)]).model)
    code = " ".join(program.to_source(framework="burn").code.split())
    assert "place: Initializer::Normal" in code
    assert "scale: Initializer::Ones.init" in code


def test_the_same_statements_again_are_a_function(tmp_path):
    rounds = " ".join(
        f'p{n} = Pad<mode = "reflect">(x{n}, pads) c{n} = Conv<strides = [{n + 1}]>(p{n}, kernel) t{n} = Tanh(c{n}) '
        f"m{n} = ReduceMean<keepdims = 0>(t{n}, last) x{n + 1} = Sin(x{n})"
        for n in range(6)
    )
    made = model(f"""g (float[batch, 1, 40] x0) => (float[batch, 12] y) <float[2, 1, 5] kernel = {{1}}, int64[1] last = {{2}}, int64[6] pads = {{0, 0, 3, 0, 0, 3}}> {{
        {rounds} y = Concat<axis = 1>(m0, m1, m2, m3, m4, m5) }}""")
    made.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(RANDOM.normal(size=(2, 1, 5)).astype(np.float32), "kernel")
    )
    x = RANDOM.normal(size=(2, 1, 40)).astype(np.float32)
    code = structured.check(made, {"x0": x}, tmp_path, "nnx")
    assert code.count("lax.conv_general_dilated(") == 2  # of a stride of 1, and of others
    assert code.count("self.convolved(") == 5


def test_carried_values_are_read_before_they_are_assigned(tmp_path):
    class Sums(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            @nnx.split_rngs(splits=4)
            @nnx.vmap(in_axes=0, out_axes=0)
            def stacked(rngs: nnx.Rngs) -> nnx.Linear:
                return nnx.Linear(8, 8, rngs=rngs)

            self.layers = stacked(rngs)

        def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            def run(carry: tuple[jax.Array, jax.Array], layer: nnx.Linear) -> tuple[jax.Array, jax.Array]:
                x, total = carry
                x = jnp.tanh(layer(x))
                return x, total + x

            return run((x, jnp.cos(x)), self.layers)

    program = from_onnx(jaxport.to_onnx(Sums(nnx.Rngs(0)), [("b", 8)]).model)
    source = program.to_source(tmp_path, framework="nnx")
    x = jnp.asarray(RANDOM.normal(size=(2, 8)), jnp.float32)
    made = structured.load(tmp_path).load()
    for one, other in zip(made(x), program(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert "for layer in self.layers" in source.code
    assert "+ 0.0" not in source.code


def test_a_plain_recurrent_network_is_a_cell(tmp_path):
    made = model("""g (float[5, batch, 3] x) => (float[5, 1, batch, 4] y)
        <float[1, 4, 3] w = {1}, float[1, 4, 4] r = {1}, float[1, 8] b = {1}> { y = RNN<hidden_size = 4>(x, w, r, b) }""")
    for tensor in made.graph.initializer:
        array = RANDOM.normal(size=tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    x = RANDOM.normal(size=(5, 2, 3)).astype(np.float32)
    for framework, text in (("nnx", "RNNCell(3, 4"), ("equinox", "SimpleCell(3, 4")):
        assert text in structured.check(made, {"x": x}, tmp_path / framework, framework)


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_a_transposition_of_axes_of_one_size_stays(framework, tmp_path):
    made = model("""g (float[2, 3, 3] x) => (float[2, 3, 3, 1] y, float[3, 2, 3] z)
        <int64[1] last = {3}, int64[3] same = {3, 2, 3}> {
            t = Transpose<perm = [0, 2, 1]>(x) y = Unsqueeze(t, last)
            u = Unsqueeze(x, last) v = Transpose<perm = [0, 3, 2, 1]>(u) w = Squeeze(v) z = Reshape(w, same) }""")
    structured.check(made, {"x": RANDOM.normal(size=(2, 3, 3)).astype(np.float32)}, tmp_path, framework)
