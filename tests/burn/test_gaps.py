"""What other printers for Burn leave out: each computes what ONNX Runtime does, at several sizes of one build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from unittest import mock

import jax
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from flax import nnx
from onnx import numpy_helper

import jaxport
from examples.models import build as example, gpt2, llama
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.importer.interface import in_model_order
from tests.burn.crates import Built, Case, RunError, build, case_of, selected

pytestmark = pytest.mark.burn

LIMIT = 1e-5
"""Relative to the largest element of an output."""
Inputs = Mapping[str, np.ndarray]


def some(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def model(graph: str, opset: int = 21, functions: str = "", **weights: np.ndarray) -> onnx.ModelProto:
    """Return a model of a graph's text, and of tensors by name."""
    domains = ', "local": 1' if functions else ""
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{domains}]>\n{graph}\n{functions}')
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return made


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": some(count, 4, seed=count)}


def quantized() -> onnx.ModelProto:
    graph = """g (float[n, 4] x) => (float[n, 3] y) {
        xq = QuantizeLinear(x, xs, xz) xd = DequantizeLinear(xq, xs, xz)
        wd = DequantizeLinear<axis = 1>(w, ws, wz) h = MatMul(xd, wd)
        hq = QuantizeLinear(h, xs, xz) y = DequantizeLinear(hq, xs, xz) }"""
    weights = {"w": np.arange(-6, 6, dtype=np.int8).reshape(4, 3), "ws": np.array([0.1, 0.2, 0.3], np.float32)}
    zeros = {"wz": np.zeros(3, np.int8), "xs": np.float32(0.05), "xz": np.uint8(128)}
    return model(graph, **weights, **{key: np.asarray(value) for key, value in zeros.items()})


def quantized_layers() -> onnx.ModelProto:
    """A table and a convolution whose weights the file has as integers."""
    graph = """g (int64[n, 9] i) => (float[n, 4, 7] y) { t = DequantizeLinear(table, ts, tz) e = Gather(t, i)
        r = Transpose<perm = [0, 2, 1]>(e) w = DequantizeLinear<axis = 0>(kernel, ws) y = Conv(r, w, b) }"""
    table, kernel = np.arange(60, dtype=np.int8).reshape(20, 3), np.arange(-18, 18, dtype=np.int8).reshape(4, 3, 3)
    scales = {
        "ts": np.array(0.1, np.float32),
        "tz": np.array(3, np.int8),
        "ws": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    }
    return model(graph, table=table, kernel=kernel, b=some(4), **scales)


def in_precision(precision: str) -> onnx.ModelProto:
    """Two linear layers whose weights are integers, of sequences."""
    rngs = nnx.Rngs(0)
    layers = nnx.Linear(64, 48, rngs=rngs), nnx.relu, nnx.Linear(48, 24, use_bias=False, rngs=rngs)
    exported = jaxport.to_onnx(nnx.Sequential(*layers), [("n", "t", 64)], precision=precision, target="onnxruntime")
    return ir.to_proto(exported.model)


def rounded() -> onnx.ModelProto:
    """A value that is rounded to integers of 16 and 8 bits."""
    graph = """g (float[n, 4] x) => (float[n, 4] y) { a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = Tanh(b)
        d = QuantizeLinear(c, t, w) y = DequantizeLinear(d, t, w) }"""
    zeros = {"z": np.array(-5, np.int16), "w": np.array(3, np.int8)}
    return model(graph, s=np.array(0.01, np.float32), t=np.array(0.02, np.float32), **zeros)


def of_functions() -> onnx.ModelProto:
    graph = "g (float[n, 4] x) => (float[n, 4] y) { h = local.block(x, a) y = local.block(h, b) }"
    function = (
        '<domain: "local", opset_import: ["": 21]> block (x, w) => (y) { h = MatMul(x, w) r = Relu(h) y = Add(x, r) }'
    )
    return model(graph, functions=function, a=some(4, 4), b=some(4, 4, seed=1))


IF = """g (float[n, 4] x) => (float[n, 4] y) { s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero) y = If(c)
    <then_branch = t () => (float[n, 4] a) { a = Neg(x) }, else_branch = e () => (float[n, 4] b) { b = Mul(x, x) }> }"""
LOOP = """g (float[n, 4] x) => (float[n, 4] y, float[5, n, 4] ys) { y, ys = Loop(five, yes, x)
    <body = b (int64 i, bool go, float[n, 4] v) => (bool next, float[n, 4] w, float[n, 4] row)
        { f = CastLike(i, v) h = Mul(v, half) w = Add(h, f) next = Identity(go) row = Identity(w) }> }"""
