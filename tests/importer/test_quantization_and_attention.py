"""Quantization, signals, random numbers and attention beyond the official suite."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from jaxport.errors import ModelError, NotInstalled, ValueNotKnown
from jaxport.importer import from_onnx
from jaxport.importer.ops import images
from tests.importer.models import model, needs_newest_onnx, program

pytestmark = pytest.mark.sampled(3)

GENERATOR = np.random.default_rng(0)


def node_model(operator: str, inputs: list[Any], outputs: int, opset: int, **attributes: Any) -> onnx.ModelProto:
    """A model of one node; an input that is None is left out."""
    names = ["" if x is None else f"x{index}" for index, x in enumerate(inputs)]
    formals = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    made = [helper.make_empty_tensor_value_info(f"y{index}") for index in range(outputs)]
    node = helper.make_node(operator, names, [value.name for value in made], **attributes)
    graph = helper.make_graph([node], "graph", formals, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def results_of(proto: onnx.ModelProto, inputs: list[Any]) -> tuple[Any, ...]:
    with jax.enable_x64(True):
        results = jax.jit(from_onnx(proto))(*(x for x in inputs if x is not None))
    return results if isinstance(results, tuple) else (results,)


def check(
    operator: str, *inputs: Any, opset: int, outputs: int = 1, reference: bool = False, **attributes: Any
) -> None:
    """Compares with ONNX Runtime, or with the reference evaluator where that has no kernel."""
    proto = node_model(operator, list(inputs), outputs, opset, **attributes)
    named = {f"x{index}": x for index, x in enumerate(inputs) if x is not None}
    runtime = ReferenceEvaluator(proto) if reference else onnxruntime.InferenceSession(proto.SerializeToString())
    for result, expected in zip(results_of(proto, list(inputs)), runtime.run(None, named), strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        exact = expected.dtype.kind not in "fc"
        np.testing.assert_allclose(
            np.asarray(result, np.float64),
            np.asarray(expected, np.float64),
            rtol=0 if exact else 1e-4,
            atol=0 if exact else 1e-5,
        )


def f(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) * 3).astype(np.float32)


def i(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return GENERATOR.integers(limits.min, limits.max, shape, dtype)


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantize_and_back(opset: int, dtype: Any) -> None:
    """Ties go to the even number, and what does not fit saturates."""
    if opset < 21 and np.dtype(dtype).itemsize > 1:
        pytest.skip("16 bits came with version 21")
    ties = np.array([[-300.0, -1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 1e6]], np.float32)
    scale, point = np.array(0.5, np.float32), np.array(3, dtype)
    check("QuantizeLinear", ties, scale, point, opset=opset)
    check("DequantizeLinear", i(2, 5, dtype=dtype), scale, point, opset=opset)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_scale_for_each_index_of_an_axis(axis: int) -> None:
    size = (2, 3, 4)[axis]
    scale, point = f(size) ** 2 + 0.01, i(size)
    check("QuantizeLinear", f(2, 3, 4), scale, point, opset=13, axis=axis)
    check("DequantizeLinear", i(2, 3, 4), scale, point, opset=13, axis=axis)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
def test_one_scale_for_each_block(dtype: str) -> None:
    """The last block may be shorter."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    points = np.array([[1, 0, 2], [3, 1, 0]], np.int8).astype(kind)
    scale = np.abs(f(2, 3)) + 0.1
    check("QuantizeLinear", f(2, 5), scale, points, opset=21, axis=1, block_size=2, reference=True)
    check(
        "DequantizeLinear",
        i(2, 5, dtype=np.int8).astype(kind),
        scale,
        points,
        opset=21,
        axis=1,
        block_size=2,
        reference=True,
    )


