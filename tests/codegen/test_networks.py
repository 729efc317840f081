"""Parts of networks as their authors write them: pools, heads of classifiers, dense connections, folded normalizations."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

import jaxport
from tests.codegen.test_layers import spelled
from tests.codegen.test_loops import Graph, X
from tests.codegen.test_structured import FRAMEWORKS, check_model

pytestmark = pytest.mark.sampled(2)

IMAGES, KERNEL = "float[batch, 2, 9, 8] x", "float[2, 2, 1, 1] w = {1, 2, 3, 5}"


def pooled(pool: str, size: str) -> onnx.ModelProto:
    """A convolution, and a pool of its result."""
    return spelled(f"c = Conv(x, w) y = {pool}(c)", IMAGES, output=f"float[batch, 2, {size}]", weights=KERNEL)


POOLS = {
    "of maxima": (pooled("MaxPool<kernel_shape = [3, 2]>", "7, 7"), "nnx.max_pool(self.conv(", "(3, 2))"),
    "of maxima, with steps and padding": (
        pooled("MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 0, 1, 0]>", "5, 3"),
        "nnx.max_pool(",
        "strides=(2, 2), padding=((1, 1), (0, 0))",
    ),
    "of means": (
        pooled("AveragePool<kernel_shape = [2, 2], strides = [2, 2]>", "4, 4"),
        "nnx.avg_pool(",
        "(2, 2), strides=(2, 2))",
    ),
    "of means that count padding": (
        pooled("AveragePool<kernel_shape = [2, 2], count_include_pad = 1, pads = [1, 1, 0, 0]>", "9, 8"),
        "nnx.avg_pool(",
        "padding=((1, 0), (1, 0))",
    ),
    "with gaps": (
        pooled("AveragePool<kernel_shape = [2, 2], dilations = [2, 2]>", "7, 6"),
        " avg_pool(",
        "window_dilation=(1, 2, 2, 1)",
    ),
    "of means of what is there": (
        pooled("AveragePool<kernel_shape = [2, 2], pads = [1, 1, 0, 0]>", "9, 8"),
        "lax.reduce_window(",
        "lax.add",
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_a_function_of_flax_if_it_has_one(name: str, tmp_path: Path) -> None:
    model, *texts = POOLS[name]
    code = " ".join(check_model(model, tmp_path, "nnx").split()).replace("( ", "(").replace(", )", ")")
    assert all(text in code for text in texts), code


@pytest.mark.parametrize("name", ["of maxima", "of means"])
def test_a_pool_of_equinox_is_that_of_jax(name: str, tmp_path: Path) -> None:
    assert "lax.reduce_window(" in check_model(POOLS[name][0], tmp_path, "equinox")


MEANS = {
    "flattened": (
        "p = GlobalAveragePool(c) y = Flatten(p)",
        "jnp.mean(self.conv(x.transpose(0, 2, 3, 1)), axis=(1, 2))",
    ),
    "squeezed": (
        "a = Constant<value_ints = [2, 3]>() p = ReduceMax<keepdims = 1>(c, a) y = Squeeze(p, a)",
        "jnp.max(self.conv(x.transpose(0, 2, 3, 1)), axis=(1, 2))",
    ),
}


@pytest.mark.parametrize("name", MEANS)
def test_axes_that_are_kept_and_dropped_are_not_kept(name: str, tmp_path: Path) -> None:
    body, text = MEANS[name]
    model = spelled(f"c = Conv(x, w) {body}", IMAGES, output="float[batch, 2]", weights=KERNEL)
    assert text in check_model(model, tmp_path, "nnx")


def test_the_mean_of_everything_has_no_axes(tmp_path: Path) -> None:
    body = "a = Constant<value_ints = [0, 1, 2]>() p = ReduceMean<keepdims = 1>(x) y = Squeeze(p, a)"
    assert "return jnp.mean(x)" in check_model(spelled(body, "float[batch, 4, 8] x", output="float"), tmp_path, "nnx")


def test_parts_of_other_sizes_are_no_indices(tmp_path: Path) -> None:
    body = (
        "a = Constant<value_ints = [1]>() s = Constant<value_ints = [2, 1, 0]>() p, q, r = Split<axis = 1>(x, s) "
        "u = Squeeze(q, a) v = ReduceSum<keepdims = 0>(p, a) y = Sub(u, v)"
    )
    code = check_model(spelled(body, "float[batch, 3, 8] x", output="float[batch, 8]"), tmp_path, "nnx")
    assert "x[:, 1]" not in code


def test_a_weight_that_is_transposed_stays_in_its_module(tmp_path: Path) -> None:
    graph, x = Graph(x=["batch", 2, 5, 5]), "x"
    for number in range(3):
        path = f"layers.{number}"
        conv = graph.node("Conv", [x, graph.weight(f"{path}.conv.weight", 2, 2, 1, 1)], f"{path}.conv")
        x = graph.node("Add", [x, graph.node("Mul", [conv, graph.weight(f"{path}.gamma", 1, 2, 1, 1)], path)], path)
    code = check_model(graph.model(y=x), tmp_path, "nnx")
    assert "self.gamma" in code.partition("class Model(")[0]


def test_an_axis_that_others_read_is_kept(tmp_path: Path) -> None:
    body = "a = Constant<value_ints = [1]>() p = ReduceMean<keepdims = 1>(x, a) y = Div(x, p)"
    assert "keepdims=True" in check_model(spelled(body, "float[batch, 4, 8] x"), tmp_path, "nnx")


def test_parts_of_one_element_are_indices(tmp_path: Path) -> None:
    body = (
        "a = Constant<value_ints = [1]>() p, q, r = Split<axis = 1, num_outputs = 3>(x) "
        "u = Squeeze(p, a) v = Squeeze(q, a) w = Squeeze(r, a) d = Sub(u, v) y = Mul(d, w)"
    )
    code = check_model(spelled(body, "float[batch, 3, 8] x", output="float[batch, 8]"), tmp_path, "nnx")
    assert "return (x[:, 0] - x[:, 1]) * x[:, 2]" in code


def dense(joined: list[list[str]]) -> onnx.ModelProto:
    """Layers of which each takes what those before it have made."""
    graph = Graph(x=X)
    values = {"x": "x"}
    for number, names in enumerate(joined):
        path = f"layer{number}"
        whole = graph.node("Concat", [values[name] for name in names], path, axis=1) if len(names) > 1 else "x"
        weight = graph.weight(f"{path}.weight", 8 + 4 * (len(names) - 1), 4)
        values[str(number)] = graph.node("Tanh", [graph.node("MatMul", [whole, weight], path)], path)
    return graph.model(y=graph.node("Concat", [values[name] for name in ("x", *map(str, range(len(joined))))], axis=1))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_layers_that_take_all_before_them_are_of_one_class(framework: str, tmp_path: Path) -> None:
    """What is concatenated for a layer is there for the next one, so that each has one argument."""
    code = check_model(dense([["x"], ["x", "0"], ["x", "0", "1"]]), tmp_path, framework)
    assert code.count("jnp.concatenate((x, ") == 3
    assert "x_2" not in code


def test_what_is_concatenated_in_another_order_is_concatenated_again(tmp_path: Path) -> None:
    code = check_model(dense([["x"], ["x", "0"], ["0", "x", "1"]]), tmp_path, "nnx")
    assert code.count("jnp.concatenate(") == 3


def test_a_convolution_has_the_name_of_its_weight(tmp_path: Path) -> None:
    """Exporters fold a batch normalization into the convolution before it, and write down where the former was."""
    graph, x = Graph(x=["batch", 2, 5, 5]), "x"
    for number in (1, 2):
        conv = graph.node("Conv", [x, graph.weight(f"block.conv{number}.weight", 2, 2, 1, 1)], f"block.bn{number}")
        x = graph.node("Relu", [conv], "block")
    code = check_model(graph.model(y=x), tmp_path, "nnx")
    assert "self.conv1 = nnx.Conv(" in code
    assert "bn" not in code


def test_a_weight_of_several_readers_names_none(tmp_path: Path) -> None:
    graph = Graph(x=X)
    weight = graph.weight("block.first.weight", 8, 8)
    x = graph.node("Tanh", [graph.node("MatMul", ["x", weight], "block.first")], "block")
    x = graph.node("MatMul", [x, graph.node("Transpose", [weight], "block.second", perm=[1, 0])], "block.second")
    code = check_model(graph.model(y=x), tmp_path, "nnx")
    assert code.count("nnx.Linear(") + code.count("nnx.Embed(") + code.count("nnx.Param(") == 1


def test_equal_elements_beside_another_are_a_comprehension(tmp_path: Path) -> None:
    graph = Graph(x=X)
    x = graph.node("Exp", [graph.linear(graph.linear("x", "layers.0.up"), "layers.0.down")], "layers.0")
    for number in range(1, 5):
        x = graph.block(x, f"layers.{number}")
    code = check_model(graph.model(y=graph.node("Tanh", [x])), tmp_path, "nnx", loops=1)
    assert " for _ in range(4))" in code
    assert "nnx.List[Any]" in code


def test_operators_without_a_place_are_where_fewest_values_cross(tmp_path: Path) -> None:
    """The parts of a value belong to the module that reads them, and their sum to the one that makes its operands."""
    graph, x = Graph(x=X), "x"
    for number in range(2):
        path = f"layers.{number}"
        first, second = f"first_{number}", f"second_{number}"
        graph.nodes.append(onnx.helper.make_node("Split", [x], [first, second], axis=1, num_outputs=2))
        products = [
            graph.node("MatMul", [part, graph.weight(f"{path}.{name}.weight", 4, 8)], f"{path}.{name}")
            for name, part in (("left", first), ("right", second))
        ]
        x = f"sum_{number}"
        graph.nodes.append(onnx.helper.make_node("Add", [graph.node("Tanh", [products[0]], path), products[1]], [x]))
    code = check_model(graph.model(y=x), tmp_path, "nnx", loops=1)
    assert "x_3" not in code
    assert code.partition("class Model(")[2].count("jnp.split") == 0


def downsampled(strides: list[int]) -> onnx.ModelProto:
    """Blocks of two convolutions, the first with steps and the second with a bias in some of them."""
    graph, x = Graph(x=["batch", 2, 9, 9]), "x"
    for number, stride in enumerate(strides):
        path = f"stages.{number}"
        first = [x, graph.weight(f"{path}.first.weight", 2, 2, 3, 3)]
        x = graph.node("Conv", first, f"{path}.first", strides=[stride, stride], pads=[1, 1, 1, 1])
        second = [x, graph.weight(f"{path}.second.weight", 2, 2, 1, 1)]
        if stride > 1:
            second.append(graph.weight(f"{path}.second.bias", 2))
        x = graph.node("Elu", [graph.node("Conv", second, f"{path}.second")], path)
    return graph.model(y=graph.node("Sigmoid", [x]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_modules_that_differ_in_options_are_of_one_class(framework: str, tmp_path: Path) -> None:
    code = check_model(downsampled([1, 2, 1, 2]), tmp_path, framework)
    (block,) = [part for part in code.split("\nclass ") if "self.first = " in part]
    assert "strides: int, *, use_bias: bool, " in " ".join(block.split())
    assert "strides=strides" in block
    assert "use_bias=use_bias" in block
    assert "2, use_bias=True, " in code


def test_options_that_are_the_default_everywhere_are_not_written(tmp_path: Path) -> None:
    code = check_model(downsampled([1, 1, 1]), tmp_path, "nnx")
    assert "strides" not in code
    assert "use_bias=False" in code


def test_images_are_brought_into_order_outside_of_the_module_that_begins_with_them(tmp_path: Path) -> None:
    code = check_model(downsampled([2, 2, 2]), tmp_path, "nnx")
    assert code.count("(nnx.Module)") == 2
    assert "x.transpose(0, 2, 3, 1)" in code.partition("class Model(")[2]


def test_layers_in_modules_with_names_are_no_new_blocks(tmp_path: Path) -> None:
    """Repeats are looked for only where the file names no modules around the layers."""
    graph, x = Graph(x=X), "x"
    for number in range(4):
        x = graph.block(x, f"body.part{number}")
    code = check_model(graph.model(y=x), tmp_path, "nnx")
    assert "self.part3 = " in code
    assert "layers" not in code


@pytest.mark.parametrize(
    ("layer", "count", "text"),
    [
        ("qkv", 3, "q, k, v = jnp.split(self.qkv(x), 3, axis=1)"),
        ("gate_up_proj", 2, "gate, up = jnp.split(self.gate_up_proj(x), 2, axis=1)"),
        ("both", 2, "part, part_2 = jnp.split(self.both(x), 2, axis=1)"),
    ],
)
def test_parts_of_a_value_have_the_names_that_its_layer_tells(
    layer: str, count: int, text: str, tmp_path: Path
) -> None:
    graph = Graph(x=X)
    whole = graph.node("MatMul", ["x", graph.weight(f"{layer}.weight", 8, 4 * count)], layer)
    parts = [f"part{number}" for number in range(count)]
    graph.nodes.append(onnx.helper.make_node("Split", [whole], parts, axis=1, num_outputs=count))
    x = parts[0]
    for part in parts[1:]:
        x = graph.node("Mul", [graph.node("Tanh", [x]), part])
    assert text in check_model(graph.model(y=graph.node("Mul", [x, parts[0]])), tmp_path, "nnx")


def decoder(weights: dict, x: jax.Array) -> jax.Array:
    """A scan over layers, and a product."""

    def layer(x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ weights["query"]) @ weights["output"], None

    return jax.lax.scan(layer, x, weights["layers"])[0] @ weights["head"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_slices_of_stacked_weights_are_elements_of_the_stack(framework: str, tmp_path: Path) -> None:
    """A scan over layers that is unrolled reads slices of one tensor, which have the name of them all."""
    random = np.random.default_rng(0)
    layers = {name: jnp.asarray(random.standard_normal((3, 4, 4)), jnp.float32) for name in ("query", "output")}
    weights = {"layers": layers, "head": jnp.asarray(random.standard_normal((4, 2)), jnp.float32)}
    model = jaxport.to_onnx(partial(decoder, weights), [("batch", 4)]).model
    code = check_model(model, tmp_path, framework, loops=1)
    assert "for layer in self.layers:" in code
    assert "return x + self.output(jnp.tanh(self.query(x)))" in code
