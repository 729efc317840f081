"""Operators of ONNX Runtime's own domain: signatures against its schemas, values against its kernels."""

from __future__ import annotations

import ast
import math
from inspect import Parameter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as native  # pyright: ignore[reportAttributeAccessIssue]

from jaxport.errors import ModelError, Unsupported
from jaxport.importer import from_onnx
from jaxport.importer.resolving.registry import Operator, operators
from jaxport.onnx_facts.kernels import RELEASES
from jaxport.verify.importing import Comparison, verify_program
from tests.importer import printed
from tests.importer.models import RUNTIME
from tests.processors import needs_exact_int8

pytestmark = pytest.mark.sampled(2)

DOMAIN = "com.microsoft"
SCHEMAS = {schema.name: schema for schema in native.get_all_operator_schema() if schema.domain == DOMAIN}
#: Whether the installed release is one of those that the operators were written for.
KNOWN = onnxruntime.__version__.rpartition(".")[0] in RELEASES
GENERATOR = np.random.default_rng(0)
EXPERTS = ("MoE", "QMoE")  # in `test_contrib_experts`


@pytest.mark.parametrize("operator", [e for e in operators() if e.domain == DOMAIN], ids=lambda e: e.name)
def test_signature_is_the_schema(operator: Operator) -> None:
    if operator.name not in SCHEMAS:
        pytest.skip("newer than the installed ONNX Runtime")
    schema = SCHEMAS[operator.name]
    variadic = [i.name for i in schema.inputs if "Variadic" in str(i.option)]
    single = [i for i in schema.inputs if "Variadic" not in str(i.option)]
    names = [parameter.name for parameter in operator.inputs]
    # Releases add inputs at the end, and attributes: an older one has fewer, one that came later may have more.
    known = len(single) if KNOWN else min(len(single), len(names))
    assert names[:known] == [i.name for i in single][:known]
    assert ([operator.variadic.name] if operator.variadic else []) == variadic
    required = [index for index, i in enumerate(single) if "Optional" not in str(i.option)]
    for index, parameter in enumerate(operator.inputs):
        if index not in required and index > max(required, default=-1):
            assert parameter.default is None, f"`{parameter.name}` is optional"
    if KNOWN:
        assert set(schema.attributes) <= set(operator.attributes)
    for name, attribute in schema.attributes.items():
        if name not in operator.attributes:
            continue
        default = operator.attributes[name].default
        if attribute.required:
            assert default is Parameter.empty, f"`{name}` is required"
        elif attribute._default_value:
            wanted = helper.get_attribute_value(onnx.AttributeProto.FromString(attribute._default_value))
            wanted = wanted.decode() if isinstance(wanted, bytes) else wanted
            assert default == pytest.approx(wanted, rel=1e-6) if isinstance(wanted, float) else default == wanted
        else:
            assert default is None, f"`{name}` has no default"


def model_of(
    operator: str, inputs: list[Any], outputs: int, attributes: dict[str, Any], domain: str = DOMAIN, first: int = 0
) -> bytes:
    """A model of one node; an input that is None is left out, and so are the outputs before the `first`."""
    formals, names = [], []
    for index, x in enumerate(inputs):
        names.append("" if x is None else f"x{index}")
        if x is None:
            continue
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        formals.append(helper.make_tensor_value_info(f"x{index}", kind, x.shape))
    made = [helper.make_empty_tensor_value_info(f"y{index}") for index in range(first, outputs)]
    node = helper.make_node(operator, names, [""] * first + [v.name for v in made], domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], "graph", formals, made)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def check(
    operator: str,
    *inputs: Any,
    outputs: int = 1,
    known: tuple[int, ...] = (),
    atol: float = 2e-5,
    steps: int = 0,
    compared: int | None = None,
    first: int = 0,
    **attributes: Any,
) -> None:
    """Compares with ONNX Runtime, under `jax.jit` over all inputs but the `known` ones; `steps` may quantized results differ.

    `compared` is the number of outputs that are defined, `first` the first that has a name. ONNX Runtime has one thread.
    """
    domain = "" if operator == "SimplifiedLayerNormalization" else DOMAIN
    data = model_of(operator, list(inputs), outputs, attributes, domain, first)
    named = {f"x{index}": x for index, x in enumerate(inputs) if x is not None}
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
    wanted: Any = session.run(None, named)
    program = from_onnx(data)
    closed = {name: x for name, x in named.items() if int(name[1:]) in known}
    results = jax.jit(lambda arrays: program(**arrays, **closed))({n: x for n, x in named.items() if n not in closed})
    results = results if isinstance(results, tuple) else (results,)
    for result, expected in list(zip(results, wanted, strict=True))[:compared]:
        assert result.shape == expected.shape
        assert result.dtype == expected.dtype
        if expected.dtype.kind in "iu":
            np.testing.assert_allclose(np.asarray(result, np.int64), np.asarray(expected, np.int64), atol=steps)
        else:
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=atol)


