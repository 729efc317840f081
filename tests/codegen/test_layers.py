"""Layers and idioms: what operators spell out is printed as one call, equal in value, and only where it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from flax import nnx

import jaxport
from tests.codegen.structured import check, load, nameless
from tests.codegen.test_structured import FRAMEWORKS, blocks, check_model, sampled

pytestmark = pytest.mark.sampled(2)

SIZES = {"batch": 3, "length": 5, "h": 7, "w": 8}


def layer_model(
    operator: str,
    weights: Sequence[Sequence[int]],
    shape: Sequence[int | str],
    attributes: Mapping[str, Any] | None = None,
    outputs: int = 1,
) -> onnx.ModelProto:
    """A model of one operator whose other inputs are tensors of the file; an empty shape is an input left out."""
    random = np.random.default_rng(0)
    names = [f"w{at}" if sizes else "" for at, sizes in enumerate(weights)]
    tensors = [
        onnx.numpy_helper.from_array(0.3 * random.standard_normal(sizes).astype(np.float32), name)
        for sizes, name in zip(weights, names, strict=True)
        if sizes
    ]
    made = [f"y{at}" for at in range(outputs)]
    node = onnx.helper.make_node(operator, ["x", *names], made, **(attributes or {}))
    x = onnx.helper.make_tensor_value_info("x", 1, shape)
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in made]
    for result in results:
        result.type.tensor_type.elem_type = 1
    graph = onnx.helper.make_graph([node], "one", [x], results, tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10)


RECURRENT = (("length", "batch", 4), {"hidden_size": 3})
LAYERS: dict[str, tuple[onnx.ModelProto, str]] = {
    "conv 1-d": (layer_model("Conv", [(6, 4, 3), (6,)], ("batch", 4, 9), {"pads": [1, 1], "strides": [2]}), "Conv("),
    "conv 1-d of groups": (layer_model("Conv", [(4, 1, 3)], ("batch", 4, 9), {"group": 4, "dilations": [2]}), "Conv("),
    "conv 3-d": (layer_model("Conv", [(3, 2, 2, 2, 2), (3,)], ("batch", 2, 4, 5, 6)), "Conv("),
    "conv of the same size": (
        layer_model(
            "Conv", [(6, 4, 5, 4), (6,)], ("batch", 4, "h", "w"), {"auto_pad": "SAME_UPPER", "dilations": [1, 2]}
        ),
        'Conv(4, 6, (5, 4), padding="SAME", ',
    ),
    "conv of half the size": (
        layer_model("Conv", [(6, 4, 3, 3)], ("batch", 4, "h", "w"), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        'Conv(4, 6, (3, 3), padding="SAME_LOWER", ',
    ),
    "conv of valid windows": (
        layer_model("Conv", [(6, 4, 3, 3)], ("batch", 4, 7, 8), {"auto_pad": "VALID", "strides": [2, 1]}),
        "Conv(4, 6, (3, 3), padding=0, ",
    ),
    "transposed 2-d": (
        layer_model(
            "ConvTranspose", [(4, 3, 2, 3), (3,)], ("batch", 4, 5, 6), {"strides": [2, 2], "pads": [0, 1, 1, 0]}
        ),
        "ConvTranspose(",
    ),
    "instance normalization": (layer_model("InstanceNormalization", [(4,), (4,)], ("batch", 4, 5, 6)), "GroupNorm("),
    "group normalization": (
        layer_model("GroupNormalization", [(6,), (6,)], ("batch", 6, 7), {"num_groups": 3, "epsilon": 1e-3}),
        "GroupNorm(",
    ),
    "lstm": (layer_model("LSTM", [(1, 12, 4), (1, 12, 3), (1, 24)], *RECURRENT, outputs=3), "LSTMCell("),
    "lstm without bias": (layer_model("LSTM", [(1, 12, 4), (1, 12, 3)], *RECURRENT), "LSTMCell("),
    "lstm, reversed": (
        layer_model("LSTM", [(1, 12, 4), (1, 12, 3), (1, 24)], RECURRENT[0], {**RECURRENT[1], "direction": "reverse"}),
        "LSTMCell(",
    ),
    "lstm in both directions": (
        layer_model(
            "LSTM", [(2, 12, 4), (2, 12, 3), (2, 24)], RECURRENT[0], {**RECURRENT[1], "direction": "bidirectional"}
        ),
        "LSTMCell(",
    ),
    "gru without bias": (
        layer_model("GRU", [(1, 9, 4), (1, 9, 3)], RECURRENT[0], {**RECURRENT[1], "linear_before_reset": 1}),
        "GRUCell(",
    ),
    "gru": (
        layer_model("GRU", [(1, 9, 4), (1, 9, 3), (1, 18)], RECURRENT[0], {**RECURRENT[1], "linear_before_reset": 1}),
        "GRUCell(",
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", LAYERS)
def test_an_operator_is_a_layer(name: str, framework: str, tmp_path: Path) -> None:
    model, layer = LAYERS[name]
    code = check(model, sampled(jaxport.from_onnx(model), SIZES), tmp_path, framework)
    made = code.partition("\nclass One(")[2].partition("def __call__")[0]
    assert layer in " ".join(made.split()).replace("( ", "(")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_layer_is_called_on_a_parameter(framework: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> graph (int64[batch] i) => (float[batch, 3] y) '
        "<float[4, 3] table = {1, 2, 4, -1, 3, 2, 0.5, 0, 1, 2, -2, 7}, float[3] scale = {1, 2, 3}, float[3] bias = {3, 2, 1}> "
        "{ n = LayerNormalization(table, scale, bias) y = Gather(n, i) }"
    )
    assert "LayerNorm(" in check(model, {"i": np.array([3, 0])}, tmp_path, framework)


def test_statistics_follow_the_batches_in_training(tmp_path: Path) -> None:
    model = layer_model("BatchNormalization", [(4,), (4,), (4,), (4,)], ("batch", 4, 5), {"momentum": 0.75})
    variance = model.graph.initializer[3]
    positive = np.abs(onnx.numpy_helper.to_array(variance)) + np.float32(0.5)
    variance.CopyFrom(onnx.numpy_helper.from_array(positive, variance.name))
    program = jaxport.from_onnx(model)
    program.to_source(tmp_path, framework="nnx")
    made = load(tmp_path).load()
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(made(x), program(x), rtol=1e-5, atol=1e-5)
    mean = np.asarray(made.norm.mean[...])
    made.train()
    standardized = made(x)
    np.testing.assert_allclose(made.norm.mean[...], 0.75 * mean + 0.25 * x.mean((0, 2)), rtol=1e-5, atol=1e-6)
    centered = (np.asarray(standardized) - np.asarray(made.norm.bias[...])[:, None]).mean((0, 2))
    np.testing.assert_allclose(centered, np.zeros(4), atol=1e-5)
    made.eval()
    assert np.abs(np.asarray(made(x)) - np.asarray(program(x))).max() > 1e-3


def training_model(rates: Sequence[float] = (0.25, 0.5), mask: str = "") -> onnx.ModelProto:
    """Dropout in training, once for each rate; the output `mask` of the first may be one of the model."""
    training = onnx.numpy_helper.from_array(np.array(True), "training")
    ratios = [onnx.numpy_helper.from_array(np.float32(rate), f"rate{at}") for at, rate in enumerate(rates)]
    nodes, x = [], "x"
    for at in range(len(rates)):
        outputs = [f"y{at}", mask] if mask and not at else [f"y{at}"]
        nodes.append(onnx.helper.make_node("Dropout", [x, f"rate{at}", "training"], outputs))
        x = f"y{at}"
    given = onnx.helper.make_tensor_value_info("x", 1, ["batch", 64])
    results = [onnx.helper.make_tensor_value_info(x, 1, ["batch", 64])]
    if mask:
        results.append(onnx.helper.make_tensor_value_info(mask, 9, ["batch", 64]))
    graph = onnx.helper.make_graph(nodes, "one", [given], results, [training, *ratios])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10)


ONES = np.ones((50, 64), np.float32)


def test_dropout_draws_in_training_and_keeps_all_in_evaluation(tmp_path: Path) -> None:
    jaxport.from_onnx(training_model()).to_source(tmp_path, framework="nnx")
    module = load(tmp_path)
    made = module.load()
    first, second = np.asarray(made(ONES)), np.asarray(made(ONES))
    assert (first != second).any()
    np.testing.assert_allclose(np.unique(first), [0, 1 / (0.75 * 0.5)], rtol=1e-6)
    # Each element is kept with probability 0.375: six deviations of the mean of 3,200 elements.
    assert abs((first != 0).mean() - 0.375) < 6 * np.sqrt(0.375 * 0.625 / first.size)
    made.eval()
    np.testing.assert_array_equal(made(ONES), ONES)
    module.save(made, tmp_path / "again.safetensors")
    module.load(tmp_path / "again.safetensors")


def test_dropout_without_a_key_drops_what_the_program_drops(tmp_path: Path) -> None:
    import equinox as eqx

    program = jaxport.from_onnx(training_model())
    program.to_source(tmp_path, framework="equinox")
    made = load(tmp_path).load()
    np.testing.assert_allclose(made(ONES), program(ONES), rtol=1e-6)
    np.testing.assert_array_equal(eqx.nn.inference_mode(made)(ONES), ONES)


def test_dropout_whose_mask_is_an_output_is_operators(tmp_path: Path) -> None:
    program = jaxport.from_onnx(training_model((0.25,), mask="kept"))
    program.to_source(tmp_path, framework="nnx")
    for found, expected in zip(load(tmp_path).load()(ONES), program(ONES), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batches_are_normalized_by_their_own_statistics_in_training(framework: str, tmp_path: Path) -> None:
    attributes = {"momentum": 0.75, "training_mode": 1}
    model = layer_model("BatchNormalization", [(4,), (4,), (4,), (4,)], ("batch", 4, 5), attributes, outputs=3)
    del model.graph.output[1:]
    program = jaxport.from_onnx(model)
    code = program.to_source(tmp_path, framework=framework).code
    assert "BatchNorm(" in code.partition("\nclass One(")[2]
    made = load(tmp_path).load()
    x = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
    mean = np.asarray(made.norm.mean[...])
    np.testing.assert_allclose(made(x), program(x), rtol=1e-5, atol=1e-5)
    if framework == "nnx":
        np.testing.assert_allclose(made.norm.mean[...], 0.75 * mean + 0.25 * x.mean((0, 2)), rtol=1e-5, atol=1e-6)


OTHERS = {
    "a reset before the product": layer_model("GRU", [(1, 9, 4), (1, 9, 3), (1, 18)], *RECURRENT),
    "peepholes": layer_model("LSTM", [(1, 12, 4), (1, 12, 3), (1, 24), (), (), (), (1, 9)], *RECURRENT),
    "other activations": layer_model(
        "LSTM",
        [(1, 12, 4), (1, 12, 3)],
        RECURRENT[0],
        {**RECURRENT[1], "activations": ["Sigmoid", "Relu", "Tanh"]},
    ),
    "groups of a transposed convolution": layer_model(
        "ConvTranspose", [(4, 2, 3, 3)], ("batch", 4, 5, 6), {"group": 2}
    ),
    "a convolution of four axes": layer_model("Conv", [(2, 2, 2, 2, 2, 2)], ("batch", 2, 3, 3, 3, 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_no_framework_has_is_operators(name: str, tmp_path: Path) -> None:
    code = check(OTHERS[name], sampled(jaxport.from_onnx(OTHERS[name]), SIZES), tmp_path, "nnx")
    assert "Cell(" not in code
    assert "nnx.Conv" not in code


def test_an_element_of_a_sequence_is_one_of_an_array(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[2, 3] x) => (float[2] y) <int64 two = {2}, int64 size = {1}, int64[1] axes = {1}> {
        parts = SplitToSequence <axis = 1> (x, size) a = SequenceAt(parts, two) b = Squeeze(a, axes) y = Neg(b) }""")
    assert "-x[:, 2]" in check(model, sampled(jaxport.from_onnx(model), SIZES), tmp_path, "nnx")


