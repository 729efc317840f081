"""Files that are imported and exported again: the operators of the file come back, and compute the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import pytest

import jaxport
from jaxport.export.delivery.runtime import Session
from jaxport.importer import from_onnx, op
from jaxport.onnx_facts import OPEN_ON_INTEGERS
from tests.exports import operators
from tests.importer import backend
from tests.importer.models import program

X = np.random.default_rng(0).normal(size=(2, 4, 6, 6)).astype(np.float32)
IMAGE = "float[n, c, h, w]"
WEIGHTS = """<float[4] s = {1, 2, 3, 4}, float[4] b = {1, 0, 1, 0}, float[4] v = {1, 2, 1, 2}, float one = {0.5},
    uint8 z = {3}, int64[1] k = {2}, int64[4] sizes = {2, 4, 12, 12}, int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1},
    int64[3] rows = {0, 5, -1}>"""


def again(source: str, result: str = IMAGE, opset: int = 18, **options):
    """A program of some nodes on images, and the export of it for an open batch."""
    made = program(f"g (float[n, 4, 6, 6] x) => ({result} y) {WEIGHTS} {{ {source} }}", opset)
    with jax.enable_x64(True):
        spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 4, 6, 6"), np.float32)
        return made, jaxport.to_onnx(made, [spec], double_precision=True, **options)


def compare(made, exported) -> None:
    (expected,), (found,) = (Session(each).run({"x": X}) for each in (made.model, exported.model))
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("y = InstanceNormalization(x, s, b)", IMAGE),
        ("y = BatchNormalization(x, s, b, b, v)", IMAGE),
        ("y = LpNormalization<axis = 1, p = 1>(x)", IMAGE),
        ("y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 0, 0]>(x)", IMAGE),
        ("y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)", IMAGE),
        ('y = Resize<mode = "cubic">(x, , , sizes)', IMAGE),
        ("y = DepthToSpace<blocksize = 2>(x)", IMAGE),
        ("y, i = TopK<axis = 1>(x, k)", IMAGE),
        ("i, y = TopK<axis = 1>(x, k)", f"int64{IMAGE.removeprefix('float')}"),
        ("y = ArgMax<axis = 1>(x)", f"int64{IMAGE.removeprefix('float')}"),
        ("y = ReduceLogSumExp(x)", IMAGE),
        ('y = Einsum<equation = "bchw,bdhw->bcd">(x, x)', "float[a, b, c]"),
        ("y = Gather<axis = 2>(x, rows)", IMAGE),
        ('y = Pad<mode = "reflect">(x, pads)', IMAGE),
        ("y, a, c = DynamicQuantizeLinear(x)", f"uint8{IMAGE.removeprefix('float')}"),
        ("q = QuantizeLinear(x, one, z) y = DequantizeLinear(q, one, z)", IMAGE),
    ],
)
def test_operators_come_back(source: str, result: str) -> None:
    made, exported = again(source, result)
    assert operators(exported) == [node.op_type for node in made.model.graph]
    compare(made, exported)


TWICE = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18, "test.trips": 1]>
    g (float[2] x) => (float[4] y) { y = test.trips.Twice(x) }""")
TENTHS = [", ".join(["0.1"] * count) for count in (48, 64)]
RECURRENT = f"""g (float[t, 2, 3] x) => (float[t, 1, 2, 4] y) <float[1, 16, 3] w = {{{TENTHS[0]}}},
    float[1, 16, 4] r = {{{TENTHS[1]}}}> {{ y = LSTM<hidden_size = 4>(x, w, r) }}"""
SEQUENCE = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)


def test_a_recurrent_layer_comes_back() -> None:
    made = program(RECURRENT)
    exported = jaxport.to_onnx(made, [("t", 2, 3)])
    assert operators(exported) == ["LSTM"]
    assert {"w", "r"} <= set(exported.model.graph.initializers)
    np.testing.assert_array_equal(exported.run({"x": SEQUENCE})[0], Session(made.model).run({"x": SEQUENCE})[0])


def test_gradients_and_mapped_programs_are_exported_as_they_compute() -> None:
    made = program(RECURRENT)
    exported = jaxport.to_onnx(lambda x: jax.grad(lambda x: (made(x) ** 2).sum())(x), [(5, 2, 3)])
    assert "LSTM" not in operators(exported)
    exported.verify([SEQUENCE])
    mapped = jaxport.to_onnx(
        jax.vmap(program("g (float[2, 3] x) => (float[2, 3] y) { y = Softmax<axis = 0>(x) }")), [(5, 2, 3)]
    )
    mapped.verify([np.ones((5, 2, 3), np.float32)])