@needs_newest_onnx
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int4"])
def test_float4_becomes_integers(dtype: str) -> None:
    x = np.array([6, 4, -1.5, 0.5]).astype(ml_dtypes.float4_e2m1fn)
    kinds = [
        int(helper.np_dtype_to_tensor_dtype(kind)) for kind in (x.dtype, np.dtype(getattr(ml_dtypes, dtype, dtype)))
    ]
    given, result = (helper.make_tensor_value_info(name, kind, [4]) for name, kind in zip("xy", kinds, strict=True))
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=kinds[1])], "cast", [given], [result])
    cast = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]))
    np.testing.assert_array_equal(np.asarray(cast(x)).astype(np.int32)[[0, 1, 3]], [6, 4, 0])


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_narrow_integers_become_small_floats(dtype: str) -> None:
    x = np.arange(-2, 8).astype(np.int8).astype(getattr(ml_dtypes, dtype))
    node = helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT8E4M3FN)
    given = helper.make_tensor_value_info("x", int(helper.np_dtype_to_tensor_dtype(x.dtype)), x.shape)
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT8E4M3FN, x.shape)
    graph = helper.make_graph([node], "cast", [given], [result])
    cast = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    np.testing.assert_array_equal(np.asarray(cast(x), np.float32), x.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float4_e2m1fn", "int2", "uint2"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_small_types(dtype: str, saturate: int) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype))
    x = np.array([0.1, -1.3, 2.7, 5.0, 1000.0, -1e6], np.float32)
    code = int(onnx.helper.np_dtype_to_tensor_dtype(kind))
    check(
        "QuantizeLinear", x, np.array(0.5, np.float32), opset=25, output_dtype=code, saturate=saturate, reference=True
    )


def test_products_of_integers_are_exact() -> None:
    """Sums beyond what float32 has digits for."""
    a, b = np.full((1, 600), 255, np.uint8), np.full((600, 1), 253, np.uint8)
    (result,) = results_of(node_model("MatMulInteger", [a, b], 1, 10), [a, b])
    assert result.tolist() == [[600 * 255 * 253]]
    check("MatMulInteger", i(2, 3, 4), i(4, 5), np.array(7, np.uint8), i(5), opset=10)
    check("ConvInteger", i(1, 2, 5, 5), i(3, 2, 3, 3), np.array(7, np.uint8), opset=10, pads=[1, 1, 1, 1])
    check("DynamicQuantizeLinear", f(3, 4), opset=11, outputs=3)


UNSIGNED, SIGNED = np.uint8, np.int8
PRODUCTS = {
    "columns": ((2, 3, 4), (4, 5), 1, 5),
    "rows": ((3, 4), (4, 5), 3, 1),
    "both": ((3, 4), (4, 5), 3, 5),
    "batches": ((2, 3, 4), (2, 4, 5), 1, 1),
    "a vector and a matrix": ((4,), (4, 5), 1, 5),
    "a matrix and a vector": ((3, 4), (4,), 1, 1),
    "no zero points": ((3, 4), (4, 5), None, None),
    "one of them": ((3, 4), (4, 5), 1, None),
}


@pytest.mark.parametrize("case", PRODUCTS)
@pytest.mark.parametrize("kinds", [(UNSIGNED, UNSIGNED), (UNSIGNED, SIGNED), (SIGNED, SIGNED)], ids=str)
def test_products_of_whole_numbers(case: str, kinds: tuple[Any, Any]) -> None:
    """With zero points for all, for rows, and for columns; with weights that are known and that are not."""
    *shapes, rows, columns = PRODUCTS[case]
    a, b = (i(*shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True))
    points = [
        None if size is None else i(*([size] if size > 1 else []), dtype=kind)
        for size, kind in zip((rows, columns), kinds, strict=True)
    ]
    inputs = [a, b, *points][: 4 - (points[1] is None) - (points[0] is points[1] is None)]
    wide = [x.astype(np.int64) - (0 if point is None else point) for x, point in ((a.T, points[0]), (b, points[1]))]
    wanted = wide[0].T @ wide[1]
    proto = node_model("MatMulInteger", inputs, 1, 10)
    (result,) = results_of(proto, inputs)
    np.testing.assert_array_equal(result, wanted)
    known = {f"x{index}": x for index, x in enumerate(inputs) if index}
    np.testing.assert_array_equal(jax.jit(lambda a: from_onnx(proto)(a, **known))(a), wanted)


def test_products_of_bytes_are_of_bytes() -> None:
    """XLA multiplies int8 several times as fast as int32."""
    inputs = [i(3, 4), i(4, 5), np.array(7, np.uint8)]
    text = jax.jit(from_onnx(node_model("MatMulInteger", inputs, 1, 10))).lower(*inputs).as_text()
    assert "(tensor<3x4xi8>, tensor<4x5xi8>) -> tensor<3x5xi32>" in text


@pytest.mark.parametrize("channels", [3, 60, 400, 2000])
@pytest.mark.parametrize("kinds", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)], ids=str)
def test_convolutions_of_integers_are_exact(channels: int, kinds: tuple[Any, Any]) -> None:
    """However many terms a sum has: the extremes, and the rest by chance."""
    x, w = (
        i(*shape, dtype=kind) for shape, kind in zip(((1, channels, 3, 3), (2, channels, 3, 3)), kinds, strict=True)
    )
    x[:, : channels // 2], w[0] = np.iinfo(kinds[0]).max, np.iinfo(kinds[1]).min
    points = (np.array(np.iinfo(kinds[0]).min, kinds[0]), None) if kinds[0] == np.int8 else (None, None)
    wide = x.astype(np.int64) - (0 if points[0] is None else int(points[0]))
    inputs = [x, w, *points][: 2 if points[0] is None else 3]
    (result,) = results_of(node_model("ConvInteger", inputs, 1, 10), inputs)
    np.testing.assert_array_equal(np.asarray(result)[0, :, 0, 0], np.einsum("chw,ochw->o", wide[0], w.astype(np.int64)))


def test_quantized_products() -> None:
    scale, wide, point = np.array(0.02, np.float32), np.array(0.6, np.float32), np.array(100, np.uint8)
    per_channel = (np.abs(f(3)) * 0.01 + 0.01, np.full(3, 90, np.uint8))
    bias = GENERATOR.integers(-500, 500, 3).astype(np.int32)
    kernel = i(3, 2, 3, 3)
    check(
        "QLinearConv",
        i(1, 2, 5, 5),
        scale,
        point,
        kernel,
        *per_channel,
        wide,
        point,
        bias,
        opset=10,
        pads=[1, 0, 0, 1],
        reference=True,
    )
    check("QLinearMatMul", i(2, 4), scale, point, i(4, 3), scale, point, wide, point, opset=10)


def test_quantized_weights_have_gradients() -> None:
    """Of the scale that they are multiplied by."""
    quantized = program("graph (uint8[4] x, float s) => (float[4] y) { y = DequantizeLinear (x, s) }", 13)
    x = np.array([1, 2, 3, 4], np.uint8)
    assert jax.grad(lambda s: quantized(x, s).sum())(jnp.float32(0.5)) == 10


def test_the_range_of_what_is_quantized_has_a_finite_derivative() -> None:
    """Also where XLA computes a value anew, rounded otherwise, for each of its uses."""
    graph = (
        "graph (float[4,32] x, float[32] a, float[32] b) => (float y) { m = Mul (x, a) z = Add (m, b) "
        "q, s, p = DynamicQuantizeLinear (z) y = DequantizeLinear (q, s, p) }"
    )
    quantized = program(graph, 13)
    gradient = jax.jit(
        jax.grad(lambda *operands: jnp.sum(quantized(*operands) ** 2), (0, 1, 2)),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    for _ in range(20):
        x, a, b = f(4, 32), f(32), f(32)
        y = np.asarray(quantized(x, a, b))
        z = x * a + b
        low, high = min(z.min(), 0), max(z.max(), 0)
        # The whole numbers stand still: the results are they times the scale, which is that of the two extremes.
        of_scale = np.sum(2 * y * np.round(y / ((high - low) / 255))) / 255
        wanted = of_scale * ((z == high).astype(np.float32) - (z == low))
        for actual, expected in zip(gradient(x, a, b), (wanted * a, (wanted * x).sum(0), wanted.sum(0)), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("length", [4, 5, 8, 11])
@pytest.mark.parametrize("options", [{}, {"onesided": 1}, {"inverse": 1}], ids=str)
@pytest.mark.parametrize("parts", [1, 2])
def test_transforms(length: int, options: dict[str, int], parts: int) -> None:
    """Cut off or filled up to the length that is asked for."""
    if parts == 2 and options.get("onesided"):
        pytest.skip("the transform of a complex signal has no mirrored half")
    x = f(2, 8, parts)
    proto = model(
        f"graph (float[2,8,{parts}] x) => (float y) {{ n = Constant<value_int={length}> () "
        f"y = DFT<axis=1{''.join(f', {k}={v}' for k, v in options.items())}> (x, n) }}",
        17,
    )
    results: Any = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(jax.jit(from_onnx(proto))(x), results[0], rtol=1e-4, atol=1e-5)


def test_frames() -> None:
    body = "graph (float[2,32,1] x, float[8] w) => (float y) { s = Constant<value_int=5> () y = STFT<onesided=%d> (x, s, w) }"
    for onesided in (0, 1):
        proto = model(body % onesided, 17)
        x, w = f(2, 32, 1), f(8)
        wanted: Any = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x, "w": w})[0]
        np.testing.assert_allclose(jax.jit(from_onnx(proto))(x, w), wanted, rtol=1e-3, atol=1e-4)


RANDOM = {
    "RandomNormal<shape=[20000], mean=2.0, scale=3.0> ()": (2, 3),
    "RandomUniform<shape=[20000], low=1.0, high=3.0> ()": (2, 2 / 12**0.5),
    "RandomNormalLike<mean=2.0, scale=3.0> (x)": (2, 3),
    "RandomUniformLike<low=1.0, high=3.0> (x)": (2, 2 / 12**0.5),
    "Bernoulli (p)": (0.3, 0.21**0.5),
}


@pytest.mark.parametrize("call", RANDOM)
def test_random_numbers(call: str) -> None:
    """They have the moments that the attributes say, and depend on the key and on the seed."""
    drawn = program(f"graph (float[20000] x, float[20000] p) => (float[20000] y) {{ y = {call} }}", 22)
    inputs = (np.zeros(20000, np.float32), np.full(20000, 0.3, np.float32))
    y = drawn(*inputs)
    mean, deviation = RANDOM[call]
    assert y.mean() == pytest.approx(mean, abs=0.07)
    assert y.std() == pytest.approx(deviation, rel=0.02)
    other = drawn.apply({}, *inputs, rng=jax.random.key(1))
    assert (y == drawn(*inputs)).all()
    assert (y != other).any()
    seeded = program(f"graph (float[20000] x, float[20000] p) => (float[20000] y) {{ y = {_with_seed(call)} }}", 22)
    assert (seeded(*inputs) != y).any()


def _with_seed(call: str) -> str:
    name, _, rest = call.partition("<")
    return f"{name}<seed=1.5, {rest}" if rest else call.replace(" (", "<seed=1.5> (")


def test_multinomial_draws_by_the_logarithm_of_the_share() -> None:
    drawn = program("graph (float[2,3] x) => (int64 y) { y = Multinomial<sample_size=5000, dtype=7> (x) }", 22)
    with jax.enable_x64(True):
        y = np.asarray(drawn(np.log([[0.5, 0.25, 0.25], [0.1, 0.9, 1e-9]]).astype(np.float32)))
    assert (y.shape, y.dtype) == ((2, 5000), np.int64)
    assert [(row == 0).mean() for row in y] == pytest.approx([0.5, 0.1], abs=0.03)


def test_boxes_are_chosen_outside_of_jit() -> None:
    graph = "graph (float[1,3,4] b, float[1,1,3] s) => (int64 y) { n = Constant<value_int=2> () t = Constant<value_float=0.5> () y = NonMaxSuppression (b, s, n, t) }"
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.3]]], np.float32)
    chosen = program(graph)
    with jax.enable_x64(True):
        assert chosen(boxes, scores).tolist() == [[0, 0, 0], [0, 0, 2]]
        with pytest.raises(ValueNotKnown, match=r"(?s)`boxes` of an operation has to be known.*NonMaxSuppression.*`y`"):
            jax.jit(chosen)(boxes, scores)