def spelled(body: str, *inputs: str, output: str = "float[batch, 4, 8]", weights: str = "") -> onnx.ModelProto:
    """A model of a few operators, with the constants that they spell functions out with."""
    constants = (
        f"{weights}{', ' if weights else ''}"
        "float half = {0.5}, float one = {1}, float two = {2}, float three = {3}, float root = {1.4142135}, "
        "float steep = {0.7978846}, float cubic = {0.044715}, float scale = {0.25}, float ten = {10}"
    )
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> graph ({", ".join(inputs)}) => ({output} y) <{constants}> {{ {body} }}'
    )


def experts(body: str, *inputs: str, output: str) -> onnx.ModelProto:
    kernels = ", ".join(str(at % 11 - 5) for at in range(3 * 8 * 6))
    turned = f"float[3, 6, 8] v = {{{kernels}}}"
    biases = f"float[3, 6] b = {{{', '.join(map(str, range(18)))}}}"
    return spelled(body, *inputs, output=output, weights=f"float[3, 8, 6] w = {{{kernels}}}, {turned}, {biases}")


ROWS = ("float[batch, 8] x", "int64[batch] at")
GROUPED = {
    "all groups": experts(
        "a = Constant<value_ints = [1]>() u = Unsqueeze(x, a) y = MatMul(u, w)",
        "float[batch, 4, 8] x",
        output="float[batch, 3, 4, 6]",
    ),
    "the group of each row": experts(
        "a = Constant<value_ints = [1]>() k = Gather(w, at) u = Unsqueeze(x, a) p = MatMul(u, k) y = Squeeze(p, a)",
        *ROWS,
        output="float[batch, 6]",
    ),
    "the group of each column": experts(
        "a = Constant<value_ints = [-1]>() k = Gather(v, at) u = Unsqueeze(x, a) p = MatMul(k, u) y = Squeeze(p, a)",
        *ROWS,
        output="float[batch, 6]",
    ),
    "all groups, and biases": experts(
        "a = Constant<value_ints = [1]>() u = Unsqueeze(x, a) p = MatMul(u, w) c = Unsqueeze(b, a) y = Add(p, c)",
        "float[batch, 4, 8] x",
        output="float[batch, 3, 4, 6]",
    ),
    "the group of each row, and its bias": experts(
        "a = Constant<value_ints = [1]>() k = Gather(w, at) u = Unsqueeze(x, a) p = MatMul(u, k) s = Squeeze(p, a) "
        "c = Gather(b, at) y = Add(c, s)",
        *ROWS,
        output="float[batch, 6]",
    ),
    "the group of each row, and the bias of another": experts(
        "a = Constant<value_ints = [1]>() k = Gather(w, at) u = Unsqueeze(x, a) p = MatMul(u, k) s = Squeeze(p, a) "
        "c = Gather(b, to) y = Add(c, s)",
        *ROWS, "int64[batch] to",
        output="float[batch, 6]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", GROUPED)
def test_a_kernel_for_each_group_is_a_layer(name: str, framework: str, tmp_path: Path) -> None:
    code = check_model(GROUPED[name], tmp_path, framework)
    assert "GroupedLinear(3, 8, 6" in code
    assert ("GroupedLinear(3, 8, 6, use_bias=False" not in code) == (", and its bias" in name or ", and biases" in name)


def test_kernels_that_are_read_otherwise_are_no_layer(tmp_path: Path) -> None:
    """The rows of a product that more than one of which is left have no one group each."""
    model = experts(
        "k = Gather(w, at) y = MatMul(x, k)", "float[batch, 2, 8] x", "int64[batch] at", output="float[batch, 2, 6]"
    )
    assert "GroupedLinear" not in check_model(model, tmp_path, "nnx")


X = "float[batch, 4, 8] x"
ERF = "d = Div(x, root) e = Erf(d) s = Add(e, one) p = Mul(x, s)"
TANH = "c = Pow(x, three) k = Mul(c, cubic) u = Add(x, k) v = Mul(u, steep) t = Tanh(v) s = Add(one, t)"
SHIFTED = "m = ReduceMax<keepdims=1>(x, axis) d = Sub(x, m) e = Exp(d) n = ReduceSum<keepdims=1>(e, axis)"
IDIOMS = {
    "gelu": (spelled(f"{ERF} y = Mul(p, half)", X), "nn.gelu(x, approximate=False)"),
    "gelu, halved first": (
        spelled("h = Mul(half, x) d = Div(x, root) e = Erf(d) s = Add(one, e) y = Mul(h, s)", X),
        "nn.gelu(x, approximate=False)",
    ),
    "gelu by tanh": (spelled(f"{TANH} h = Mul(x, half) y = Mul(h, s)", X), "nn.gelu(x, approximate=True)"),
    "silu": (spelled("s = Sigmoid(x) y = Mul(x, s)", X), "nn.silu(x)"),
    "a rotation by repeated angles": (
        spelled(
            "r = Concat<axis = 2>(a, a) i = Constant<value_ints = [1]>() c = Cos(r) s = Sin(r) "
            "m = Unsqueeze(c, i) n = Unsqueeze(s, i) z = Constant<value_ints = [0]>() h = Constant<value_ints = [4]>() "
            "e = Constant<value_ints = [8]>() l = Constant<value_ints = [3]>() f = Slice(x, z, h, l) "
            "g = Slice(x, h, e, l) b = Neg(g) t = Concat<axis = 3>(b, f) p = Mul(x, m) q = Mul(t, n) y = Add(p, q)",
            "float[batch, 2, length, 8] x",
            "float[batch, length, 4] a",
            output="float[batch, 2, length, 8]",
        ),
        "rotary(",
    ),
    "a part": (
        spelled("i = Constant<value = int64 {2}>() y = Gather<axis=1>(x, i)", X, output="float[batch, 8]"),
        "x[:, 2]",
    ),
    "a product of rows": (
        spelled(
            "m = Constant<value_ints = [-1, 8]>() n = Constant<value_ints = [-1, 4, 6]>() r = Reshape(x, m) "
            "p = MatMul(r, w) t = Add(b, p) y = Reshape(t, n)",
            X,
            "float[8, 6] w",
            "float[6] b",
            output="float[batch, 4, 6]",
        ),
        "return x @ w + b",
    ),
    "a product of columns": (
        spelled(
            "t = Transpose<perm = [0, 2, 1]>(x) y = MatMul(w, t)",
            X,
            output="float[batch, 2, 4]",
            weights=f"float[2, 8] w = {{{', '.join(map(str, range(16)))}}}",
        ),
        "return self.linear(x).mT",
    ),
    "a roll": (
        spelled(
            "a = Constant<value_ints = [0]>() b = Constant<value_ints = [3]>() c = Constant<value_ints = [8]>() "
            "d = Constant<value_ints = [2]>() e = Slice(x, b, c, d) f = Slice(x, a, b, d) y = Concat<axis=2>(e, f)",
            X,
        ),
        "return jnp.roll(x, -3, axis=2)",
    ),
    "one over a root": (
        spelled("r = Abs(x) s = Add(r, one) t = Sqrt(s) y = Div(one, t)", X),
        "lax.rsqrt(",
    ),
    "groups that an instance normalization with constants normalizes": (
        spelled(
            "val_1 = Constant<value_floats = [1.0, 1.0, 1.0, 1.0]>() val_2 = Constant<value_floats = [0.0, 0.0, 0.0, 0.0]>() "
            "g = Constant<value_ints = [0, 4, -1]>() r = Reshape(x, g) n = InstanceNormalization(r, val_1, val_2) "
            "h = Shape(x) u = Reshape(n, h) m = Mul(u, w) y = Add(m, v)",
            "float[batch, 8, 5, 6] x",
            output="float[batch, 8, 5, 6]",
            weights="float[8, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[8, 1, 1] v = {1, 2, 3, 4, 5, 6, 7, 9}",
        ),
        "nnx.GroupNorm(8, 4,",
    ),
    "a scale that the graph computes": (
        spelled(
            "t = Transpose<perm = [0, 1, 3, 2]>(k) c = Constant<value_ints = [16]>() f = Cast<to = 1>(c) r = Sqrt(f) "
            "i = Div(one, r) g = Mul(q, i) a = MatMul(g, t) p = Softmax<axis = -1>(a) y = MatMul(p, v)",
            "float[batch, 2, length, 4] q",
            "float[batch, 2, 6, 4] k",
            "float[batch, 2, 6, 4] v",
            output="float[batch, 2, length, 4]",
        ),
        "scale=0.25",
    ),
    "a padding of nothing": (
        spelled("p = Constant<value_ints = [0, 0, 0, 0, 0, 0]>() z = Pad(x, p) y = Tanh(z)", X),
        "return jnp.tanh(x)",
    ),
    "added axes": (
        spelled(
            "a = Constant<value_ints = [0]>() b = Constant<value_ints = [2]>() c = Unsqueeze(x, a) y = Unsqueeze(c, b)",
            X,
            output="float[1, batch, 1, 4, 8]",
        ),
        "return jnp.expand_dims(x, (0, 2))",
    ),
    "nothing but true": (
        spelled("t = Constant<value = bool {1}>() g = Greater(x, half) a = And(t, g) y = Where(a, x, half)", X),
        "return jnp.where(x > 0.5, x, 0.5)",
    ),
    "a root mean square, scaled first": (
        spelled(
            "q = Mul(x, x) a = Constant<value_ints = [-1]>() m = ReduceMean<keepdims=1>(q, a) n = Add(m, scale) "
            "r = Sqrt(n) i = Reciprocal(r) g = Mul(w, x) y = Mul(g, i)",
            X,
            weights="float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}",
        ),
        "nnx.RMSNorm(8, epsilon=0.25,",
    ),
    "rows of a table": (
        spelled(
            "a = Constant<value_ints = [-1]>() i = Unsqueeze(at, a) y = GatherND(w, i)",
            "int64[batch, length] at",
            output="float[batch, length, 2]",
            weights="float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}",
        ),
        "return self.embed(at)",
    ),
    "an axis that is split behind a transpose": (
        spelled(
            "m = Constant<value_ints = [4, 16, 3]>() n = Constant<value_ints = [8, 2, 4, 3]>() r = Reshape(x, m) "
            "t = Transpose<perm = [1, 0, 2]>(r) s = Reshape(t, n) y = Tanh(s)",
            "float[4, 8, 6] x",
            output="float[8, 2, 4, 3]",
        ),
        "jnp.tanh(x.reshape(4, 8, 2, 3).transpose(1, 2, 0, 3))",
    ),
    "an axis that comes and goes": (
        spelled(
            "a = Constant<value_ints = [0]>() b = Constant<value_ints = [-2]>() u = Unsqueeze(x, a) "
            "t = Transpose<perm = [2, 1, 0, 3]>(u) y = Squeeze(t, b)",
            X,
            output="float[4, batch, 8]",
        ),
        "return x.transpose(1, 0, 2)",
    ),
    "positions": (
        spelled(
            "at = Constant<value = int64[1, 3] {0, 1, 2}>() p = Gather(w, at) y = Add(x, p)",
            "float[batch, 3, 2] x",
            output="float[batch, 3, 2]",
            weights="float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}",
        ),
        "self.embed(jnp.expand_dims(jnp.arange(3), 0))",
    ),
    "a tile of one element": (
        spelled(
            "a = Constant<value_ints = [1]>() u = Unsqueeze(x, a) r = Constant<value_ints = [1, 3, 1, 1]>() y = Tile(u, r)",
            X,
            output="float[batch, 3, 4, 8]",
        ),
        "jnp.broadcast_to(",
    ),
    "a part of a part": (
        spelled(
            "a = Constant<value_ints = [1]>() b = Constant<value_ints = [3]>() c = Constant<value_ints = [2]>() "
            "d = Slice(x, a, b, a) y = Slice(d, c, b, c)",
            X,
            output="float[batch, 2, 1]",
        ),
        "return x[:, 1:3, 2:3]",
    ),
    "bounds": (spelled("y = Clip(x, half, ten)", X), "return jnp.clip(x, 0.5, 10.0)"),
    "numbers in arrays": (
        spelled(
            "o = Constant<value_floats = [1.0]>() z = Constant<value_floats = [0.0]>() g = Greater(x, half) "
            "y = Where(g, o, z)",
            X,
        ),
        "jnp.where(x > 0.5, 1.0, ",
    ),
    "one of what was stacked": (
        spelled(
            "axis = Constant<value_ints = [3]>() a = Unsqueeze(x, axis) n = Neg(x) b = Unsqueeze(n, axis) c = Concat<axis = 3>(a, b) "
            "i = Constant<value_int = 1>() y = Gather<axis = 3>(c, i)",
            X,
        ),
        "return -x",
    ),
    "a column of what was joined": (
        spelled(
            "n = Neg(x) c = Concat<axis = 2>(x, n) i = Constant<value_int = -3>() y = Gather<axis = 2>(c, i)",
            X,
            output="float[batch, 4]",
        ),
        "return (-x)[:, :, 5]",
    ),
    "a number in each element": (
        spelled("s = Shape(x) o = ConstantOfShape<value = float[1] {2}>(s) y = Min(x, o)", X),
        "return jnp.minimum(x, 2.0)",
    ),
    "windows of each image": (
        spelled(
            "s = Shape<end = 1>(x) w = Constant<value_ints = [3, 1]>() f = Concat<axis = 0>(s, w) i = Constant<value_ints = [0]>() "
            "u = Unsqueeze(v, i) e = Expand(u, f) m = Constant<value_ints = [-1, 8]>() y = Reshape(e, m)",
            X,
            output="float[rows, 8]",
            weights=f"float[3, 8] v = {{{', '.join(map(str, range(24)))}}}",
        ),
        "jnp.tile(self.table[...], (batch, 1))",
    ),
    "softmax": (
        spelled(f"axis = Constant<value_ints = [-1]>() {SHIFTED} y = Div(e, n)", X),
        "nn.softmax(x, axis=-1)",
    ),
}


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_is_one_call(name: str, tmp_path: Path) -> None:
    model, text = IDIOMS[name]
    assert text in check_model(model, tmp_path, "nnx")


IDIOMS["softmax of the last axis"] = (spelled("y = Softmax<axis = 2>(x)", X), "nn.softmax(x, axis=-1)")

KERNELS = ", ".join(
    f"float[8, 8, 3] {name} = {{{', '.join(str(at % prime - prime // 2) for at in range(64 * 3))}}}"
    for name, prime in (("w", 5), ("v", 7), ("u", 11))
)
CHANNELS_FIRST = "float[batch, 8, length] x"
PADDED = "Conv<pads = [1, 1]>"
BETWEEN_CONVOLUTIONS = {
    "a part": (
        (
            "a = Constant<value_ints = [1]>() e = Constant<value_ints = [-1]>() c = Constant<value_ints = [2]>() "
            f"h = {PADDED}(x, w) p = Slice(h, a, e, c) y = {PADDED}(p, v)"
        ),
        "float[batch, 8, n]",
        "[:, 1:-1]",
    ),
    "a maximum": (
        f"a = Constant<value_ints = [2]>() h = {PADDED}(x, w) y = ReduceMax<keepdims=0>(h, a)",
        "float[batch, 8]",
        "axis=1)",
    ),
    "a concatenation": (
        f"h = {PADDED}(x, w) g = {PADDED}(h, v) c = Concat<axis=2>(h, g) y = {PADDED}(c, u)",
        "float[batch, 8, n]",
        "axis=1)",
    ),
}


@pytest.mark.parametrize("name", BETWEEN_CONVOLUTIONS)
def test_channels_stay_last_between_convolutions(name: str, tmp_path: Path) -> None:
    body, output, text = BETWEEN_CONVOLUTIONS[name]
    model = spelled(body, CHANNELS_FIRST, output=output, weights=KERNELS)
    inputs = sampled(jaxport.from_onnx(model), SIZES)
    code = check(model, inputs, tmp_path, "nnx")
    assert text in code
    assert "padding=1" in code
    assert code.count(".mT") == (1 if output == "float[batch, 8]" else 2)


NEARLY = {
    "another factor": spelled(f"{ERF} y = Mul(p, ten)", X),
    "another divisor": spelled("d = Div(x, two) e = Erf(d) s = Add(e, one) p = Mul(x, s) y = Mul(p, half)", X),
    "another power": spelled(
        "c = Pow(x, two) k = Mul(c, cubic) u = Add(x, k) v = Mul(u, steep) t = Tanh(v) s = Add(one, t) "
        "h = Mul(x, half) y = Mul(h, s)",
        X,
    ),
    "another order of parts": spelled(
        "a = Constant<value_ints = [0]>() b = Constant<value_ints = [3]>() c = Constant<value_ints = [7]>() "
        "d = Constant<value_ints = [2]>() e = Slice(x, b, c, d) f = Slice(x, a, b, d) g = Concat<axis=2>(e, f) "
        "h = Constant<value_ints = [0, 0, 0, 0, 0, 1]>() y = Pad(g, h)",
        X,
    ),
    "another gate": spelled("n = Neg(x) s = Sigmoid(n) y = Mul(x, s)", X),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_only_looks_like_an_idiom_stays(name: str, tmp_path: Path) -> None:
    code = check_model(NEARLY[name], tmp_path, "nnx")
    assert "gelu" not in code
    assert "silu" not in code
    assert "roll" not in code


ENLARGED = {
    "floor": ('coordinate_transformation_mode="asymmetric", nearest_mode="floor"', 2, True),
    "half pixel": ('coordinate_transformation_mode="half_pixel"', 3, True),
    "half pixel, up": ('coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil"', 2, True),
    "asymmetric": ('coordinate_transformation_mode="asymmetric"', 3, False),
    "corners": ('coordinate_transformation_mode="align_corners"', 2, False),
    "linear": ('mode="linear"', 2, False),
}


@pytest.mark.parametrize("name", ENLARGED)
def test_an_enlargement_by_the_nearest_element_repeats(name: str, tmp_path: Path) -> None:
    options, times, repeats = ENLARGED[name]
    mode = "" if 'mode="linear' in options else 'mode="nearest", '
    model = spelled(
        f"y = Resize<{mode}{options}>(x, , times)",
        X,
        output="float[batch, n, 8]",
        weights=f"float[3] times = {{1, {times}, 1}}",
    )
    code = check_model(model, tmp_path, "nnx")
    assert (f"jnp.repeat(x, {times}, axis=1)" in code) == repeats
    assert ("resized_along" in code) != repeats


HEADS = ("float[batch, 2, length, 4] q", "float[batch, 2, 6, 4] k", "float[batch, 2, 6, 4] v")
SCORES = "t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t) s = Mul(a, scale)"
ATTENDED = "float[batch, 2, length, 4]"


def attention(body: str, *inputs: str) -> onnx.ModelProto:
    return spelled(f"{SCORES} {body}", *HEADS, *inputs, output=ATTENDED)


@pytest.mark.parametrize(
    ("model", "option"),
    [
        (attention("p = Softmax<axis=-1>(s) y = MatMul(p, v)"), "scale=0.25"),
        (
            attention("b = Add(s, mask) p = Softmax<axis=-1>(b) y = MatMul(p, v)", "float[batch, 1, length, 6] mask"),
            "bias=mask",
        ),
        (
            attention("b = Add(mask, s) p = Softmax<axis=3>(b) y = MatMul(p, v)", "float[length, 6] mask"),
            "bias=",
        ),
        (
            attention(
                "g = Add(s, near) b = Add(g, mask) p = Softmax<axis=-1>(b) y = MatMul(p, v)",
                "float[2, length, 6] near",
                "float[batch, 1, 1, 6] mask",
            ),
            "near + mask",
        ),
    ],
)
def test_attention_is_one_call(model: onnx.ModelProto, option: str, tmp_path: Path) -> None:
    code = check_model(model, tmp_path, "nnx")
    assert "nn.dot_product_attention(" in code
    assert option in code


ATTENTIONS = {
    "all heads": ("q_num_heads=4, kv_num_heads=4", "batch,length,16", "batch,6,16", "nn.dot_product_attention("),
    "causal": ("q_num_heads=4, kv_num_heads=4, is_causal=1", "batch,length,16", "batch,length,16", "is_causal=True"),
    "causal, more keys": ("q_num_heads=4, kv_num_heads=4, is_causal=1", "batch,3,16", "batch,6,16", "is_causal=True"),
    "fewer heads for keys": ("q_num_heads=4, kv_num_heads=2", "batch,length,16", "batch,6,8", "reshape(batch, 6, 2, 4)"),
    "one head for keys, causal": (
        "q_num_heads=4, kv_num_heads=1, is_causal=1", "batch,5,16", "batch,5,4", "is_causal=True"
    ),
    "another scale": ("q_num_heads=4, kv_num_heads=4, scale=0.25", "batch,5,16", "batch,6,16", "scale=0.25"),
    "heads before positions": ("is_causal=0", "batch,2,5,4", "batch,2,6,4", "nn.dot_product_attention("),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_operator_of_attention_is_one_call(name: str, tmp_path: Path) -> None:
    attributes, queries, keys, text = ATTENTIONS[name]
    code = check_model(operator_of_attention(attributes, queries, keys), tmp_path, "nnx")
    assert text in code
    assert "nn.dot_product_attention(" in code
    assert "softmax" not in code


def test_a_rotation_by_angles_that_fixed_sizes_make_known(tmp_path: Path) -> None:
    """The angles are known once the number of positions is, their cosines are computed."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> graph (float[batch, 2, length, 4] q) => (float[batch, 2, length, 4] y) '
        "<int64 zero = {0}, int64 one = {1}, float[1, 1, 1, 2] w = {1, 0.1}, int64[2] h = {2, 2}> { "
        "n = Shape<start = 2, end = 3>(q) m = Squeeze(n) p = Range(zero, m, one) f = Cast<to = 1>(p) "
        "r = Constant<value_ints = [1, 1, -1, 1]>() g = Reshape(f, r) t = Mul(g, w) e = Concat<axis = -1>(t, t) "
        "c = Cos(e) s = Sin(e) a, b = Split<axis = -1>(q, h) d = Neg(b) k = Concat<axis = -1>(d, a) "
        "u = Mul(q, c) v = Mul(k, s) y = Add(u, v) }"
    )
    for sizes in (None, {"q": (3, 2, 5, 4)}):
        assert "rotary(" in jaxport.from_onnx(model).to_source(framework="nnx", inputs=sizes).code
    check_model(model, tmp_path, "nnx")


def test_a_rotation_is_one_call_with_heads_after_positions(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> graph (float[batch, length, 16] q, float[batch, length, 8] k, '
        "float[batch, length, 2] c, float[batch, length, 2] s) => (float[batch, length, 16] y) "
        "{ a = RotaryEmbedding<num_heads=4>(q, c, s) b = RotaryEmbedding<num_heads=2>(k, c, s) "
        "y = Attention<q_num_heads=4, kv_num_heads=2, is_causal=1>(a, b, k) }"
    )
    code = check_model(model, tmp_path, "nnx")
    assert "rotary(q.reshape(batch, length, 4, 4), cos, sin)" in code
    assert code.count("jnp.expand_dims(") == 2  # once for both
    assert "transpose" not in code


@pytest.mark.parametrize("interleaved", [0, 1])
def test_a_rotation_of_the_first_features_has_heads_after_positions(interleaved: int, tmp_path: Path) -> None:
    """The angles are those of every sequence, and are not broadcast."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> graph (float[batch, length, 2, 6] q, float[1, length, 2] a) '
        "=> (float[batch, length, 2, 6] y) { s = Shape<end = 1>(q) l = Shape(a) m = Slice(l, one, three) f = Concat<axis = 0>(s, m) "
        "o = Cos(a) i = Sin(a) c = Expand(o, f) d = Expand(i, f) t = Transpose<perm = [0, 2, 1, 3]>(q) "
        f"r = RotaryEmbedding<rotary_embedding_dim = 4, num_heads = 2, interleaved = {interleaved}>(t, c, d) "
        "y = Transpose<perm = [0, 2, 1, 3]>(r) }"
    )
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array([n]), name) for n, name in ((1, "one"), (3, "three"))
    )
    code = check_model(model, tmp_path, "nnx")
    name = "rotary_interleaved" if interleaved else "rotary"
    assert f"{name}(q[..., :4]," in "".join(line.strip() for line in code.splitlines())
    assert not {"broadcast_to", "transpose"} & {*re.findall(r"\w+", code)}