def test_an_edited_operator_is_exported_as_it_computes() -> None:
    made = program("g (float[2, 3] x) => (float[2, 3] y) { h = Relu(x) y = LpNormalization<p = 1>(h) }")
    mox = jaxport.make_mox(made)(jnp.ones((2, 3)))
    assert operators(jaxport.to_onnx(mox, [(2, 3)])) == ["Relu", "LpNormalization"]
    edited = mox.sub("//LpNormalization//abs", jnp.square)
    exported = jaxport.to_onnx(edited, [(2, 3)])
    assert "LpNormalization" not in operators(exported)
    exported.verify()


def test_an_edit_before_an_operator_leaves_it() -> None:
    made = program("g (float[2, 3] x) => (float[2, 3] y) { h = Relu(x) y = LpNormalization<p = 1>(h) }")
    edited = jaxport.make_mox(made)(jnp.ones((2, 3))).sub("//Relu", jnp.tanh)
    assert operators(jaxport.to_onnx(edited, [(2, 3)])) == ["Tanh", "LpNormalization"]


def test_stored_integers_stay_integers() -> None:
    stored = ", ".join("12345" * 4)
    made = program(f"""g (float[n, 5] x) => (float[n, 4] y) <int8[5, 4] q = {{{stored}}}, float one = {{0.5}}, int8 z = {{0}}> {{
        w = DequantizeLinear(q, one, z) y = MatMul(x, w) }}""")
    exported = jaxport.to_onnx(made, [("n", 5)])
    assert operators(exported) == ["DequantizeLinear", "MatMul"]
    assert exported.model.graph.initializers.keys() >= {"q"}
    exported.verify()


def test_statistics_keep_their_names_and_roles() -> None:
    _, exported = again("y = BatchNormalization(x, s, b, b, v)")
    assert {key for key, role in from_onnx(exported.model).roles.items() if role == "statistic"} >= {"v"}


@pytest.mark.parametrize(
    ("source", "opset", "options"),
    [
        ("y = Softmax(x)", 11, {}),  # of all axes but the first
        ("y = LpNormalization<axis = 1>(x)", 18, {"nonfinite": "exact"}),
        ("y = LpNormalization<axis = 1>(x)", 18, {"target": jaxport.Target("device", without_operators=frozenset({"LpNormalization"}))}),
        ("t = Constant<value_floats = [1.0, 2.0]>() y = GroupNormalization<num_groups = 2>(x, t, t)", 18, {}),  # one per group
    ],
)  # fmt: skip
def test_operators_that_mean_something_else_do_not_come_back(source: str, opset: int, options: dict) -> None:
    made, exported = again(source, opset=opset, **options)
    assert "LpNormalization" not in operators(exported)
    np.testing.assert_allclose(exported.run({"x": X})[0], made(X), rtol=1e-5, atol=1e-6)


def test_rotary_tables_for_all_of_a_batch_are_those_of_each() -> None:
    made = program(
        "g (float[n, 2, 3, 4] x, float[1, 3, 2] c) => (float[n, 2, 3, 4] y) { y = RotaryEmbedding(x, c, c) }", 23
    )
    exported = jaxport.to_onnx(made, [("n", 2, 3, 4), (1, 3, 2)])
    exported.verify()
    again = jaxport.to_onnx(made, [(1, 2, 3, 4), (1, 3, 2)])
    assert operators(again) == ["RotaryEmbedding"]


def test_operators_of_other_domains_are_what_their_functions_compute() -> None:
    op("test.trips", "Twice")(lambda x: jnp.concatenate([x, x]))
    made = from_onnx(TWICE)
    assert operators(jaxport.to_onnx(made, [(2,)])) == ["Concat"]


def test_older_attributes_are_inputs_by_now() -> None:
    made = program("g (float[2, 3] x) => (float[2] y) { y = ReduceL1<axes = [1], keepdims = 0>(x) }", 13)
    exported = jaxport.to_onnx(made, [(2, 3)])
    assert operators(exported) == ["ReduceL1"]
    exported.verify()


def test_integers_that_jax_narrows_are_widened_for_the_operator() -> None:
    made = program("g (float[2, 3] x, int64[2, 1] i) => (float[2] y) { y = GatherND<batch_dims = 1>(x, i) }")
    exported = jaxport.to_onnx(made, [(2, 3), jax.ShapeDtypeStruct((2, 1), np.int32)])
    assert operators(exported) == ["Cast", "GatherND"]
    (y,) = exported.run({"x": np.eye(2, 3, dtype=np.float32), "i": np.array([[0], [-2]], np.int32)})
    np.testing.assert_array_equal(y, [1, 1])


