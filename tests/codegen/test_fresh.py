"""What a model is does not depend on what its weights are: models that are not trained print as they do afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from flax import nnx
from jax import Array

import jaxport
from examples.models import build, cells
from jaxport.importer.loading.load import load as load_model
from tests.codegen.replaced import KINDS, VIEWS, changes, replaced, seen
from tests.codegen.structured import load
from tests.codegen.test_classes import Transformer

FILES = sorted((Path(__file__).parent / "fresh").glob("*.onnx"))
QUICK_FILES = {"residual.plain", "codes.plain", "adapted.dynamo", "lines.plain", "router.plain"}


def expect_no_change(model: ir.Model, kinds: list[str], views: list[str]) -> None:
    assert not [*changes(model, kinds, views)]


@pytest.mark.parametrize(
    "file", [pytest.param(f, marks=[] if f.stem in QUICK_FILES else pytest.mark.slow, id=f.stem) for f in FILES]
)
def test_files_of_pytorch_print_alike_with_any_weights(file: Path) -> None:
    expect_no_change(load_model(file), ["zeros", "equal"], ["roles", "nnx", "burn"])


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in FILES])
def test_files_of_pytorch_are_alike_with_any_weights(file: Path, view: str) -> None:
    expect_no_change(load_model(file), [*KINDS], [view])


class Normed(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 4, (3, 3), use_bias=False, rngs=rngs)
        self.norm, self.head = nnx.BatchNorm(4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.head(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))


class Rows(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.norm, self.down = (
            nnx.Linear(4, 5, rngs=rngs),
            nnx.BatchNorm(5, rngs=rngs),
            nnx.LoRA(5, 2, 3, rngs=rngs),
        )

    def __call__(self, x: Array) -> Array:
        return self.down(self.norm(self.up(x)))


class Numbers(nnx.Module):
    """Parameters that begin at one and at zero, and two that are equal."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.gain, self.shift, self.power = nnx.Param(jnp.ones(4)), nnx.Param(jnp.zeros(4)), nnx.Param(jnp.ones(()))
        self.first, self.second = (nnx.Linear(4, 4, kernel_init=nnx.initializers.ones, rngs=rngs) for _ in range(2))
        self.state = nnx.Variable(jnp.zeros(4))

    def __call__(self, x: Array) -> Array:
        x = self.second(self.first(x * self.gain[...] + self.shift[...])) - self.state[...]
        return jnp.where(x > 0, x, self.shift[...] * x) ** self.power[...]


class Tied(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(6, 4, embedding_init=nnx.initializers.zeros, rngs=rngs)
        self.positions = nnx.Param(jnp.zeros((1, 3, 4)))
        self.norms = nnx.List([nnx.LayerNorm(4, rngs=rngs) for _ in range(2)])

    def __call__(self, tokens: Array) -> Array:
        x = self.embed(tokens) + self.positions[...]
        for norm in self.norms:
            x = x + norm(x)
        return self.embed.attend(x)


F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
MODULES: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], jax.ShapeDtypeStruct]] = {
    "batch normalization": (Normed, jax.ShapeDtypeStruct((2, 8, 8, 1), F32)),
    "batch normalization of rows": (Rows, jax.ShapeDtypeStruct((3, 4), F32)),
    "numbers": (Numbers, jax.ShapeDtypeStruct((3, 4), F32)),
    "tied": (Tied, jax.ShapeDtypeStruct((2, 3), I32)),
    "recurrent": (lambda rngs: nnx.RNN(nnx.LSTMCell(4, 3, rngs=rngs)), jax.ShapeDtypeStruct((2, 5, 4), F32)),
    "attention": (
        lambda rngs: nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs),
        jax.ShapeDtypeStruct((2, 5, 4), F32),
    ),
    "scanned": (lambda rngs: Transformer(rngs=rngs), jax.ShapeDtypeStruct((2, 5), I32)),
    "groups": (lambda rngs: nnx.GroupNorm(4, 2, rngs=rngs), jax.ShapeDtypeStruct((2, 5, 4), F32)),
}  # fmt: skip