def test_images_need_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(NotInstalled, match=r'(?s)images cannot be decoded.*pip install "jaxport\[images\]"'):
        images._opened(b"")


ATTENTION = {
    "causal": {"is_causal": 1},
    "scaled and capped": {"scale": 0.3, "softcap": 1.5},
    "precise": {"softmax_precision": 11},
    "capped": {"outputs": 4, "qk_matmul_output_mode": 1, "softcap": 1.5},
    "masked": {"outputs": 4, "qk_matmul_output_mode": 2, "is_causal": 1},
    "weights": {"outputs": 4, "qk_matmul_output_mode": 3, "is_causal": 1},
}
MASKS = {
    "none": None,
    "bool": GENERATOR.random((3, 9)) > 0.4,
    "bool, one row hidden": np.array([[1] * 9, [0] * 9, [1, 0] * 4 + [1]], bool),
    "float": GENERATOR.standard_normal((1, 4, 3, 9)).astype(np.float32),
    "short": GENERATOR.random((2, 1, 3, 7)) > 0.3,
}


@needs_newest_onnx
@pytest.mark.parametrize(
    ("options", "mask", "opset"),
    [
        *((name, "bool, one row hidden", 24) for name in ATTENTION),
        *(("weights", name, 24) for name in MASKS),
        ("causal", "float", 23),
    ],
)
def test_attention_is_what_onnx_says(options: str, mask: str, opset: int) -> None:
    """With past keys, and fewer heads of keys than of queries."""
    inputs = [f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 6), MASKS[mask], f(2, 2, 4, 8), f(2, 2, 4, 6)]
    check("Attention", *inputs, opset=opset, reference=True, **{"outputs": 3, **ATTENTION[options]})