def test_rotations_of_parts_have_heads_after_positions(tmp_path: Path) -> None:
    """Queries, keys and values that are one projection, split behind the transpose, are split before it."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> graph (float[batch, length, 2, 12] x, float[batch, length, 2] c, float[batch, length, 2] s) '
        "=> (float[batch, length, 2, 4] y) { t = Transpose<perm = [0, 2, 1, 3]>(x) a, b, v = Split<axis = -1, num_outputs = 3>(t) "
        "q = RotaryEmbedding(a, c, s) k = RotaryEmbedding(b, c, s) r = Attention(q, k, v) y = Transpose<perm = [0, 2, 1, 3]>(r) }"
    )
    code = check_model(model, tmp_path, "nnx")
    assert "jnp.split(x, 3, axis=3)" in code
    assert "transpose" not in code


def test_a_rotation_of_some_heads_stays_where_it_is(tmp_path: Path) -> None:
    """What is joined to them along the features are other heads, not other features."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> graph (float[batch, length, 2, 4] x, float[batch, length, 2] a) '
        "=> (float[batch, 1, length, 8] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> "
        "{ c = Cos(a) s = Sin(a) t = Transpose<perm = [0, 2, 1, 3]>(x) p = Slice(t, zero, one, one) q = Slice(t, one, two, one) "
        "r = RotaryEmbedding<num_heads = 1>(p, c, s) y = Concat<axis = 3>(r, q) }"
    )
    check_model(model, tmp_path, "nnx")


