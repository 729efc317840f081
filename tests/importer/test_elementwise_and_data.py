"""Activations and data movement where the official suite has no case: older versions, dtypes, attributes, gradients.

Values are compared with ONNX Runtime.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from jaxport.errors import Unsupported
from jaxport.importer import Program, from_onnx

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
IMAGE = RNG.normal(size=(1, 8, 4, 6)).astype(np.float32)
INTS = np.array([[3, -1, 2], [2, 2, -3]], np.int32)
BYTES = np.array([[3, 255, 0], [7, 7, 128]], np.uint8)


class Case(NamedTuple):
    """One node at one opset: its inputs (None where absent), its attributes, how many outputs it has."""

    op: str
    opset: int
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}-" + ",".join(f"{k}={v}" for k, v in self.attributes.items())

    def model(self) -> onnx.ModelProto:
        names = ["" if value is None else f"in{i}" for i, value in enumerate(self.inputs)]
        outputs = [f"out{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, **self.attributes)
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in zip(names, self.inputs, strict=True)
            if name
        ]
        graph = helper.make_graph([node], "case", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", self.opset)])

    def samples(self) -> dict[str, Any]:
        return {f"in{i}": value for i, value in enumerate(self.inputs) if value is not None}


def case(op: str, opset: int, *inputs: Any, outputs: int = 1, **attributes: Any) -> Case:
    arrays = tuple(value if value is None or isinstance(value, np.ndarray) else np.array(value) for value in inputs)
    return Case(op, opset, arrays, attributes, outputs)


def listed(output: Any) -> list[Any]:
    return list(output) if isinstance(output, tuple) else [output]


CASES = [
    case("Softmax", 12, X),
    case("Softmax", 12, X, axis=-1),
    case("LogSoftmax", 11, X, axis=0),
    case("Hardmax", 11, X, axis=1),
    case("Hardmax", 13, X, axis=-2),
    case("LeakyRelu", 7, X, alpha=0.3),
    case("PRelu", 7, X, X[0, :, :1]),
    case("PRelu", 9, X, X[0, 0]),
    case("Elu", 7, X, alpha=0.5),
    case("Selu", 7, X, alpha=2.0, gamma=3.0),
    case("HardSigmoid", 7, X, alpha=0.5, beta=0.3),
    case("Celu", 12, X, alpha=0.7),
    case("Gelu", 20, X, approximate="tanh"),
    case("ThresholdedRelu", 10, X, alpha=0.2),
    case("Shrink", 9, INTS, lambd=1.0, bias=1.0),
    case("Shrink", 9, BYTES, lambd=4.0, bias=1.0),
    case("Clip", 7, X, min=-0.5, max=0.25),
    case("Clip", 11, X, np.float32(-0.5)),
    case("Clip", 12, INTS, np.int32(2), np.int32(-1)),
    case("Clip", 13, X, None, np.float32(0.1)),
    case("Dropout", 7, X),
    case("Dropout", 10, X, ratio=0.1),
    case("Pow", 7, X, np.float32(2)),
    case("Pow", 7, X, np.array([-1, 3, 0, 2], np.float32)),
    case("Pow", 12, INTS, np.array([2], np.int32)),
    case("Pow", 13, X, np.int64(-3)),
    case("Pow", 15, INTS, np.float32(2)),
    case("Mod", 10, INTS, np.array([[2], [-2]], np.int32)),
    case("Mod", 13, X, np.float32(-0.3), fmod=1),
    case("IsInf", 10, np.array([np.inf, -np.inf, np.nan, 1], np.float32), detect_negative=0),
    case("IsInf", 10, np.array([np.inf, -np.inf, np.nan, 1], np.float32), detect_negative=0, detect_positive=0),
    case("BitShift", 11, BYTES, np.array([1, 2, 7], np.uint8), direction="LEFT"),
    case("Det", 11, X[:, :, :3]),
    case("ArgMax", 11, INTS, axis=1, keepdims=0),
    case("ArgMin", 12, INTS, axis=1, select_last_index=1),
    case("ArgMax", 13, BYTES, axis=0, select_last_index=1, keepdims=0),
    case("TopK", 10, X, [2], outputs=2),
    case("TopK", 11, X, [2], axis=1, largest=0, outputs=2),
    case("TopK", 11, np.array([5, -(2**31), 3], np.int32), [2], largest=0, outputs=2),
    case("TopK", 11, np.array([5, 5, 3, 5], np.int64), [2], outputs=2),
    case("CumSum", 11, X, 1, exclusive=1),
    case("CumSum", 11, X, -1, exclusive=1, reverse=1),
    case("CumSum", 14, INTS, 0, reverse=1),
    case("NonZero", 9, INTS > 0),
    case("Compress", 9, X, np.array([True, False, True])),
    case("Compress", 11, X, np.array([False, True]), axis=-1),
    case("Unique", 11, INTS.astype(np.int64), sorted=0, outputs=4),
    case("Unique", 11, INTS.astype(np.int64), axis=1, outputs=4),
    case("Trilu", 14, X, -1, upper=0),
    case("Trilu", 14, X, 9),
    case("EyeLike", 9, INTS, k=-1, dtype=1),
    case("OneHot", 9, np.array([[0, -1, 7]], np.int64), 3, np.array([2, 5], np.float32)),
    case("OneHot", 11, np.array([[0, -3, -4]], np.int64), 3, np.array([2, 5], np.float32), axis=1),
    case("HannWindow", 17, 7, periodic=0),
    case("HammingWindow", 17, 6),
    case("BlackmanWindow", 17, 8, periodic=0),
    case("MelWeightMatrix", 17, 8, 16, 8000, np.float32(0), np.float32(3000)),
    case("GatherElements", 11, X, np.array([[[1], [-1]]]), axis=2),
    case("GatherElements", 13, X, np.array([[[1, 0, 1, 1]]]), axis=0),
    case("GatherND", 11, X, np.array([[0, -1], [1, 0]])),
    case("GatherND", 13, X, np.array([[1], [-2]]), batch_dims=1),
    case("Scatter", 9, X, np.array([[[0, 1]]]), X[:1, :1, 2:], axis=1),
    case("ScatterElements", 11, X, np.array([[[-1, 1]]]), X[:1, :1, 2:], axis=-1),
    case("ScatterElements", 16, X, np.array([[[1, 1]]]), X[:1, :1, 2:], axis=2, reduction="add"),
    case("ScatterElements", 18, X, np.array([[[1, 1]]]), X[:1, :1, 2:], axis=2, reduction="max"),
    case("ScatterND", 11, X, np.array([[0, 1], [1, -1]]), X[0, :2]),
    case("ScatterND", 16, X, np.array([[0, 1], [0, 1]]), X[0, :2], reduction="mul"),
    case("Split", 7, X, axis=1, split=[1, 2], outputs=2),
    case("Split", 11, X, axis=-1, outputs=2),
    case("Split", 13, X, [3, 1], axis=2, outputs=2),
    case("Split", 18, X, axis=1, num_outputs=2, outputs=2),
    case("Pad", 7, X, pads=[0, 1, 0, 0, 0, 2], value=1.5),
    case("Pad", 10, X, pads=[0, 1, 0, 0, 1, 2], mode="edge"),
    case("Pad", 11, X, [0, 1, -1, 0, 0, -2], np.float32(-2)),
    case("Pad", 13, X, [0, 1, -1, 0, 1, 2], mode="reflect"),
    case("Pad", 13, INTS, [1, 0, -1, 0], mode="edge"),
    case("Pad", 18, X, [1, -1, 2, 0], np.float32(3), [2, -2]),
    case("Pad", 19, X, [1, 2], None, [1], mode="wrap"),
    case("ReverseSequence", 10, X, [2, 1, 2], time_axis=0, batch_axis=1),
    case("ReverseSequence", 10, X, [3, 2], time_axis=1, batch_axis=0),
    case("DepthToSpace", 7, IMAGE, blocksize=2),
    case("DepthToSpace", 11, IMAGE, blocksize=2, mode="CRD"),
    case("SpaceToDepth", 7, IMAGE, blocksize=2),
    case("CenterCropPad", 18, X, [5, 1], axes=[-1, 1]),
    case("Col2Im", 18, X.reshape(1, 4, 6), [4, 3], [2, 2], pads=[0, 0, 0, 1], dilations=[2, 1], strides=[1, 1]),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_onnxruntime(case: Case) -> None:
    model = case.model()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected: Any = session.run(None, case.samples())
    with jax.enable_x64(True):
        outputs = listed(from_onnx(model)(**case.samples()))
    for output, wanted in zip(outputs, expected, strict=True):
        assert (output.dtype, output.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(output, wanted, rtol=2e-5, atol=2e-6)


FIRST = [
    (case("Add", 1, X, X[0, :, 0], axis=1, broadcast=1, consumed_inputs=[0]), lambda: X + X[0, :, :1]),
    (case("Exp", 1, X, consumed_inputs=[0]), lambda: np.exp(X)),
    (case("Max", 1, X, -X), lambda: np.abs(X)),
    (case("PRelu", 6, X, X[0, :, 0]), lambda: np.where(X < 0, X * X[0, :, :1], X)),
    (case("Selu", 1, np.abs(X)), lambda: np.abs(X) * np.float32(1.0507)),
    (case("Clip", 1, X, min=0.0), lambda: np.maximum(X, 0)),
    (case("Dropout", 1, X, is_test=1), lambda: X),
    (case("Reshape", 1, X, shape=[0, -1]), lambda: X.reshape(2, 12)),
    (case("Concat", 1, X, X), lambda: np.concatenate([X, X], 1)),
    (case("Tile", 1, X, np.float32(2), np.float32(1)), lambda: np.tile(X, (1, 2, 1))),
    (case("Cast", 1, X, to="INT32"), lambda: X.astype(np.int32)),
    (case("TopK", 1, X, k=1, outputs=2), lambda: X.max(-1, keepdims=True)),
    (case("Pad", 1, X, paddings=[0, 0, 1, 0, 0, 0]), lambda: np.pad(X, [(0, 0), (0, 0), (1, 0)])),
    (case("Split", 1, X, np.array([1, 3], np.float32), axis=2, outputs=2), lambda: X[..., :1]),
    (case("Split", 1, X, axis=2, split=[3, 1], outputs=2), lambda: X[..., :3]),
    (case("GatherND", 11, X, np.array([[1]])), lambda: X[1:]),
]


@pytest.mark.parametrize(("case", "expected"), FIRST, ids=lambda value: str(value) if isinstance(value, Case) else "")
def test_versions_that_onnxruntime_lacks(case: Case, expected: Any) -> None:
    first = listed(from_onnx(case.model())(**case.samples()))[0]
    np.testing.assert_allclose(first, expected(), rtol=1e-6)


def test_numbers_become_strings_where_they_are_known() -> None:
    numbers = np.array([0.1, 3, 1e10, np.inf, -np.inf, np.nan], np.float32)
    program = from_onnx(case("Cast", 13, numbers, to=onnx.TensorProto.STRING).model())
    assert program(numbers).tolist() == ["0.1", "3", "1e+10", "INF", "-INF", "NaN"]
    with pytest.raises(Unsupported, match=r"(?s)strings depend on values.*Cast that makes `out0`.*outside `jax.jit`"):
        jax.jit(program)(numbers)


def test_dropout_in_training_scales_what_it_keeps() -> None:
    ones = np.ones((50, 40), np.float32)
    model = from_onnx(case("Dropout", 13, ones, np.float32(0.25), np.array(True), seed=7, outputs=2).model())
    output, mask = model(ones, np.float32(0.25), np.array(True))
    np.testing.assert_allclose(output, np.where(mask, 1 / 0.75, 0), rtol=1e-6)
    assert 0.7 < np.mean(mask) < 0.8


DIFFERENTIABLE = [
    case("Softmax", 13, X),
    case("Pow", 15, np.array([-1.0, 0.0, 2.0], np.float32), np.float32(2)),
    case("Celu", 12, np.array([-200.0, 0.0, 200.0], np.float32)),
    case("Elu", 7, np.array([-200.0, 0.0, 200.0], np.float32)),
    case("Mish", 18, np.array([-200.0, 0.0, 200.0], np.float32)),
    case("Softplus", 7, np.array([-200.0, 0.0, 200.0], np.float32)),
    case("Swish", 24, np.array([-200.0, 0.0, 200.0], np.float32)),
    case("CumSum", 14, X, 1, exclusive=1),
    case("CumProd", 26, np.array([2.0, 0.0, 3.0], np.float32), 0),
    case("ScatterND", 16, X, np.array([[0, 1], [0, 1]]), X[0, :2], reduction="add"),
]


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_gradients_are_finite(case: Case) -> None:
    run: Program = from_onnx(case.model())
    rest = {name: value for name, value in case.samples().items() if name != "in0"}
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(run(in0=x, **rest) ** 2)))(case.inputs[0])
    assert np.isfinite(gradient).all()


REFUSED = [
    (case("LpNormalization", 22, X, p=3), "`p` is 3; it has to be one of 1, 2"),
    (case("Split", 1, X, split=[1, 1], outputs=2), "version 1 has no default for `axis`"),
    (case("ScatterND", 16, X, np.array([[0]]), X[:1], reduction="mean"), "`reduction` is 'mean'; it has to be one of"),
    (case("Pad", 11, X, [0, 0, 0, 0, 0, 1], mode="mirror"), "`mode` is 'mirror'; it has to be one of constant"),
    (case("BitCast", 26, X, to=onnx.TensorProto.INT64), "the bits of int64 are needed"),
]


@pytest.mark.parametrize(("case", "text"), REFUSED, ids=str)
def test_refusals_say_why(case: Case, text: str) -> None:
    with pytest.raises(Unsupported, match=text):
        from_onnx(case.model())(**case.samples())


def test_what_depends_on_data_in_its_shape_is_refused_under_jit() -> None:
    with pytest.raises(Unsupported, match="NonZero"):
        jax.jit(from_onnx(case("NonZero", 13, X).model()))(X)


def numeric(run: Any, x: np.ndarray) -> np.ndarray:
    """The gradient of a function by central differences."""
    steps = np.eye(x.size).reshape(x.size, *x.shape) * 1e-6
    return np.array([(run(x + step) - run(x - step)) / 2e-6 for step in steps]).reshape(x.shape)


DOUBLES = RNG.normal(size=(4, 3))
TWICE = np.array([[1], [-2], [1]])
HARD = [
    *(case("ScatterND", 18, DOUBLES, TWICE, np.array([[2.0, 0, 3], [1, 2, 3], [0, 4, -1]]), reduction=r) for r in ("mul", "max", "min")),
    *(case("ScatterElements", 18, DOUBLES, TWICE[:, [0, 0]], np.array([[2.0, 0], [1, 2], [0, 4]]), reduction=r) for r in ("mul", "max")),
    case("MaxPool", 22, RNG.normal(size=(1, 1, 5, 6)), kernel_shape=[2, 3], dilations=[2, 2], pads=[1, 0, 0, 1], strides=[2, 1]),
    case("MaxPool", 22, RNG.normal(size=(1, 1, 5, 6)), kernel_shape=[2, 2], dilations=[2, 3], auto_pad="SAME_LOWER"),
]  # fmt: skip


@pytest.mark.parametrize("case", HARD, ids=str)
def test_gradients_that_jax_lacks(case: Case) -> None:
    run = from_onnx(case.model())
    names = [name for name, value in case.samples().items() if value.dtype.kind == "f"]
    rest = {name: value for name, value in case.samples().items() if name not in names}
    with jax.enable_x64(True):
        loss = jax.jit(lambda *floats: jnp.sum(run(**dict(zip(names, floats, strict=True)), **rest) ** 2))
        floats = [case.samples()[name] for name in names]
        found = jax.grad(loss, tuple(range(len(names))))(*floats)
        for place, gradient in enumerate(found):
            at = lambda x, place=place: loss(*floats[:place], x, *floats[place + 1 :])
            np.testing.assert_allclose(gradient, numeric(at, floats[place]), rtol=1e-5, atol=1e-6)


def test_sums_of_bools_are_alternatives() -> None:
    data = np.array([True, False, False])
    index, updates = np.array([0, 1, 1]), np.array([True, False, True])
    for reduction, wanted in (("add", [True, True, False]), ("mul", [True, False, False])):
        made = case("ScatterElements", 18, data, index, updates, reduction=reduction).model()
        assert from_onnx(made)(data, index, updates).tolist() == wanted


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("bias", [0.5, 1.0, -1.5])
@pytest.mark.parametrize("lambd", [1.5, -0.5, 0.0])
def test_shrunk_integers_are_cut_off_towards_zero(dtype: Any, bias: float, lambd: float) -> None:
    x = np.array([-3, -2, -1, 0, 1, 2, 5] if np.dtype(dtype).kind == "i" else [4, 2, 3, 5, 7], dtype)
    wanted = [int(v + bias) if v < -lambd else int(v - bias) if v > lambd else 0 for v in x.tolist()]
    with jax.enable_x64(True):
        assert from_onnx(case("Shrink", 9, x, lambd=lambd, bias=bias).model())(x).tolist() == wanted


def test_conditions_beyond_an_axis_select_nothing() -> None:
    x, condition = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([False, True, True])
    made = from_onnx(case("Compress", 11, x, condition, axis=1).model())
    assert made(x, condition).tolist() == [[1], [3], [5]]
    graph = "g (float[n, 2] x) => (float[m, 2] y) <bool[3] c = {1, 0, 1}> { y = Compress<axis = 0>(x, c) }"
    opened = from_onnx(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {graph}'))
    assert opened(x[:2]).tolist() == [[0, 1]]
    source = opened.to_source(framework="jax")
    assert source.notes == ("`n >= 3` has to hold, for the Compress that makes `y`",)
    assert "n has to be at least 3" in source.code