SCAN = """g (float[n, 4] x) => (float[4] total, float[n, 4] sums) { total, sums = Scan<num_scan_inputs = 1, body = b
    (float[4] before, float[4] row) => (float[4] after, float[4] out) { after = Add(before, row) out = Tanh(after) }>(start, x) }"""
RMS = "g (float[n, 4] x) => (float[n, 4] y) { y = RMSNormalization<epsilon = 0.001>(x, w) }"
EINSUM = """g (float[n, 4] x) => (float[n, 3] y, float[n] t) {
    z = Einsum<equation = "ni,ij->nj">(x, w) y = Einsum<equation = "ni,ij,nj->nj">(x, w, z) t = Einsum<equation = "ni,ni->n">(x, x) }"""
ROTARY = "g (float[b, 2, t, 8] x, int64[b, t] at) => (float[b, 2, t, 8] y) { y = RotaryEmbedding(x, cos, sin, at) }"
LSTM = """g (float[t, b, 4] x, float[2, b, 3] h, float[2, b, 3] c) => (float[t, 2, b, 3] y, float[2, b, 3] hn, float[2, b, 3] cn)
    { y, hn, cn = LSTM<hidden_size = 3, direction = "bidirectional">(x, w, r, bias, , h, c) }"""
GRU = """g (float[t, b, 4] x, float[2, b, 3] h) => (float[t, 2, b, 3] y, float[2, b, 3] hn)
    { y, hn = GRU<hidden_size = 3, direction = "bidirectional", linear_before_reset = 1>(x, w, r, bias, , h) }"""


CELL = "g (float[5, 2, 4] x) => (float[5, 1, 2, 3] y) { y = @<hidden_size = 3@>(x, w, r, bias, , h#) }"
GATHER = (
    "g (int64[n] i) => (float[n, 4] y, float[m, 4] z) { y = Gather(w, i) p = Range(zero, five, one) z = Gather(w, p) }"
)
WIDE = "g (float[n, 4] x) => (float[n, 3] y) { v = Cast<to = 1>(w) y = MatMul(x, v) }"
AVERAGED = """g (float[n, 3, 9, 8] x) => (float[n, 3, a, b] y, float[n, 3, c, d] z, float[n, 3, e, f] v) {
    y = AveragePool<kernel_shape = [3, 3], strides = [2, 2]>(x) z = AveragePool<kernel_shape = [2, 3], pads = [1, 1, 0, 1]>(x)
    v = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>(x) }"""
GREATEST = "g (float[n, 4] x) => (float[2, 4] y, int64[2, 4] at) { y, at = TopK<axis = 0>(x, two) }"
SPECTRUM = """g (float[n, 90, 1] x) => (float[n, 46, 2] y, float[n, 90, 2] z, float[n, 45, 2] w) {
    y = DFT<onesided = 1>(x) z = DFT<inverse = 1>(q) q = DFT(x) w = DFT(x, short) }""".replace(
    "z = DFT<inverse = 1>(q) q = DFT(x)", "q = DFT(x) z = DFT<inverse = 1>(q)"
)
PRODUCTS = """g (float[1, 3, h, w] x) => (float[k, m] y) { a = Conv<strides = [4, 4], pads = [1, 1, 1, 1]>(x, first)
    b = Conv<strides = [4, 4]>(a, second) r = Reshape(b, rows) z = ReduceSum<keepdims = 0>(r, zero) e = Unsqueeze(z, zero)
    f = Mul(e, e) y = CumSum(f, zero) }"""
TABLE = """g (float[b, t, 4] x, float[b, p, 4] past) => (float[b, k, 4] y) { c = Concat<axis = 1>(past, x)
    n = Shape<start = 1, end = 2>(c) rows = Slice(w, zero, n, zero) y = Add(c, rows) }"""
FRAMES = "g (float[n, 128, 1] x) => (float[n, f, 9, 2] y) { y = STFT(x, step, window) }"


def constant_cell(kind: str, gates: int, options: str = "") -> onnx.ModelProto:
    """A cell whose states begin as constants of the file."""
    text = CELL.replace("@<", f"{kind}<").replace("@>", f"{options}>").replace("#", ", c" * (kind == "LSTM"))
    states = {"h": some(1, 2, 3, seed=3), **({"c": np.zeros((1, 2, 3), np.float32)} if kind == "LSTM" else {})}
    return model(
        text, w=some(1, 3 * gates, 4), r=some(1, 3 * gates, 3, seed=1), bias=some(1, 6 * gates, seed=2), **states
    )


