"""Convolution, pooling, resizing, normalization and recurrence beyond the official suite, against ONNX Runtime."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import onnxruntime
import pytest

import jaxport
from jaxport.errors import ValueNotKnown
from jaxport.importer import from_onnx
from tests.exports import operators
from tests.importer.models import RUNTIME, model, program

X2 = "float[1,2,5,6] x"
SEQ = "float[4,3,2] x"
LENS = "lens = Constant<value = int32[3] {1, 4, 2}> ()"
EMPTY = LENS.replace("1,", "0,")
H, C = "float[1,3,2] h", "float[1,3,2] c"


def weights(gates: int, directions: int = 1, names: str = "wrb") -> str:
    """Nodes that make the weights of a recurrent layer with two features and two hidden units."""
    shapes = {"w": (2 * gates, 2), "r": (2 * gates, 2), "b": (4 * gates,), "p": (6,)}
    rows = []
    for name in names:
        shape = (directions, *shapes[name])
        values = np.sin(np.arange(np.prod(shape)) + len(name)).round(3).tolist()
        sizes = ",".join(map(str, shape))
        rows.append(f"{name} = Constant<value = float[{sizes}] {{{', '.join(map(str, values))}}}> ()")
    return "; ".join(rows)


CASES: dict[str, tuple[str, int]] = {
    "max pool indices": (f"({X2}) => (float y, int64 i) {{ y, i = MaxPool<kernel_shape=[2,3], pads=[0,1,1,1], strides=[2,2]> (x) }}", 12),
    "max pool same": (f"({X2}) => (float y) {{ y = MaxPool<kernel_shape=[2,3], auto_pad=\"SAME_LOWER\", strides=[2,2]> (x) }}", 8),
    "average pool ceil": (f"({X2}) => (float y) {{ y = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1, pads=[1,0,0,1], count_include_pad=1> (x) }}", 19),
    "average pool old": (f"({X2}) => (float y) {{ y = AveragePool<kernel_shape=[2,3], pads=[1,1,0,1]> (x) }}", 7),
    "lp pool": (f"({X2}) => (float y) {{ y = LpPool<kernel_shape=[2,2], p=3> (x) }}", 11),
    "global lp pool": (f"({X2}) => (float y) {{ y = GlobalLpPool (x) }}", 12),
    "unpool": (f"({X2}) => (float z) {{ y, i = MaxPool<kernel_shape=[1,2], strides=[1,2]> (x) z = MaxUnpool<kernel_shape=[1,2], strides=[1,2]> (y, i) }}", 12),
    "transposed": ("(float[1,4,3,4] x, float[4,2,3,2] w) => (float y) { y = ConvTranspose<group=2, strides=[2,3], pads=[1,0,0,1], output_padding=[1,0], dilations=[2,1]> (x, w) }", 11),
    "transposed same": ("(float[1,4,3,4] x, float[4,2,3,3] w) => (float y) { y = ConvTranspose<strides=[2,2], auto_pad=\"SAME_UPPER\"> (x, w) }", 11),
    "convolution same": ("(float[1,4,5,6] x, float[6,2,3,3] w, float[6] b) => (float y) { y = Conv<group=2, strides=[2,2], auto_pad=\"SAME_LOWER\"> (x, w, b) }", 11),
    "depthwise": ("(float[2,4,9,7] x, float[4,1,3,2] w, float[4] b) => (float y) { y = Conv<group=4, strides=[2,1], dilations=[1,2], pads=[1,0,2,1]> (x, w, b) }", 11),
    "depthwise same": ("(float[1,3,5,6] x) => (float y) { w = Constant<value = float[3,1,2,2] {1,2,3,4,5,6,7,8,9,10,11,12}> () y = Conv<group=3, strides=[2,2], auto_pad=\"SAME_UPPER\"> (x, w) }", 11),
    "depthwise 1D": ("(float[2,3,8] x, float[3,1,4] w) => (float y) { y = Conv<group=3, pads=[3,0]> (x, w) }", 11),
    "depthwise 3D": ("(float[1,2,4,5,3] x, float[2,1,2,3,1] w) => (float y) { y = Conv<group=2, auto_pad=\"VALID\"> (x, w) }", 11),
    "depthwise, two each": ("(float[2,3,5,5] x, float[6,1,3,3] w) => (float y) { y = Conv<group=3> (x, w) }", 11),
    "batch norm 7": ("(float[2,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float y) { a = Abs (v) y = BatchNormalization (x, s, b, m, a) }", 9),
    "lrn": ("(float[2,5,3,3] x) => (float y) { y = LRN<size=5, alpha=0.1, bias=2.0> (x) }", 13),
    "upsample": (f"({X2}) => (float y) {{ y = Upsample<mode=\"linear\", scales=[1.0,1.0,2.0,1.5]> (x) }}", 7),
    "resize 10": (f"({X2}) => (float y) {{ s = Constant<value = float[4] {{1.0,1.0,0.6,1.7}}> () y = Resize<mode=\"nearest\"> (x, s) }}", 10),
    "resize half": (f"({X2}) => (float y) {{ s = Constant<value = float[4] {{1.0,1.0,0.7,2.3}}> () y = Resize<mode=\"linear\", coordinate_transformation_mode=\"pytorch_half_pixel\"> (x, , s) }}", 13),
    "resize cubic": (f"({X2}) => (float y) {{ s = Constant<value = int64[4] {{1,2,7,4}}> () y = Resize<mode=\"cubic\", coordinate_transformation_mode=\"align_corners\"> (x, , , s) }}", 18),
    "rnn lengths": (f"({SEQ}) => (float y, float h) {{ {LENS} {weights(1, 2)} y, h = RNN<hidden_size=2, direction=\"bidirectional\", activations=[\"Relu\", \"LeakyRelu\"], activation_alpha=[0.3]> (x, w, r, b, lens) }}", 14),
    "gru reset": (f"({SEQ}) => (float y, float h) {{ {weights(3)} y, h = GRU<hidden_size=2, direction=\"reverse\", linear_before_reset=1> (x, w, r, b) }}", 7),
    "gru lengths": (f"({SEQ}) => (float y, float h) {{ {LENS} {weights(3, 2)} y, h = GRU<hidden_size=2, direction=\"bidirectional\"> (x, w, r, b, lens) }}", 14),
    "gru without bias": (f"({SEQ}) => (float y, float h) {{ {weights(3, 1, 'wr')} y, h = GRU<hidden_size=2> (x, w, r) }}", 14),
    "lstm lengths": (f"({SEQ}) => (float y, float h, float c) {{ {LENS} {weights(4, 2)} y, h, c = LSTM<hidden_size=2, direction=\"bidirectional\"> (x, w, r, b, lens) }}", 7),
    "lstm peepholes": (f"({SEQ}) => (float y, float h, float c) {{ {weights(4, 1, 'wrbp')} y, h, c = LSTM<hidden_size=2, clip=0.4> (x, w, r, b, , , , p) }}", 14),
    "rnn no length": (f"({SEQ}, {H}) => (float y, float z) {{ {EMPTY} {weights(1)} y, z = RNN<hidden_size=2> (x, w, r, b, lens, h) }}", 14),
    "gru no length": (f"({SEQ}, {H}) => (float y, float z) {{ {EMPTY} {weights(3)} y, z = GRU<hidden_size=2, direction=\"reverse\"> (x, w, r, b, lens, h) }}", 14),
    "lstm no length": (f"({SEQ}, {H}, {C}) => (float y, float z, float d) {{ {EMPTY} {weights(4)} y, z, d = LSTM<hidden_size=2> (x, w, r, b, lens, h, c) }}", 14),
    "lstm clipped cell": (f"({SEQ}, {H}, {C}) => (float y, float z, float d) {{ c3 = Constant<value_float=3.0> () c4 = Mul (c, c3) {weights(4)} y, z, d = LSTM<hidden_size=2, clip=0.2> (x, w, r, b, , h, c4) }}", 14),
    "lstm activations": (f"({SEQ}) => (float y, float h, float c) {{ {weights(4)} y, h, c = LSTM<hidden_size=2, activations=[\"HardSigmoid\", \"Softsign\", \"ScaledTanh\"], activation_alpha=[0.3, 1.5], activation_beta=[0.4, 0.5]> (x, w, r, b) }}", 14),
}  # fmt: skip


def inputs_of(proto: onnx.ModelProto) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in proto.graph.input]
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("case", CASES)
def test_equals_onnx_runtime(case: str) -> None:
    if case == "rnn lengths" and RUNTIME < (1, 29):
        pytest.skip("ONNX Runtime 1.28 ends the process")
    body, opset = CASES[case]
    proto = model("graph " + body.replace("; ", " "), opset)
    inputs = inputs_of(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, {value.name: x for value, x in zip(proto.graph.input, inputs, strict=True)})
    with jax.enable_x64(True):
        outputs = jax.jit(from_onnx(proto))(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for output, expected in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(output, expected, rtol=2e-5, atol=2e-6)


DEPTHWISE = """g (float[n, 3, h, w] x) => (float[n, 3, a, b] y) <float[3, 1, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
    { y = Conv<group = 3, strides = [2, 1]>(x, w) }"""


def test_convolutions_of_single_channels_are_sums_of_products_on_a_cpu_only() -> None:
    depthwise, x = program(DEPTHWISE), np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
    assert "convolution" not in jax.jit(depthwise).lower(x).as_text()
    elsewhere = jax.export.export(jax.jit(depthwise), platforms=["tpu"])(x)
    assert "stablehlo.convolution" in elsewhere.mlir_module()
    again = jaxport.to_onnx(depthwise, [("n", 3, "h", "w")], constraints=["h >= 2", "w >= 2"])
    assert operators(again) == ["Conv"]
    np.testing.assert_allclose(again.run({again.input_names[0]: x})[0], depthwise(x), rtol=1e-5)


def test_regions_of_adaptive_sampling_are_refused_under_jit() -> None:
    pooled = program(
        "graph (float[1,1,4,4] x, float[1,4] r) => (float y) "
        "{ b = Constant<value = int64[1] {0}> () y = RoiAlign (x, r, b) }"
    )
    with pytest.raises(ValueNotKnown, match=r"(?s)sizes of the regions.*the RoiAlign that makes `y`.*sampling_ratio"):
        jax.jit(pooled)(np.ones((1, 1, 4, 4), np.float32), np.ones((1, 4), np.float32))


def test_regions_of_adaptive_sampling_are_pooled_outside_of_jit() -> None:
    graph = "graph (float[1,1,4,4] x, float[1,4] r) => (float y) { b = Constant<value = int64[1] {0}> () y = RoiAlign<%s> (x, r, b) }"
    x, region = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4) ** 2, np.array([[0, 0, 3, 2.5]], np.float32)
    adaptive, fixed = (program(graph % f"output_width=1, output_height=1, sampling_ratio={n}") for n in (0, 3))
    np.testing.assert_allclose(adaptive(x, region), fixed(x, region), rtol=1e-6)


def test_the_norm_of_nothing_has_a_gradient() -> None:
    normalized = program("graph (float[1,2] x) => (float y) { y = LpNormalization (x) }")
    assert np.isfinite(jax.grad(lambda x: normalized(x).sum())(np.zeros((1, 2), np.float32))).all()


@pytest.mark.parametrize(("stride", "windows"), [(2, 0), (3, 0), (4, 1), (9, 1)])
def test_a_window_longer_than_the_input_begins_inside_or_is_none(stride: int, windows: int) -> None:
    # ceil((6 - 9) / stride) + 1 of them, the formula of the operator
    body = f"y = AveragePool<kernel_shape=[1,9], strides=[1,{stride}], ceil_mode=1> (x)"
    pooled = program(f"g (float[1,1,2,6] x) => (float[1,1,2,n] y) {{ {body} }}", 19)
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 2, 6)
    np.testing.assert_allclose(pooled(x), x.mean(3, keepdims=True)[..., :windows])