def test_products_are_given_before_they_are_capped() -> None:
    q = f(1, 1, 2, 4)
    inputs = [q, q, q, None, None, None]
    *_, raw = results_of(node_model("Attention", inputs, 4, 24, softcap=1.5, scale=1.0), inputs)
    np.testing.assert_allclose(raw, q @ q.mT, rtol=1e-5)


@needs_newest_onnx
@pytest.mark.parametrize("window", [(-1, -1), (1, -1), (-1, 0), (2, 1)])
@pytest.mark.parametrize("causal", [0, 1])
def test_windows_and_lengths(window: tuple[int, int], causal: int) -> None:
    lengths = np.array([5, 4])
    inputs = [f(2, 2, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 6), None, None, None, lengths]
    left, right = window
    check(
        "Attention", *inputs, opset=25, reference=True, is_causal=causal, left_window_size=left, right_window_size=right
    )


def test_a_query_that_may_see_nothing_has_finite_gradients() -> None:
    hidden = program(
        "graph (float[1,1,2,4] q, float[1,1,3,4] k, bool[2,3] m) => (float y) { y = Attention (q, k, k, m) }", 23
    )
    mask = np.array([[True, False, True], [False, False, False]])
    q, k = f(1, 1, 2, 4), f(1, 1, 3, 4)
    assert np.asarray(hidden(q, k, mask))[0, 0, 1].tolist() == [0, 0, 0, 0]
    for gradient in jax.grad(lambda q, k: hidden(q, k, mask).sum(), (0, 1))(q, k):
        assert np.isfinite(gradient).all()