def cell(kind: str, gates: int, of_state: int | None = None) -> onnx.ModelProto:
    """A cell in both directions, with the biases of so many gates for products of the state: all of them if None."""
    weights = {"w": some(2, 3 * gates, 4), "r": some(2, 3 * gates, 3, seed=1)}
    if of_state is None:
        return model(kind, **weights, bias=some(2, 6 * gates, seed=2))
    parts = "bias = Concat<axis = 1>(b, none, last)" if of_state else "bias = Concat<axis = 1>(b, none)"
    text = kind.replace("{ y", f"{{ none = ConstantOfShape(rest) {parts} y")
    if of_state:
        weights["last"] = some(2, 3 * of_state, seed=3)
    return model(text, **weights, b=some(2, 3 * gates, seed=2), rest=np.array([2, 3 * (gates - of_state)]))


def gatewise() -> onnx.ModelProto:
    """An LSTM with weights of their own for each gate, in columns, and one bias."""
    text = """g (float[t, b, 4] x) => (float[t, 1, b, 3] y) {
        ws = Concat<axis = 1>(wi, wo, wf, wc) wt = Transpose<perm = [1, 0]>(ws) w = Unsqueeze(wt, first)
        rs = Concat<axis = 1>(ri, ro, rf, rc) rt = Transpose<perm = [1, 0]>(rs) r = Unsqueeze(rt, first)
        none = ConstantOfShape(twelve) bs = Concat<axis = 0>(bi, bo, bf, bc, none) bias = Unsqueeze(bs, first)
        y = LSTM<hidden_size = 3>(x, w, r, bias) }"""
    gates = {
        f"{kind}{gate}": some(*shape, seed=10 * at + place)
        for at, (kind, shape) in enumerate({"w": (4, 3), "r": (3, 3), "b": (3,)}.items())
        for place, gate in enumerate("iofc")
    }
    return model(text, first=np.array([0]), twelve=np.array([12]), **gates)


def layers_with_a_bound() -> onnx.ModelProto:
    """Layers that follow one another, each with a bound of known numbers: the loop over them is all that makes a tensor."""

    class Bounded(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(4)])

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = jax.numpy.maximum(layer(x), jax.numpy.array([0.1, -0.2, 0.3, 0.0]))
            return x

    return ir.to_proto(jaxport.to_onnx(Bounded(nnx.Rngs(0)), [("n", 4)]).model)


def sequences(length: int, batch: int, *states: str) -> dict[str, np.ndarray]:
    return {"x": some(length, batch, 4), **{name: some(2, batch, 3, seed=7 + at) for at, name in enumerate(states)}}


def cached(length: int, past: int) -> dict[str, np.ndarray]:
    return {"x": some(2, length, 4), "past": some(2, past, 4, seed=1)}


def positions(batch: int, length: int) -> dict[str, np.ndarray]:
    at = np.random.default_rng(1).integers(0, 16, (batch, length))
    return {"x": some(batch, 2, length, 8), "at": at}


def groups_of_rows() -> onnx.ModelProto:
    """Rows that are multiplied by the matrix of their group, as those of experts are: `ragged_dot_general`."""
    sizes = jax.ShapeDtypeStruct((3,), np.int32)
    return ir.to_proto(jaxport.to_onnx(jax.lax.ragged_dot, [("n", 4), (3, 4, 5), sizes]).model)


def labels() -> onnx.ModelProto:
    """A table of keys that are not in order, which is searched by bisection: `lt_to` and `le_to`."""
    return onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>
        g (float[n, 4] x) => (float[n, 4] y) { r = Round(x)
        y = ai.onnx.ml.LabelEncoder<keys_floats = [1.0, -1.0, 3.0, 0.0], values_floats = [5.0, 6.0, 7.0, 8.0], default_float = -2.0>(r) }""")


def support_vectors() -> onnx.ModelProto:
    """A classifier of three classes, whose probabilities each row approaches in rounds of its own: a `while` of many conditions."""
    return onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]>
        g (float[n, 4] x) => (int64[n] label, float[n, 3] p) { label, p = ai.onnx.ml.SVMClassifier<classlabels_ints = [4, 5, 6],
        kernel_type = "LINEAR", kernel_params = [0.5, 0.0, 3.0], vectors_per_class = [1, 2, 1], rho = [0.1, -0.2, 0.05],
        support_vectors = [0.5, -1.0, 0.2, 0.1, 1.5, 0.3, -0.7, 0.4, -0.2, 0.8, 1.1, -0.5, 0.9, 0.6, -1.2, 0.3],
        coefficients = [0.4, -0.3, 0.8, -0.6, 0.5, 0.2, -0.9, 0.7], prob_a = [-1.0, -1.5, -0.7], prob_b = [0.1, -0.1, 0.2]>(x) }""")