def operator_of_attention(attributes: str, queries: str, keys: str, opset: int = 23) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> graph (float[{queries}] q, float[{keys}] k, float[{keys}] v) '
        f"=> (float[{queries}] y) {{ y = Attention<{attributes}>(q, k, v) }}"
    )


@pytest.mark.parametrize("window", ["left_window_size=1", "is_causal=1, left_window_size=2", "right_window_size=1"])
def test_an_attention_to_some_positions_stays_in_operators(window: str, tmp_path: Path) -> None:
    model = operator_of_attention(f"q_num_heads=4, kv_num_heads=4, {window}", "2,5,16", "2,5,16", 25)
    program = jaxport.from_onnx(model)
    program.to_source(tmp_path, framework="nnx")
    inputs = sampled(program)
    made, expected = load(tmp_path).load()(*inputs.values()), program(*inputs.values())
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    assert "dot_product_attention" not in (tmp_path / "model.py").read_text()


def test_rows_that_are_masked_out_stay_zero(tmp_path: Path) -> None:
    """A file that gives zeros for rows of which nothing is seen is not printed as an attention that gives NaN."""
    model = attention(
        "zero = Constant<value_float = 0.0>() b = Add(s, mask) p = Softmax<axis=-1>(b) n = IsNaN(p) "
        "g = Where(n, zero, p) y = MatMul(g, v)",
        "float[batch, 1, length, 6] mask",
    )
    inputs = sampled(jaxport.from_onnx(model))
    inputs["mask"] = np.zeros_like(inputs["mask"])
    inputs["mask"][0] = -np.inf
    code = check(model, inputs, tmp_path, "nnx")
    assert "isnan" in code