def test_attention_of_symbolic_sizes_is_exported() -> None:
    """The sizes of batch and sequences are names."""
    attending = program(
        "graph (float[n,t,8] q, float[n,s,4] k) => (float y) "
        "{ y = Attention<q_num_heads=2, kv_num_heads=1, is_causal=1> (q, k, k) }",
        23,
    )
    batch, queries, keys = jax.export.symbolic_shape("n, t, s")
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((batch, queries, 8), (batch, keys, 4))]
    q, k = f(2, 3, 8), f(2, 5, 4)
    exported = jax.export.export(jax.jit(attending))(*specs)
    np.testing.assert_allclose(exported.call(q, k), attending(q, k), rtol=1e-5)


@pytest.mark.parametrize(("channels", "largest", "count"), [(64, 60, 1), (512, 8, 1), (512, 127, 2)])
def test_kernels_of_small_integers_are_convolved_once(channels: int, largest: int, count: int) -> None:
    """Float32 is exact if no sum exceeds 2**24; which kernel does is known."""
    kernel = np.random.default_rng(0).integers(-largest, largest + 1, (4, channels, 3, 3)).astype(np.int8)
    made = model(
        f"g (uint8[1, {channels}, 5, 5] x, uint8 z) => (int32[a, b, c, d] y) <int8[1] w = {{1}}> {{ y = ConvInteger(x, w, z) }}"
    )
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(kernel, "w"))
    program = from_onnx(made)
    x, zero = np.random.default_rng(1).integers(0, 256, (1, channels, 5, 5)).astype(np.uint8), np.array(9, np.uint8)
    assert str(jax.make_jaxpr(program)(x, zero)).count("conv_general_dilated") == count
    windows = np.lib.stride_tricks.sliding_window_view(x[0].astype(np.int64) - 9, (3, 3), axis=(1, 2))
    expected = np.einsum("cijhw,ochw->oij", windows, kernel.astype(np.int64))
    np.testing.assert_array_equal(program(x, zero)[0], expected)