def grouped(*sizes: int, behind: int = 0) -> dict[str, np.ndarray]:
    return {"lhs": some(sum(sizes) + behind, 4), "rhs": some(3, 4, 5), "group_sizes": np.array(sizes, np.int32)}


ANGLES = some(16, 4)
CASES: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[Inputs, ...]]] = {
    "quantized": (quantized, (rows(3), rows(5))),
    "quantized layers": (quantized_layers, ({"i": np.arange(27).reshape(3, 9) % 20}, {"i": np.arange(-9, 9).reshape(2, 9)})),
    "products of integers": (lambda: in_precision("int8-dynamic"), ({"args_0": some(2, 3, 64)}, {"args_0": some(1, 5, 64)})),
    "rounded": (rounded, (rows(3), rows(5))),
    "functions": (of_functions, (rows(3), rows(5))),
    "if": (lambda: model(IF, zero=np.zeros((), np.float32)), ({"x": np.ones((3, 4), np.float32)}, {"x": -np.ones((5, 4), np.float32)})),
    "loop": (lambda: model(LOOP, five=np.array(5), yes=np.array(True), half=np.array(0.5, np.float32)), (rows(3), rows(5))),
    "layers with a bound": (layers_with_a_bound, (rows(3), rows(5))),
    "scan": (lambda: model(SCAN, start=np.zeros(4, np.float32)), (rows(3), rows(5))),
    "einsum": (lambda: model(EINSUM, w=some(4, 3)), (rows(3), rows(5))),
    "root mean square": (lambda: model(RMS, 23, w=some(4)), (rows(3), rows(5))),
    "rotary": (lambda: model(ROTARY, 23, cos=np.cos(ANGLES), sin=np.sin(ANGLES)), (positions(2, 3), positions(1, 5))),
    "lstm": (lambda: cell(LSTM, 4), (sequences(5, 2, "h", "c"), sequences(3, 1, "h", "c"))),
    "gru": (lambda: cell(GRU, 3), (sequences(5, 2, "h"), sequences(3, 1, "h"))),
    "lstm with one bias": (lambda: cell(LSTM, 4, 0), (sequences(5, 2, "h", "c"), sequences(3, 1, "h", "c"))),
    "gru with one bias": (lambda: cell(GRU, 3, 0), (sequences(5, 2, "h"), sequences(3, 1, "h"))),
    "gru with a bias of the new state": (lambda: cell(GRU, 3, 1), (sequences(5, 2, "h"), sequences(3, 1, "h"))),
    "gru without biases": (lambda: model(GRU.replace(", bias,", ", ,"), w=some(2, 9, 4), r=some(2, 9, 3, seed=1)), (sequences(5, 2, "h"), sequences(3, 1, "h"))),
    "lstm by gates": (gatewise, (sequences(5, 2), sequences(3, 1))),
    "lstm of constant states": (lambda: constant_cell("LSTM", 4), ({"x": some(5, 2, 4)},)),
    "gru of constant states": (lambda: constant_cell("GRU", 3, ", linear_before_reset = 1"), ({"x": some(5, 2, 4)},)),
    "embedding": (lambda: model(GATHER, w=some(5, 4), zero=np.array(0), five=np.array(5), one=np.array(1)), ({"i": np.array([0, -1, 4, -5])},)),
    "weight of float64": (lambda: model(WIDE, w=np.arange(12.0).reshape(4, 3)), (rows(3), rows(5))),
    "average pools": (lambda: model(AVERAGED), ({"x": some(2, 3, 9, 8)}, {"x": some(1, 3, 9, 8)})),
    "greatest of columns": (lambda: model(GREATEST, two=np.array([2])), (rows(3), rows(5))),
    "spectrum": (lambda: model(SPECTRUM, 17, short=np.array(45)), ({"x": some(2, 90, 1)},)),
    "products of sizes": (
        lambda: model(PRODUCTS, first=some(2, 3, 4, 4), second=some(2, 2, 4, 4), rows=np.array([2, -1]), zero=np.array([0])),
        ({"x": some(1, 3, 32, 48)}, {"x": some(1, 3, 17, 30)}),
    ),
    "rows of a table": (lambda: model(TABLE, w=some(16, 4), zero=np.array([0]), first=np.array([1])), (cached(2, 3), cached(5, 0), cached(1, 15))),
    "labels": (labels, (rows(3), rows(5))),
    "support vectors": (support_vectors, (rows(3), rows(5))),
    "groups of rows": (groups_of_rows, (grouped(1, 3, 2), grouped(0, 2, 1, behind=2))),
    "frames": (lambda: model(FRAMES, 17, step=np.array(4), window=np.hanning(16).astype(np.float32)), ({"x": some(2, 128, 1)},)),
}  # fmt: skip
DETECTOR = """g (float[1, 6, 4] boxes, float[1, 2, 6] scores) => (int64[k, 3] chosen)
    { chosen = NonMaxSuppression(boxes, scores, most, overlap, least) }"""