def f(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) * scale).astype(np.float32)


def i(*shape: int, low: int = 0, high: int = 255, dtype: Any = np.uint8) -> np.ndarray:
    return GENERATOR.integers(low, high, shape).astype(dtype)


def u8(value: int) -> np.ndarray:
    return np.array(value, np.uint8)


def s(value: float) -> np.ndarray:
    return np.array(value, np.float32)


X = f(2, 5, 8)
W = f(8)
CASES: dict[str, tuple[Any, ...]] = {
    "Gelu": (X,),
    "BiasGelu": (X, W),
    "FastGelu": (X, W),
    "QuickGelu": (X,),
    "Inverse": (f(2, 3, 3) + 3 * np.eye(3, dtype=np.float32),),
    "CDist": (f(4, 3), f(5, 3)),
    "FusedMatMul": (f(2, 3, 4), f(2, 4, 5)),
    "TransposeMatMul": (f(2, 3, 4), f(2, 4, 5)),
    "FusedGemm": (f(3, 4), f(4, 5), f(5)),
    "FusedConv": (f(1, 4, 6, 5), f(6, 2, 3, 3), f(6), f(1, 6, 6, 5)),
    "QLinearAdd": (i(3, 4), s(0.03), u8(120), i(3, 4), s(0.02), u8(130), s(0.05), u8(100)),
    "QLinearMul": (i(3, 4), s(0.03), u8(120), i(3, 4), s(0.02), u8(130), s(0.05), u8(100)),
    "QLinearLeakyRelu": (i(3, 4), s(0.03), u8(120), s(0.02), u8(100)),
    "QLinearSigmoid": (i(3, 4), s(0.03), u8(120), s(1 / 256), u8(0)),
    "QLinearSoftmax": (i(3, 4), s(0.03), u8(120), s(1 / 256), u8(0)),
    "QLinearAveragePool": (i(1, 2, 6, 5), s(0.03), u8(120), s(0.02), u8(100)),
    "QLinearGlobalAveragePool": (i(1, 2, 6, 5), s(0.03), u8(120), s(0.02), u8(100)),
    "QLinearConcat": (s(0.05), u8(100), i(2, 3), s(0.03), u8(120), i(2, 4), s(0.02), u8(90)),
    "QLinearWhere": (np.array([[True], [False]]), i(2, 3), s(0.03), u8(120), i(2, 3), s(0.02), u8(90), s(0.04), u8(110)),
    "QuantizeLinear": (f(3, 4), s(0.03), u8(120)),
    "DequantizeLinear": (i(3, 4), s(0.03), u8(120)),
    "MatMulIntegerToFloat": (i(3, 4), i(4, 5), s(0.03), f(5) ** 2, u8(120), i(5), f(5)),
    "DynamicQuantizeMatMul": (f(3, 4), i(4, 5), f(5) ** 2, i(5), f(5)),
    "NhwcMaxPool": (i(1, 6, 5, 2),),
    "SkipLayerNormalization": (X, f(2, 5, 8), W, f(8), f(8)),
    "SkipSimplifiedLayerNormalization": (X, f(2, 5, 8), W, f(8)),
    "SimplifiedLayerNormalization": (X, W),
    "ExpandDims": (X, np.array(-1, np.int32)),
    "MatMulInteger16": (i(3, 4, low=-99, dtype=np.int16), i(4, 5, low=-99, dtype=np.int16)),
    "Trilu": (X, np.array(1)),
    "GatherND": (f(3, 4), np.array([[0, 1], [2, 3]])),
    "GridSample": (f(1, 2, 4, 5), f(1, 3, 3, 2)),
    "Pad": (f(3, 4), np.array([0, 2, 0, 1]), s(1.5)),
    "Range": (np.array([1], np.int32), np.array([9], np.int32), np.array([3], np.int32)),
    "SampleOp": (X,),
    "ConvTransposeWithDynamicPads": (f(1, 2, 4, 4), f(2, 3, 3, 3), np.array([1, 0, 1, 1]), f(3)),
    "GatedAdd": (X, f(2, 5, 8), f(2, 5, 1)),
    "ScaledSiLU": (X, s(0.5)),
    "GatedRMSNorm": (X, f(4), f(2, 5, 8)),
    "UnfoldTensor": (X,),
    "NGramRepeatBlock": (np.array([[1, 2, 3, 1, 2], [0, 0, 0, 0, 0]]), f(2, 6)),
    "MatMulBnb4": (f(3, 64), i(64 * 8 // 2), np.abs(f(64 * 8 // 16))),
}  # fmt: skip
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "FusedMatMul": [{"alpha": 0.5}],
    "CDist": [{"metric": "euclidean"}, {"metric": "sqeuclidean"}],
    "FusedGemm": [{"activation": name, "alpha": 0.5} for name in ("Relu", "Sigmoid", "Tanh")] + [{"activation": "LeakyRelu", "activation_alpha": 0.2}],
    "FusedConv": [{"group": 2, "pads": [1, 1, 1, 1], "activation": a, **({"activation_params": p} if p else {})} for a, p in (("Relu", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4]))],
    "QLinearSoftmax": [{"opset": 13, "axis": -1}, {"opset": 12, "axis": 0}],
    "QLinearAveragePool": [{"kernel_shape": [2, 3], "pads": [1, 0, 0, 1], "strides": [2, 1], "count_include_pad": n, "steps": 1} for n in (0, 1)],
    "QLinearConcat": [{"axis": 1}],
    "NhwcMaxPool": [{"kernel_shape": [2, 2], "strides": [2, 1]}],
    "SkipLayerNormalization": [{"epsilon": 1e-3, "outputs": 4 if RUNTIME > (1, 28) else 1}],  # 1.28 returns no means
    "SkipSimplifiedLayerNormalization": [{"epsilon": 1e-3}],
    "SimplifiedLayerNormalization": [{"axis": -1, "epsilon": 1e-3, "outputs": 2}],
    "ExpandDims": [{"known": (1,)}],
    "Trilu": [{"known": (1,)}, {"known": (1,), "upper": 0}],
    "GridSample": [{"mode": mode, "padding_mode": around} for mode in ("bilinear", "nearest", "bicubic") for around in ("zeros", "border", "reflection")] + [{"align_corners": 1}],
    "Pad": [{"known": (1,)}, {"known": (1,), "mode": "reflect"}],
    "Range": [{"known": (0, 1, 2)}],
    "ConvTransposeWithDynamicPads": [{"known": (2,)}, {"known": (2,), "strides": [2, 2], "output_padding": [1, 1]}],
    "GatedRMSNorm": [{}, {"activation": "sigmoid", "epsilon": 1e-2}],
    "UnfoldTensor": [{"dim": 1, "size": 3, "step": 2}, {"size": 3}],
    "NGramRepeatBlock": [{"ngram_size": size} for size in (1, 3, 6)],
    "MatMulBnb4": [{"K": 64, "N": 8, "block_size": 16, "quant_type": kind} for kind in (0, 1)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "options"), [(name, options) for name in CASES for options in OPTIONS.get(name, [{}])]
)
def test_equals_onnx_runtime(operator: str, options: dict[str, Any]) -> None:
    if operator not in SCHEMAS:
        pytest.skip("newer than the installed ONNX Runtime")
    check(operator, *CASES[operator], **options)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axes, keepdims=True)