SINGLE = [name for name, case in backend.cases().items() if case.kind == "node" and "_expanded" not in name]
RANDOM = "drawn by JAX's generator, whose numbers ONNX Runtime does not have"
GROWS = {
    "test_adagrad": "the optimizers of `ai.onnx.preview.training` have no kernels",
    "test_adam": "the same",
    "test_momentum": "the same",
    "test_nesterov": "the same",
    "test_bernoulli": RANDOM,
    "test_training_dropout": RANDOM,
    "test_bitcast": "newer than the opset of exports",
    "test_causal_conv": "the same",
    "test_cumprod": "the same",
    "test_linear_attention": "the same",
    "test_swiglu": "the same",
    "test_tensorscatter": "the same",
    "test_attention": "some inputs are newer than the opset of exports, and there are no kernels for bfloat16",
    "test_bitshift_right_int": "signed integers are newer than the opset of exports",
    "test_bitshift_left_int": "the same",
    "test_flexattention": "it has subgraphs",
    "test_loop": "the same",
    "test_scan": "the same",
    "test_if": "the same",
    "test_sequence": "the same",
    "test_split_to_sequence": "sequences are lists in JAX",
    "test_gru_batchwise": "ONNX Runtime has no batchwise layers",
    "test_lstm_batchwise": "the same",
    "test_simple_rnn_batchwise": "the same",
    "test_scatter_with": "the operator was removed from ONNX",
    "test_pow_types": "the powers have two types",
    "test_mod_float16_mixed_sign_fmod_0": "floats have the remainder of C only, before opset 28",
    "test_mod_float_edge_cases_fmod_0": "the same",
    "test_mod_mixed_sign_float": "the same",
    "test_reversesequence_bfloat16": "there is no kernel",
    "test_onehot_with_bfloat16": "the same",
    "test_top_k_uint64": "the same",
}
"""How the names of cases begin that come back with more nodes, and why."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE[::3])
def test_operators_of_the_backend_suite_come_back(name: str) -> None:
    case = backend.cases()[name]
    file = case.model()
    if len(file.graph.node) != 1 or name.startswith(tuple(GROWS)):
        pytest.skip("more nodes are expected")
    made = from_onnx(file)
    given = dict(zip(made.keywords, next(iter(case.data(file)))[0], strict=False))
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in "biufV" for value in given.values()):
        pytest.skip("it is of sequences or texts")
    static = {key for key, known in zip(made.keywords, made.input_names, strict=True) if known in made.static_inputs}
    with jax.enable_x64(True):
        specs = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in given.items() if k not in static}
        known = {key: given[key] for key in static}
        try:
            exported = jaxport.to_onnx(made, input_params=specs, static_params=known, double_precision=True)
        except jaxport.JaxportError:
            pytest.skip("it cannot be exported: its shapes depend on data, or its types are newer than the opset")
    if file.graph.node[0].op_type in OPEN_ON_INTEGERS and next(iter(given.values())).dtype.kind in "iu":
        pytest.skip("ONNX Runtime ends where an integer is divided by zero: it is written out")
    beside = {"Cast", "Identity"}  # where a runtime has no kernel for the dtype
    assert len([each for each in operators(exported) if each not in beside]) <= 3


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("(int64[n] x) => (float[n, 4] y) <int64 d = {4}, float[2] v = {0, 1}> { y = OneHot(x, d, v) }", "OneHot"),
        ("(int64[n] x) => (int64[n, 4] y) <int64 d = {4}, int64[2] v = {0, 1}> { y = OneHot(x, d, v) }", "OneHot"),
        ("(int32[n] x) => (uint8[n, 4] y) <int32 d = {4}, uint8[2] v = {0, 1}> { y = OneHot(x, d, v) }", ""),
        ("(int64[n] x) => (float[n, 2] y) { y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1, 2]>(x) }", "OneHotEncoder"),
        ("(int64[n, 3] x) => (int64[n, 3] y) { y = EyeLike<k = 1>(x) }", "EyeLike"),
        ("(float[n, 3] x) => (int8[n, 3] y) { y = EyeLike<dtype = 3>(x) }", ""),
        ("(double[n, 3] x) => (double[n, 1] y) <int64[1] a = {1}> { y = ReduceL1(x, a) }", "ReduceL1"),
        ("(int64[n, 3] x) => (int64[n, 1] y) <int64[1] a = {1}> { y = ReduceSumSquare(x, a) }", "ReduceSumSquare"),
        ("(float[1, 2, 6, 6] x, float[k, 4] r, int64[k] b) => (float[k, 2, 1, 1] y) { y = RoiAlign<sampling_ratio = 2>(x, r, b) }", "RoiAlign"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:64-bit types are off")
@pytest.mark.parametrize("wide", [False, True])
def test_the_runtime_has_kernels_for_operators_written_again(graph: str, expected: str, wide: bool) -> None:
    """An operator without a kernel for its types is written with others that hold the values, or as its definition."""
    made = program(f"g {graph}", domains=', "ai.onnx.ml": 3')
    scope = jax.export.SymbolicScope()
    with jax.enable_x64(wide):
        specs = [
            jax.ShapeDtypeStruct(
                jax.export.symbolic_shape(",".join(map(str, value.shape)), scope=scope),
                jax.dtypes.canonicalize_dtype(value.dtype.numpy()),
            )
            for value in made.model.graph.inputs
        ]
        exported = jaxport.to_onnx(made, specs, double_precision=wide)
        assert exported.verify().ok
    written = {node.op_type for node in exported.model.graph} - {"Cast"}
    assert written == {expected} if expected else graph.split("y = ")[1].partition("(")[0] not in written


def test_a_bare_shape_has_the_type_that_the_program_declares() -> None:
    made = program("g (int64[n] x, float[4, 3] t) => (float[m, 3] y) { y = Gather(t, x) }")
    exported = jaxport.to_onnx(made, [("n",), (4, 3)])
    assert [value.dtype.name for value in exported.model.graph.inputs] == ["INT64", "FLOAT"]
    assert exported.verify().ok


OLDER = [
    (1, 'y = Cast<to = "INT32">(x)', "Cast"),
    (7, "y = Upsample<scales = [1.0, 1.0, 2.0, 2.0]>(x)", "Resize"),
    (9, 'y = Upsample<mode = "linear">(x, twice)', "Resize"),
    (10, 'y = Resize<mode = "linear">(x, twice)', "Resize"),
    (10, "y = Resize(x, twice)", "Resize"),
    (11, "y = Softmax<axis = 3>(x)", "Softmax"),
    (11, "y = Softmax<axis = 2>(x)", "Reshape Softmax Reshape"),
    (11, "y = LogSoftmax<axis = -1>(x)", "LogSoftmax"),
    (11, "y = Hardmax(x)", "Reshape Hardmax Reshape"),
    (6, "y = PRelu(x, s)", "PRelu"),
    (1, "y, i = TopK<k = 2>(x)", "TopK"),
    (16, "g = Slice(x, none, two, last) y = GridSample(x, g)", "Slice GridSample"),
    (16, 'g = Slice(x, none, two, last) y = GridSample<mode = "bicubic", align_corners = 1>(x, g)', "Slice GridSample"),
]


@pytest.mark.parametrize(("opset", "source", "expected"), OLDER)
def test_operators_of_older_opsets_come_back_as_one(opset: int, source: str, expected: str) -> None:
    weights = """<float[4] twice = {1, 1, 2, 2}, float[4] s = {1, 2, 3, 4}, int64[1] none = {0}, int64[1] two = {2},
        int64[1] last = {3}>"""
    made = program(f"g (float[2, 4, 6, 6] x) => (float y) {weights} {{ {source} }}", opset)
    exported = jaxport.to_onnx(made, [(2, 4, 6, 6)])
    found = [node.op_type for node in exported.model.graph]
    assert [name for name in found if name != "Cast" or expected == "Cast"] == expected.split()
    assert exported.verify().ok
    for target in ("portable", "web"):
        assert len(jaxport.to_onnx(made, [(2, 4, 6, 6)], target=target).model.graph) <= len(expected.split()) + 1


@pytest.mark.parametrize(("name", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize(("opset", "layout"), [(3, None), (14, 1)])
def test_recurrent_layers_of_other_forms_come_back(name: str, gates: int, opset: int, layout: int | None) -> None:
    size, attribute = 2 * gates, ", layout = 1" if layout else ""
    state = "h" if layout else ""
    source = f"y, z = {name}<hidden_size = 2{attribute}>(x, w, r, , {', ' + state if state else ''}"
    source = source.rstrip(", ") + ")"
    graph = f"g (float[4, 5, 3] x, float[1, {size}, 3] w, float[1, {size}, 2] r, float[4, 1, 2] h) => (float y, float z) {{ {source} }}"
    made = program(graph, opset)
    exported = jaxport.to_onnx(made, [tuple(value.shape) for value in made.inputs])
    assert [node.op_type for node in exported.model.graph].count(name) == 1
    assert {node.op_type for node in exported.model.graph} <= {name, "Transpose", "Reshape"}
    assert exported.verify().ok


@pytest.mark.parametrize("largest", [2**24 + 1, 2**32 - 1], ids=["beyond the digits of float32", "beyond int32"])
def test_extremes_of_uint32_need_no_wider_type(largest: int) -> None:
    values = np.array([[7, largest], [largest - 2, 3]], np.uint32)
    with jax.enable_x64(False):
        exported = jaxport.to_onnx(lambda x: (x.max(1), x.min()), [values])
        found = jaxport.from_onnx(exported.model)(values)
    for results in (found, exported(values)):
        for result, expected in zip(results, (values.max(1), values.min()), strict=True):
            assert result.dtype == np.uint32
            np.testing.assert_array_equal(result, expected)