TOKENS = 32
#: `random.normal`, `random.uniform`, `random.bernoulli` and `random.categorical`, as ONNX has them.
DRAWN = """g (float[n] p, float[k, 3] logits) => (float[50000] normal, float[n] uniform, float[n] kept, int32[k, 20000] chosen) {
    normal = RandomNormal<shape = [50000], mean = 1.0, scale = 2.0>() uniform = RandomUniformLike<low = -1.0, high = 3.0>(p)
    kept = Bernoulli(p) chosen = Multinomial<sample_size = 20000>(logits) }"""


def detector() -> onnx.ModelProto:
    return model(DETECTOR, most=np.array([4]), overlap=np.array([0.5], np.float32), least=np.array([0.3], np.float32))


def looped() -> jaxport.Exported:
    """A language model whose loop writes all tokens."""
    config = replace(gpt2.CONFIGS["small"], new_tokens=TOKENS, context=TOKENS + 8)
    with mock.patch.dict(gpt2.CONFIGS, {"small": config}):
        made = gpt2.nnx_gpt2_greedy("small")
    return jaxport.to_onnx(made.fn, list(made.inputs), **made.options)


def stepping() -> jaxport.Exported:
    """A language model with a cache of keys and values, which is called for each token."""
    made = example("llama_decode", "jax", "small")
    return jaxport.to_onnx(made.fn, list(made.inputs), **made.options)


@cache
def program_of(name: str) -> jaxport.Program:
    if name == "detector":
        return jaxport.from_onnx(detector(), sizes={"chosen": 8})
    if name == "4 bits":
        return jaxport.from_onnx(in_precision("int4"))
    if name == "drawn":
        return jaxport.from_onnx(model(DRAWN))
    return jaxport.from_onnx(
        {"looped": looped, "stepping": stepping}[name]().model if name not in CASES else CASES[name][0]()
    )


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """All models of the tests that were selected, in one binary."""
    names = dict.fromkeys([*selected(request, "name"), "embedding", *EXTRA])
    cases: dict[str, Case] = {}
    for name in names:
        cases[name] = case_of(
            to_crate(record_fused(in_model_order(program_of(name)), reads_sizes=True)), f"gaps_{name.replace(' ', '_')}"
        )
    return build(cases, "gaps")


EXTRA = ("detector", "drawn", "4 bits", "looped", "stepping")


def run(compiled: Built, name: str, inputs: Inputs) -> dict[str, np.ndarray]:
    assert name not in compiled.errors, compiled.errors[name][0]
    assert name not in compiled.warnings, compiled.warnings[name][0]
    outputs = compiled.run(name, inputs)
    assert not isinstance(outputs, RunError), outputs
    return outputs