def test_scores_of_other_axes_are_no_attention(tmp_path: Path) -> None:
    model = attention("p = Softmax<axis=2>(s) y = MatMul(p, v)")
    assert "dot_product_attention" not in check_model(model, tmp_path, "nnx")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_stack_without_names_is_a_loop(framework: str, tmp_path: Path) -> None:
    model = nameless(blocks(4, "metadata"))
    code = check_model(model, tmp_path, framework, loops=1)
    assert "class Block(" in code
    assert "range(4)" in code


POOLS = {
    "plain": (((2, 2), (2, 2), "VALID"), "nnx.max_pool(x, (2, 2), strides=(2, 2))"),
    "padded": (((3, 3), (2, 2), ((1, 1), (1, 1))), "nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))"),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pooling_is_one_of_flax(name: str, tmp_path: Path) -> None:
    (window, strides, padding), text = POOLS[name]
    model = jaxport.to_onnx(lambda x: nnx.max_pool(x, window, strides, padding), [("batch", 8, 8, 3)]).model
    assert text in check_model(model, tmp_path, "nnx")
    assert "lax.reduce_window(" in check_model(model, tmp_path / "equinox", "equinox")


WITHOUT_WEIGHTS = {
    "LayerNorm": "ones = Expand(o, n) a = LayerNormalization<axis = -1, epsilon = 0.001>(h, ones)",
    "LayerNorm of zeros": "ones = Expand(o, n) zeros = Sub(ones, ones) a = LayerNormalization<axis = -1, epsilon = 0.001>(h, ones, zeros)",
    "RMSNorm": "t = Constant<value_float = 2.0>() e = Constant<value_float = 0.001>() q = Pow(h, t) m = ReduceMean<axes = [-1]>(q) "
    "s = Add(m, e) r = Sqrt(s) a = Div(h, r)",
}  # fmt: skip


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("case", WITHOUT_WEIGHTS)
def test_normalizations_without_weights_are_layers(case: str, framework: str, tmp_path: Path):
    """What follows scales and shifts by values that are computed, as in networks that diffuse."""
    body = (
        f"o = Constant<value_floats = [1.0]>() n = Constant<value_ints = [8]>() h = MatMul(x, w) {WITHOUT_WEIGHTS[case]} "
        "f = Constant<value_float = 1.0>() c = MatMul(x, v) k = Add(c, f) y = Mul(a, k)"
    )
    rng = np.random.default_rng(0)
    tensors = [onnx.numpy_helper.from_array(rng.normal(size=(8, 8)).astype(np.float32), name) for name in "wv"]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> agraph (float[n, 3, 8] x) => (float[n, 3, 8] y) {{ {body} }}'
    )
    model.graph.initializer.extend(tensors)
    code = check(model, {"x": rng.normal(size=(2, 3, 8)).astype(np.float32)}, tmp_path, framework)
    kind = case.partition(" ")[0]
    assert (f"nnx.{kind}(" in code and "use_scale=False" in code) == (framework == "nnx")
    assert "weight: Array" not in code.partition("class Agraph")[0].partition("class Linear")[0]