def normalized(x: np.ndarray, groups: int, epsilon: float) -> np.ndarray:
    """Images (batch, rows, columns, channels) with each group of channels normalized."""
    grouped = x.reshape(*x.shape[:3], groups, -1)
    centered = grouped - grouped.mean((1, 2, 4), keepdims=True)
    return (centered / np.sqrt((centered**2).mean((1, 2, 4), keepdims=True) + epsilon)).reshape(x.shape)


def requantized(x: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    return np.clip(np.round(x / scale) + zero_point, 0, 255).astype(np.uint8)


def convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Images (batch, rows, columns, channels) with a kernel (out, in, rows, columns), nothing around them."""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[2:], (1, 2))
    return np.einsum("nhwcij,ocij->nhwo", windows, kernel)


IMAGE, SKIP, C = f(1, 4, 3, 6), f(1, 4, 3, 6), f(6)
KERNEL, Z = f(5, 6, 2, 2), f(1, 3, 2, 5)
SCORES, TERM, PAIR = f(2, 3, 4, 5), f(2, 1, 1, 5), (f(2, 4, 3), f(2, 4, 5))
BYTES = i(3, 4), i(3, 4)
Formula = tuple[tuple[Any, ...], dict[str, Any], tuple[np.ndarray, ...]]
FORMULAS: dict[str, Formula] = {
    "BiasAdd": ((X, W, X * 2), {}, (3 * X + W,)),
    "BiasSoftmax": ((SCORES, TERM), {"axis": 2, "is_inner_broadcast": 1}, (softmax(SCORES + TERM, (2, 3)),)),
    "BiasSplitGelu": ((X, W), {}, ((X + W)[..., :4] * gelu((X + W)[..., 4:]),)),
    "FusedMatMulActivation": (PAIR, {"activation": "LeakyRelu", "activation_alpha": 0.2, "transA": 1, "alpha": 0.5}, (np.maximum(y := 0.5 * PAIR[0].swapaxes(1, 2) @ PAIR[1], 0.2 * y),)),
    "GroupNorm": ((IMAGE, C, C), {"activation": 1, "groups": 2, "epsilon": 1e-2}, (silu(normalized(IMAGE, 2, 1e-2) * C + C),)),
    "SkipGroupNorm": ((IMAGE, C, C, SKIP, C), {"activation": 0, "groups": 3}, (normalized(y := IMAGE + SKIP + C, 3, 1e-5) * C + C, y)),
    "MulInteger": ((BYTES[0], u8(7), BYTES[1], u8(130)), {}, ((BYTES[0].astype(np.int32) - 7) * (BYTES[1].astype(np.int32) - 130),)),
    "NhwcConv": ((IMAGE, KERNEL.transpose(0, 2, 3, 1), f(5) * 0), {}, (convolved(IMAGE, KERNEL),)),
    "NhwcFusedConv": ((IMAGE, KERNEL, None, Z), {"activation": "Relu"}, (np.maximum(convolved(IMAGE, KERNEL) + Z, 0),)),
    "QLinearReduceMean": ((BYTES[0], s(0.03), u8(120), s(0.023), u8(100)), {"axes": [1], "keepdims": 1}, (requantized((BYTES[0].mean(1, keepdims=True) - 120) * 0.03, 0.023, 100),)),
}  # fmt: skip
"""What ONNX Runtime documents but has no kernel for on CPU: inputs, attributes, and what its description says."""


@pytest.mark.parametrize("operator", FORMULAS)
def test_equals_its_description(operator: str) -> None:
    inputs, attributes, wanted = FORMULAS[operator]
    program = from_onnx(model_of(operator, list(inputs), len(wanted), attributes))
    results = jax.tree.leaves(jax.jit(program)(*(x for x in inputs if x is not None)))
    for result, expected in zip(results, wanted, strict=True):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


HASHED = {
    "int32": np.array([0, 1, -5, 7], np.int32),
    "uint64": np.array([0, 1, 2**40], np.uint64),
    "float": np.array([0.5, -1], np.float32),
    "double": np.array([0.5, -1]),
    "string": np.array(["", "a", "abcd", "hello world", "ärger"], object),
}


@pytest.mark.parametrize("x", HASHED.values(), ids=HASHED)
@pytest.mark.parametrize("options", [{}, {"positive": 0, "seed": 7}])
def test_murmur_hash(x: np.ndarray, options: dict[str, int]) -> None:
    known = (0,) if x.dtype == object else ()
    with jax.enable_x64(True):
        check("MurmurHash3", x, known=known, **options)


def test_murmur_hash_of_numbers_whose_width_is_unknown_is_refused() -> None:
    with pytest.raises(Unsupported, match="64-bit types are off"):
        from_onnx(model_of("MurmurHash3", [HASHED["int32"]], 1, {}))(HASHED["int32"])


@pytest.mark.filterwarnings("ignore:64-bit types are off")
def test_unique() -> None:
    x = np.array([2, 1, 1, 3, 4, 3], np.float32)
    data = model_of("Unique", [x], 3, {})
    wanted: Any = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x0": x})
    for result, expected in zip(from_onnx(data)(x), wanted, strict=True):
        np.testing.assert_array_equal(result, expected)
    bounded = jax.jit(from_onnx(data, sizes={"y0": 5}))(x)
    np.testing.assert_array_equal(bounded[1], wanted[1])


def test_sparse_to_dense_matmul() -> None:
    """With a sparse tensor it is in `test_files`; what is dense to ONNX is so to ONNX Runtime."""
    program = from_onnx(
        model_of("SparseToDenseMatMul", [f(3, 2), f(4, 3)], 1, {"transA": 1, "transB": 1, "alpha": 2.0})
    )
    a, b = f(3, 2), f(4, 3)
    np.testing.assert_allclose(program(a, b), 2 * a.T @ b.T, rtol=1e-5)


def test_every_operator_is_compared() -> None:
    calls = (node for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Call))
    checked = {c.args[0].value for c in calls if ast.unparse(c.func) == "check" and isinstance(c.args[0], ast.Constant)}
    registered = {entry.name for entry in operators() if entry.domain == DOMAIN}
    assert sorted(registered - checked - {*CASES, *FORMULAS, "SparseToDenseMatMul", "Unique", *EXPERTS}) == []


@pytest.mark.parametrize(
    "options",
    [
        {"transA": 1},
        {"transB": 1},
        {"transA": 1, "transB": 1},
        {"transBatchA": 1},
        {"transBatchB": 1, "transB": 1},
        {"transBatchA": 1, "transA": 1},
    ],
)
def test_fused_matmul_transposed(options: dict[str, Any]) -> None:
    check("FusedMatMul", f(3, 3, 3), f(3, 3, 3), **options)


@pytest.mark.parametrize("c", [None, "bias"])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
def test_quantized_gemm(c: str | None, quantized: bool, transposed: int) -> None:
    b = i(5, 4) if transposed else i(4, 5)
    bias = i(3, 5, high=1000, dtype=np.int32) if c else None
    result = (s(3.5), u8(110)) if quantized else ()
    check("QGemm", i(3, 4), s(0.3), u8(120), b, s(0.2), u8(90), bias, *result, alpha=0.5, transB=transposed)


def lstm(
    kind: Any = np.int8,
    *,
    directions: int = 1,
    channels: bool = False,
    lengths: list[int] | None = None,
    more: bool = True,
) -> list[Any]:
    """The inputs of an LSTM of 5 numbers to 4, whose 3 sequences of 6 steps have a range that widens a hundredfold.

    The weights have a scale for each of the `channels` or for all; `more` are the first states and the peepholes.
    """
    numbers = np.random.default_rng(0)  # of their own: what lies at the border of a step must not depend on other tests
    f = lambda *shape: numbers.standard_normal(shape).astype(np.float32)
    limits, scales = np.iinfo(kind), (directions, 16) if channels else (directions,)
    points = [np.full(scales, point if kind == np.uint8 else 0, kind) for point in (120, 133)]
    w, r = (numbers.integers(limits.min, limits.max + 1, (directions, size, 16)).astype(kind) for size in (5, 4))
    x = f(6, 3, 5) * np.geomspace(0.1, 10, 6, dtype=np.float32)[:, None, None]
    states = [2 * f(directions, 3, 4), f(directions, 3, 4), f(directions, 12)] if more else [None] * 3
    quantized = [part for point in points for part in (0.003 + 0.01 * f(*scales) ** 2, point)]
    return [x, w, r, f(directions, 32), None if lengths is None else np.array(lengths, np.int32), *states, *quantized]


LSTMS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "plain": (lstm(more=False), {}),
    "without biases": ([*lstm()[:3], None, *lstm()[4:]], {}),
    "unsigned, reverse": (lstm(np.uint8), {"direction": "reverse"}),
    "scales of channels": (lstm(channels=True, directions=2), {"direction": "bidirectional"}),
    "unsigned, scales of channels": (lstm(np.uint8, channels=True), {"clip": 0.3}),
    "lengths": (lstm(lengths=[5, 2, 3]), {}),
    "lengths, reverse": (lstm(np.uint8, lengths=[3, 5, 2]), {"direction": "reverse"}),
    "lengths, both directions": (lstm(lengths=[1, 6, 4], directions=2), {"direction": "bidirectional"}),
    "a sequence of no length": (lstm(lengths=[4, 0, 2], directions=2), {"direction": "bidirectional"}),
    "last states alone": (lstm(lengths=[1, 6, 4], directions=2), {"direction": "bidirectional", "first": 1}),
    "functions": (lstm(), {"activations": ["HardSigmoid", "Softsign", "Relu"], "activation_alpha": [0.3], "activation_beta": [0.4]}),
    "one gate for both": (lstm(), {"input_forget": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", LSTMS)
def test_quantized_lstm(case: str) -> None:
    """What is multiplied is quantized on the scale of all that is multiplied at once, as ONNX Runtime has it."""
    inputs, options = LSTMS[case]
    if any(x is not None and x.dtype == np.int8 for x in inputs):
        needs_exact_int8()
    check("DynamicQuantizeLSTM", *inputs, outputs=3, hidden_size=4, atol=3e-6, **options)


def test_quantized_lstm_is_verified_with_one_thread() -> None:
    """With more of them ONNX Runtime quantizes the states of parts of the batch, each on a scale of its own."""
    needs_exact_int8()
    inputs = lstm(more=False)
    proto = onnx.load_from_string(model_of("DynamicQuantizeLSTM", inputs, 3, {"hidden_size": 4}))
    for index in (1, 2, 3, 8, 9, 10, 11):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(inputs[index], f"x{index}"))
    del proto.graph.input[1:]
    x = inputs[0][:, [0, 1, 2, 0, 1]] * np.array([1, 0.1, 0.3, 0.02, 2], np.float32)[:, None]
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    program = from_onnx(proto)
    verify_program(program, [x]).raise_if_failed()
    two = Comparison(program, threads=2).session.run({"x0": x})
    assert np.abs(two[0] - np.asarray(program(x)[0])).max() > 1e-4


def test_quantized_lstm_is_printed() -> None:
    inputs = lstm(np.uint8, lengths=[1, 6, 4])
    program = from_onnx(model_of("DynamicQuantizeLSTM", inputs, 3, {"hidden_size": 4, "direction": "reverse"}))
    arguments = {f"x{index}": x for index, x in enumerate(inputs)}
    specs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arguments.items()}
    module = printed.load(program.to_source(inputs=specs, framework="jax"))
    for result, expected in zip(printed.run(module, arguments), jax.jit(program)(**arguments), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_quantized_lstm_without_a_scale_is_refused() -> None:
    """It is required, though inputs before it are not."""
    inputs = lstm()
    inputs[10] = None
    with pytest.raises(ModelError, match=r"(?s)input `R_scale` is missing.*DynamicQuantizeLSTM that makes `y0`"):
        from_onnx(model_of("DynamicQuantizeLSTM", inputs, 3, {"hidden_size": 4}))


@pytest.mark.parametrize("last", [0, 1])
def test_quantized_conv(last: int) -> None:
    shape = (1, 6, 5, 4) if last else (1, 4, 6, 5)
    parts = (
        i(*shape),
        s(0.03),
        u8(120),
        i(6, 2, 3, 3),
        f(6) ** 2 * 0.1,
        i(1)[0] + np.zeros(6, np.uint8),
        s(0.5),
        u8(100),
    )
    check(
        "QLinearConv",
        *parts,
        i(6, high=1000, dtype=np.int32),
        known=(3, 4, 5, 8),
        group=2,
        channels_last=last,
        pads=[1, 1, 1, 1],
    )


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(bits, zeros) for bits in (2, 4, 8) for zeros in (None, "packed", "float") if (bits, zeros) != (8, "float")],
)
def test_matmul_n_bits(bits: int, zeros: str | None) -> None:
    count, width, block = 6, 48, 16
    blocks = width // block
    packed = i(count, blocks, block * bits // 8, high=256)
    points = {None: None, "packed": i(count, -(-blocks * bits // 8), high=256), "float": f(count, blocks)}[zeros]
    check(
        "MatMulNBits",
        f(2, 3, width),
        packed,
        f(count, blocks, scale=0.1),
        points,
        None,
        f(count),
        atol=2e-3,
        K=width,
        N=count,
        bits=bits,
        block_size=block,
    )


@pytest.mark.parametrize("width", [48, 40])
def test_matmul_n_bits_of_mixed_groups(width: int) -> None:
    count, block, blocks = 6, 16, 3
    groups = np.random.default_rng(0).integers(0, blocks, width).astype(np.int32)
    parts = (f(2, 3, width), i(count, blocks, block // 2, high=256), f(count, blocks, scale=0.1), None, groups)
    check("MatMulNBits", *parts, atol=2e-3, K=width, N=count, bits=4, block_size=block)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_block_quantized(bits: int, zeros: bool) -> None:
    data, scales = i(7, 32 * bits // 8, high=256), f(7, 2)
    points = i(7, -(-2 * bits // 8), high=256) if zeros else None
    check(
        "GatherBlockQuantized",
        data,
        np.array([[1, 3], [6, 0]]),
        scales,
        points,
        bits=bits,
        block_size=16,
        gather_axis=0,
        quantize_axis=1,
    )


def test_embed_layer_normalization() -> None:
    ids, segments, mask = (i(2, 5, high=n, dtype=np.int32) for n in (9, 2, 2))
    tables = (f(9, 8), f(7, 8), f(2, 8), f(8), f(8))
    check("EmbedLayerNormalization", ids, segments, *tables, mask, outputs=2)
    check(
        "EmbedLayerNormalization",
        ids,
        None,
        *tables[:2],
        None,
        *tables[3:],
        None,
        i(2, 5, high=7, dtype=np.int32),
        outputs=2,
    )


Q, K, V = f(2, 3, 8), f(2, 4, 8), f(2, 4, 8)
MASKS = {
    "lengths": np.array([3, 2], np.int32),
    "keys": np.array([[1, 1, 0, 1], [1, 0, 1, 1]], np.int32),
    "queries and keys": (np.arange(24).reshape(2, 3, 4) % 5 > 0).astype(np.int32),
}


@pytest.mark.parametrize("mask", [None, *MASKS])
def test_multi_head_attention(mask: str | None) -> None:
    check("MultiHeadAttention", Q, K, V, f(24), None if mask is None else MASKS[mask], f(1, 2, 3, 4), num_heads=2)


def test_multi_head_attention_with_past() -> None:
    past = (f(2, 2, 5, 4), f(2, 2, 5, 4))
    check("MultiHeadAttention", Q, Q, Q, None, None, None, *past, outputs=3, num_heads=2, unidirectional=1)
    check("MultiHeadAttention", Q, f(2, 2, 4, 4), f(2, 2, 4, 4), num_heads=2, scale=0.3)


def test_multi_head_attention_of_packed_inputs() -> None:
    """ONNX Runtime has no kernel for them on CPU: compared with what is not packed."""
    stacked = f(2, 4, 2, 3, 4)
    q, k, v = (stacked[:, :, :, part].reshape(2, 4, 8) for part in range(3))
    plain = from_onnx(model_of("MultiHeadAttention", [q, k, v], 1, {"num_heads": 2}))(q, k, v)
    for inputs in ([stacked], [q, stacked[:, :, :, 1:]]):
        packed = from_onnx(model_of("MultiHeadAttention", inputs, 1, {"num_heads": 2}))(*inputs)
        np.testing.assert_allclose(packed, plain, rtol=1e-5)


@pytest.mark.parametrize("mask", [None, "lengths", "keys", "queries and keys", "ends and starts"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask: str | None, unidirectional: int) -> None:
    masks = {**MASKS, "ends and starts": np.array([4, 3, 1, 0], np.int32)}
    masks["queries and keys"] = (np.arange(32).reshape(2, 4, 4) % 5 > 0).astype(np.int32)
    chosen = None if mask is None else masks[mask]
    check("Attention", f(2, 4, 6), f(6, 24), f(24), chosen, num_heads=2, unidirectional=unidirectional)


def test_attention_with_past() -> None:
    check("Attention", f(2, 3, 6), f(6, 24), f(24), None, f(2, 2, 2, 5, 4), outputs=2, num_heads=2, unidirectional=1)
    check("Attention", f(2, 3, 6), f(6, 20), f(20), num_heads=2, qkv_hidden_sizes=[8, 8, 4])


def test_decoder_masked_attention() -> None:
    check("DecoderMaskedMultiHeadAttention", f(2, 1, 8), f(2, 2, 4, 4), f(2, 2, 4, 4), num_heads=2)


def test_decoder_masked_attention_to_itself() -> None:
    """ONNX Runtime has a kernel for shared buffers only: compared with the attention of any length."""
    q, k, v, past = f(2, 1, 8), f(2, 1, 8), f(2, 1, 8), (f(2, 2, 5, 4), f(2, 2, 5, 4))
    plain = from_onnx(model_of("MultiHeadAttention", [q, k, v, None, None, None, *past], 3, {"num_heads": 2}))
    wanted = plain(q, k, v, *past)
    for inputs in ([q, k, v], [np.concatenate([q, k, v], 2), None, None]):
        operands = [*inputs, None, None, *past]
        program = from_onnx(model_of("DecoderMaskedMultiHeadAttention", operands, 3, {"num_heads": 2}))
        for result, expected in zip(program(*(x for x in operands if x is not None)), wanted, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_quantized_attention() -> None:
    check("QAttention", i(2, 4, 6), i(6, 24), f(24), s(0.01), s(0.02), None, u8(120), u8(130), num_heads=2, known=(1,))


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    caches = (f(10, 2), f(10, 2))
    check("RotaryEmbedding", f(2, 3, 8), np.array([[1, 2, 3], [4, 5, 6]]), *caches, interleaved=interleaved)
    check("RotaryEmbedding", f(2, 2, 3, 4), np.array([5]), *caches, interleaved=interleaved)
    check(
        "RotaryEmbedding",
        f(2, 3, 12),
        np.array([5]),
        *caches,
        interleaved=interleaved,
        num_heads=2,
        rotary_embedding_dim=4,
    )


LENGTHS = {"prompt": (3, 0, [2, 2]), "step": (1, 5, [5, 5]), "ragged step": (1, 5, [5, 3])}


@pytest.mark.parametrize("stage", LENGTHS)
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 0.5}, {"local_window_size": 2}, {"scale": 0.2}, {"smooth_softmax": 1}], ids=str
)
@pytest.mark.parametrize("rotary", [0, 1])
def test_group_query_attention(stage: str, options: dict[str, Any], rotary: int) -> None:
    new, old, ends = LENGTHS[stage]
    q, k, v = f(2, new, 4 * 16), f(2, new, 2 * 16), f(2, new, 2 * 16)
    past = (f(2, 2, old, 16), f(2, 2, old, 16))
    lengths = (np.array(ends, np.int32), np.array(new + old, np.int32))
    caches = (f(16, 8), f(16, 8)) if rotary else ()
    check(
        "GroupQueryAttention",
        q,
        k,
        v,
        *past,
        *lengths,
        *caches,
        known=(6,),
        num_heads=4,
        kv_num_heads=2,
        do_rotary=rotary,
        outputs=3,  # without them ONNX Runtime forgets the past
        compared=1 if stage == "ragged step" else None,  # what follows the end of a sequence is undefined
        **options,
    )


def test_group_query_attention_returns_the_cache() -> None:
    lengths = (np.array([5, 5], np.int32), np.array(6, np.int32))
    past = (f(2, 2, 5, 16), f(2, 2, 5, 16))
    check(
        "GroupQueryAttention",
        f(2, 1, 8 * 16),
        None,
        None,
        *past,
        *lengths,
        known=(6,),
        outputs=3,
        num_heads=4,
        kv_num_heads=2,
    )


def test_a_projected_gate() -> None:
    """Only ONNX Runtime's CUDA provider has it: compared with the formula of its schema."""
    x, y = (np.asarray(f(2, 5, 8), jnp.bfloat16) for _ in range(2))
    gate, weight = np.asarray(f(2, 5, 4), jnp.bfloat16), np.asarray(f(4, 1), jnp.bfloat16)
    data = model_of("GatedAdd", [x, y, gate, weight], 1, {})
    result = from_onnx(data)(x0=x, x1=y, x2=gate, x3=weight)
    share = 1 / (1 + np.exp(-gate.astype(np.float32) @ weight.astype(np.float32)))
    assert result.dtype == jnp.bfloat16
    wanted = x.astype(np.float32) + y.astype(np.float32) * share
    np.testing.assert_allclose(np.asarray(result, np.float32), wanted, rtol=0.02, atol=0.02)  # three roundings


@pytest.mark.skipif(
    len(SCHEMAS["GroupQueryAttention"].inputs) < 17, reason="ONNX Runtime has `query_seqlens` since 1.32"
)
def test_group_query_attention_of_padded_chunks() -> None:
    """Two prompts in chunks of one length: 3 valid rows of 4 after 2, and 2 after 3."""
    valid, before = np.array([3, 2], np.int32), np.array([2, 3], np.int32)
    inputs = [f(2, 4, 64), f(2, 4, 32), f(2, 4, 32), f(2, 2, 9, 16), f(2, 2, 9, 16)]
    inputs += [before + valid - 1, np.array(9, np.int32), f(16, 8), f(16, 8), *[None] * 7, valid]
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    data = model_of("GroupQueryAttention", inputs, 3, attributes)
    named = {f"x{index}": x for index, x in enumerate(inputs) if x is not None}
    wanted = onnxruntime.InferenceSession(data).run(None, named)
    results = from_onnx(data)(**named)
    for batch, (rows, length) in enumerate(zip(valid, before + valid, strict=True)):
        np.testing.assert_allclose(results[0][batch, :rows], wanted[0][batch, :rows], rtol=1e-4, atol=2e-5)
        for result, expected in zip(results[1:], wanted[1:], strict=True):
            np.testing.assert_allclose(result[batch, :, :length], expected[batch, :, :length], rtol=1e-4, atol=2e-5)


def test_what_is_not_supported_is_refused_by_name() -> None:
    data = model_of(
        "MultiHeadAttention",
        [Q, K, V, None, None, None, f(2, 2, 5, 4), f(2, 2, 5, 4), np.array([1], np.int32)],
        1,
        {"num_heads": 2},
    )
    with pytest.raises(
        Unsupported, match=r"(?s)MultiHeadAttention that makes `y0`.*export without `past_sequence_length`"
    ):
        from_onnx(data)(x0=Q, x1=K, x2=V, x6=f(2, 2, 5, 4), x7=f(2, 2, 5, 4), x8=np.array([1], np.int32))


def test_groups_and_zero_points_together_are_refused() -> None:
    parts = [f(2, 32), i(4, 2, 8, high=256), f(4, 2), i(4, 1, high=256), np.zeros(32, np.int32)]
    data = model_of("MatMulNBits", parts, 1, {"K": 32, "N": 4, "bits": 4, "block_size": 16})
    with pytest.raises(Unsupported, match=r"(?s)MatMulNBits that makes `y0`.*`g_idx` beside `zero_points`"):
        from_onnx(data)(**{f"x{index}": part for index, part in enumerate(parts)})