def in_runtime(made: onnx.ModelProto, inputs: Inputs) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def check_in_runtime(
    name: str, case: tuple[Callable[[], onnx.ModelProto], tuple[Inputs, ...]], compiled: Built
) -> None:
    """Assert that a compiled model computes for each sample what ONNX Runtime does."""
    make, samples = case
    for inputs in samples:
        outputs = run(compiled, name, inputs)
        for key, expected in in_runtime(make(), inputs).items():
            assert outputs[key].shape == expected.shape
            np.testing.assert_allclose(outputs[key], expected, atol=LIMIT * np.abs(expected).max(initial=0), rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_a_gap_is_closed(name: str, compiled: Built) -> None:
    check_in_runtime(name, CASES[name], compiled)


REFUSED = {
    "rows of a table": (cached(9, 8), "`t + p` is 17, but has to be at most 16"),
    "einsum": ({"x": np.zeros((0, 4), np.float32)}, "`x` has the shape [0, 4], but no size of [n, 4] may be 0"),
    "scan": ({"x": some(3, 5)}, "`x` has the shape [3, 5], but needs [n, 4], such as [3, 4]"),
    "rotary": (
        {"x": some(2, 2, 3, 8), "at": np.zeros((2, 4), np.int64)},
        "`at` has the shape [2, 4], but needs [b, t], such as [2, 3]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_sizes_are_refused(name: str, compiled: Built) -> None:
    inputs, text = REFUSED[name]
    assert compiled.run(name, inputs) == RunError(f"error: {text}")


def test_indices_outside_are_not_numbers(compiled: Built) -> None:
    found = run(compiled, "embedding", {"i": np.array([5, -6, 1])})["y"]
    assert np.isnan(found[:2]).all()
    np.testing.assert_array_equal(found[2], some(5, 4)[1])


def test_what_is_drawn_has_the_distribution(compiled: Built) -> None:
    shares = np.array([[0.2, 0.3, 0.5], [0.7, 0.1, 0.2]], np.float32)
    p = np.repeat(np.array([0, 0.25, 1], np.float32), 20000)
    drawn = run(compiled, "drawn", {"p": p, "logits": np.log(shares)})
    assert abs(drawn["normal"].mean() - 1) < 0.05
    assert abs(drawn["normal"].std() - 2) < 0.05
    assert -1 <= drawn["uniform"].min() < -0.99 < 2.99 < drawn["uniform"].max() <= 3
    np.testing.assert_allclose(drawn["kept"].reshape(3, -1).mean(1), [0, 0.25, 1], atol=0.02)
    for row, expected in zip(drawn["chosen"], shares, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / row.size, expected, atol=0.02)


def test_weights_of_few_bits_are_those_of_the_file(compiled: Built) -> None:
    """ONNX Runtime rounds what it multiplies them with, too."""
    for x in (some(2, 3, 64), some(1, 5, 64)):
        expected = np.asarray(program_of("4 bits")(args_0=x))
        (found,) = run(compiled, "4 bits", {"args_0": x}).values()
        np.testing.assert_allclose(found, expected, atol=LIMIT * np.abs(expected).max(), rtol=0)


def test_boxes_are_chosen(compiled: Built) -> None:
    random = np.random.default_rng(3)
    corner = random.uniform(0, 4, (1, 6, 2))
    boxes = np.concatenate([corner, corner + random.uniform(2, 4, (1, 6, 2))], axis=-1).astype(np.float32)
    inputs = {"boxes": boxes, "scores": random.uniform(0, 1, (1, 2, 6)).astype(np.float32)}
    expected = in_runtime(detector(), inputs)["chosen"]
    chosen = run(compiled, "detector", inputs)["chosen"]
    assert 1 < len(expected) < 8
    np.testing.assert_array_equal(chosen[: len(expected)], expected)
    assert np.unique(chosen[len(expected) :], axis=0).shape[0] == 1  # what is behind is padding


def test_a_loop_in_the_model_writes_all_tokens(compiled: Built) -> None:
    program = program_of("looped")
    prompt = np.array([[3, 1, 4, 1], [5, 9, 2, 6]], np.int32)
    (name,) = program.input_names
    outputs = run(compiled, "looped", {name: prompt})
    (tokens,) = outputs.values()
    assert tokens.shape == (2, 4 + TOKENS)
    np.testing.assert_array_equal(tokens, np.asarray(program(prompt)))


def test_a_cache_is_handed_from_token_to_token(compiled: Built) -> None:
    program, config = program_of("stepping"), llama.CONFIGS["small"]
    size = (config.layers, 2, TOKENS, config.groups, config.head)
    token, caches = np.array([3, 7], np.int32), [np.zeros(size, np.float32)] * 2
    written = []
    for place in range(TOKENS):
        given = [token, np.full(2, place, np.int32), *caches]
        inputs = dict(zip(program.input_names, given, strict=True))
        logits, *caches = (run(compiled, "stepping", inputs)[name] for name in program.output_names)
        if place in (0, 1, TOKENS - 1):
            expected = program(*given)
            for found, wanted in zip((logits, *caches), expected, strict=True):
                np.testing.assert_allclose(found, wanted, atol=LIMIT * np.abs(wanted).max(), rtol=0)
        token = logits.argmax(-1).astype(np.int32)
        written.append(token)
    assert np.stack(written).shape == (TOKENS, 2)