def exported(name: str) -> ir.Model:
    make, spec = MODULES[name]
    module = make(nnx.Rngs(0))
    module.eval()
    return jaxport.to_onnx(module, [spec]).model


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_flax_print_alike_with_any_weights(name: str) -> None:
    expect_no_change(exported(name), ["zeros", "ones", "equal"], ["roles", "nnx", "burn", "mox", "export"])


QUICK = {("cnn", "nnx"), ("mlp", "equinox")}


@pytest.mark.parametrize(
    ("name", "origin"), [pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow) for cell in cells()]
)
def test_examples_print_alike_with_any_weights(name: str, origin: Any) -> None:
    example = build(name, origin, "small")
    model = jaxport.to_onnx(example.fn, example.inputs, **example.options).model
    expect_no_change(model, [*KINDS], ["roles", "nnx", "equinox", "burn"])


def test_fresh_layers_are_layers() -> None:
    code = seen(load_model(FILES[0].with_name("residual.plain.onnx")), "nnx")
    assert (code.count("nnx.Conv("), code.count("nnx.BatchNorm("), "conv_general_dilated" in code) == (2, 2, False)
    assert "load_pytorch" in code
    assert "x_2" not in code
    for name in ("batch normalization", "batch normalization of rows"):
        assert "nnx.BatchNorm(" in seen(exported(name), "nnx")
        assert "BatchNormConfig" in seen(exported(name), "burn")


def test_a_buffer_is_state_of_the_printed_model(tmp_path: Path) -> None:
    model = load_model(FILES[0].with_name("router.plain.onnx"))
    program = jaxport.from_onnx(model)
    assert program.roles["e_score_correction_bias"] == "statistic"
    assert [*program.params] == ["weight"]
    program.to_source(tmp_path, framework="nnx")
    module, random = load(tmp_path), np.random.default_rng(0)
    state = {"weight": random.normal(size=(6, 4)), "e_score_correction_bias": random.normal(size=6)}
    x, loaded = random.normal(size=(3, 4)), module.load_pytorch(state)
    scores = 1 / (1 + np.exp(-x @ state["weight"].T))
    chosen = np.argsort(-(scores + state["e_score_correction_bias"]), axis=1)[:, :2]
    np.testing.assert_allclose(loaded(jnp.float32(x)), np.take_along_axis(scores, chosen, axis=1), rtol=1e-5)
    assert [*nnx.to_flat_state(nnx.state(loaded, nnx.Param)).paths] == [("linear", "kernel")]


def test_what_depends_on_values_is_seen() -> None:
    model = exported("numbers")
    model.graph.initializers["shift"].metadata_props.clear()
    model.metadata_props.clear()
    model.graph.initializers["shift"].name = "val_1"
    assert seen(replaced(model, "zeros"), "roles") == seen(model, "roles")
    lost = ir.Tensor(np.full(4, -np.inf, np.float32), name="val_1")
    model.graph.initializers["val_1"].const_value = lost  # a mask, which is not a weight
    assert seen(model, "roles") != seen(replaced(exported("numbers"), "zeros"), "roles")


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_a_row_of_one_number_is_an_array_in_products(framework: Any, tmp_path: Path) -> None:
    class Scaled(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.scale, self.out = nnx.Linear(1, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x: Array) -> Array:
            return self.out(x) * self.scale(jnp.full((1, 1), 2.5)) @ self.scale.kernel[...].T

    scaled = Scaled(nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    jaxport.from_onnx(jaxport.to_onnx(scaled, [x])).to_source(tmp_path, framework=framework)
    np.testing.assert_allclose(load(tmp_path).load()(x), scaled(x), rtol=1e-5, atol=1e-6)


def test_weights_without_elements_print_twice_in_a_module(tmp_path: Path) -> None:
    """Copies of weights are looked for among those that have no elements, too."""
    empty = np.zeros((0, 3), np.float32)
    tensors = [onnx.numpy_helper.from_array(empty, name) for name in ("val_1", "val_2")]
    nodes = [onnx.helper.make_node("Concat", [start, name, name], [end], axis=0)
             for start, name, end in (("x", "val_1", "y"), ("y", "val_2", "z"))]  # fmt: skip
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in ("x", "z")]
    graph = onnx.helper.make_graph(nodes, "empty", values[:1], values[1:], tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    for framework in ("nnx", "burn"):
        jaxport.from_onnx(model).to_source(tmp_path / framework, framework=framework)