NUMBERS = np.random.default_rng(0).normal(size=60_000).astype(np.float32)


def program_of(text):
    return from_onnx(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 15]> g {text}'))


@pytest.mark.parametrize("jitted", [False, True])
def test_dynamic_quantization_divides_as_the_specification_does(jitted):
    """XLA multiplies by reciprocals: then the scale is a neighbouring float, and some elements are a step off."""
    program = program_of("(float[n] x) => (uint8[n] q, float s, uint8 z) { q, s, z = DynamicQuantizeLinear (x) }")
    for factor in np.asarray([0.1, 0.7, 1.3, 2.9], np.float32):
        x = factor * NUMBERS
        scale = np.float32(x.max() - x.min()) / np.float32(255)
        zero = np.rint(-x.min() / scale)
        got = (jax.jit(program) if jitted else program)(x)
        for value, wanted in zip(got, (np.clip(np.rint(x / scale) + zero, 0, 255), scale, zero), strict=True):
            np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("scale", ["{0.0371}", "{0.0371, 0.0123}"])
def test_quantization_divides_as_the_specification_does(scale):
    count = scale.count(".")
    program = program_of(
        f"(float[n, {count}] x) => (int8[n, {count}] q) <float[{count}] s = {scale}, int8[{count}] z = {{{', '.join('0' * count)}}}>"
        "{ q = QuantizeLinear <axis = 1> (x, s, z) }"
    )
    x = NUMBERS.reshape(-1, count)
    wanted = np.clip(np.rint(x / np.asarray([0.0371, 0.0123][:count], np.float32)), -128, 127)
    np.testing.assert_array_equal(jax.jit(program)(x), wanted)


@needs_newest_onnx
def test_attention_of_joined_heads_has_to_say_how_many() -> None:
    arrays = [np.zeros((1, 2, 8), np.float32)] * 3
    program = from_onnx(node_model("Attention", arrays, 1, 23))
    with pytest.raises(ModelError, match="the number of heads is not given"):
        program(*arrays)
