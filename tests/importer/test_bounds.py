"""Shapes that depend on data: outside `jit`, refused inside by name, and with bounds that the user gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import onnxruntime
import pytest

import jaxport
from jaxport.errors import InvalidArgument, ValueNotKnown
from jaxport.importer import from_onnx
from jaxport.importer.ops.searching import distinct
from tests.importer import printed
from tests.importer.models import model

X = np.array([[0, 2, 0], [3, 0, 4]], np.float32)
NONZERO = "g (float[2, 3] x) => (int64[2, n] y) { y = NonZero(x) }"
COMPRESS = "g (float[2, 3] x) => (float[n] y) { z = Constant<value_float = 2.5>() c = Greater(x, z) r = Constant<value_ints = [-1]>() f = Reshape(c, r) y = Compress(x, f) }"
UNIQUE = "g (float[2, 3] x) => (float[n] y, int64[n] f, int64[m] i, int64[n] k) { y, f, i, k = Unique<sorted = 1>(x) }"
LOOP = """g (float[2, 3] x, int64 m) => (float[2, 3] y, float[n, 2, 3] s) { t = Constant<value = bool {1}>()
    y, s = Loop(m, t, x) <body = b (int64 i, bool c, float[2, 3] v) => (bool d, float[2, 3] w, float[2, 3] r) {
        d = Identity(c) w = Add(v, x) r = Identity(w) }> }"""
UNSORTED = UNIQUE.replace("sorted = 1", "sorted = 0")
NMS = """g (float[b, c, 4] x, float[b, 3, c] s) => (int64[n, 3] y) { k = Constant<value = int64 {2}>()
    i = Constant<value = float {0.3}>() t = Constant<value = float {0.1}>() y = NonMaxSuppression(x, s, k, i, t) }"""
GENERATOR = np.random.default_rng(0)
BOXES = {"x": GENERATOR.random((2, 6, 4), np.float32), "s": GENERATOR.integers(0, 4, (2, 3, 6)).astype(np.float32) / 4}
CASES = {
    "NonZero": (NONZERO, {"x": X}),
    "Compress": (COMPRESS, {"x": X}),
    "Unique": (UNIQUE, {"x": X}),
    "Unique ": (UNSORTED, {"x": X}),
    "NonMaxSuppression": (NMS, BOXES),
    "Loop": (LOOP, {"x": X, "m": np.array([3])[0]}),
}


def outputs(program, inputs, jit: bool):
    call = jax.jit(lambda inputs: program(**inputs)) if jit else lambda inputs: program(**inputs)
    return jax.tree.leaves(call({name: jax.numpy.asarray(value) for name, value in inputs.items()}))


@pytest.fixture(autouse=True)
def with_64_bit_types():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", CASES)
def test_works_outside_jit_and_is_refused_inside_by_name(name: str):
    graph, inputs = CASES[name]
    program = from_onnx(model(graph))
    assert outputs(program, inputs, jit=False)[0].size
    assert program.static_inputs == ()
    with pytest.raises(ValueNotKnown, match=r"sizes=\{") as caught:
        outputs(program, inputs, jit=True)
    assert name.strip() in str(caught.value)
    assert "`y`" in str(caught.value)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jit", [True, False])
def test_a_bound_makes_it_traceable(name: str, jit: bool):
    graph, inputs = CASES[name]
    exact = outputs(from_onnx(model(graph)), inputs, jit=False)
    bound = 14 if name == "NonMaxSuppression" else 5
    padded = outputs(from_onnx(model(graph), sizes={"y": bound}), inputs, jit)
    for wanted, got in zip(exact, padded, strict=True):
        assert got.dtype == wanted.dtype
        if wanted.shape == got.shape:
            np.testing.assert_array_equal(got, wanted)
            continue
        axis = next(a for a in range(wanted.ndim) if wanted.shape[a] != got.shape[a])
        assert got.shape[axis] == bound
        kept, rest = np.split(got, [wanted.shape[axis]], axis)
        np.testing.assert_array_equal(kept, wanted)
        if name == "NonZero":
            np.testing.assert_array_equal(rest, [[2, 2], [3, 3]])
        elif name == "NonMaxSuppression":
            np.testing.assert_array_equal(rest, [[2, 3, 6]] * len(rest))
        elif name in ("Compress", "Loop"):
            np.testing.assert_array_equal(rest, 0)


def test_what_is_gathered_and_scattered_by_padded_positions_counts_once():
    graph = """g (float[6] x) => (float[6] y) { p = NonZero(x) i = Transpose<perm = [1, 0]>(p) a = GatherND(x, i) b = Mul(a, a)
        z = Sub(x, x) y = ScatterND<reduction = "add">(z, i, b) }"""
    program = from_onnx(model(graph), sizes={"p": 6})
    np.testing.assert_array_equal(jax.jit(program)(X.ravel()), X.ravel() ** 2)


def test_parameters_before_a_node_whose_size_depends_on_data_are_trainable():
    graph = "g (float[2, 3] x) => (float[n] y) <float[3] w = {1, 2, 3}> { a = Mul(x, w) p = NonZero(a) i = Transpose(p) y = GatherND(a, i) }"
    program = from_onnx(model(graph))
    assert set(program.params) == {"w"}
    np.testing.assert_array_equal(program(X), [4, 3, 12])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"nope": 3}, "there is no node `nope`"),
        ({"f": 3}, "the node `f` cannot be given a size"),
        ({"y": -1}, r"sizes=\{'y': -1\} is not whole numbers by name, 0 or more"),
        ({"y": 2.5}, r"sizes=\{'y': 2.5\} is not whole numbers by name, 0 or more"),
        ({"y": True}, r"sizes=\{'y': True\} is not whole numbers by name, 0 or more"),
    ],
)
def test_bounds_that_are_refused(sizes, message: str):
    with pytest.raises(InvalidArgument, match=message):
        from_onnx(model(COMPRESS), sizes=sizes)


def test_a_bound_by_the_name_of_a_node():
    made = model(NONZERO)
    made.graph.node[0].name = "/detect/NonZero"
    assert jax.jit(from_onnx(made, sizes={"/detect/NonZero": 4}))(X).shape == (2, 4)


@pytest.mark.parametrize("graph", [NONZERO, NMS], ids=["NonZero", "NonMaxSuppression"])
def test_a_bounded_size_is_printed(graph: str):
    name = "NonZero" if graph == NONZERO else "NonMaxSuppression"
    program = from_onnx(model(graph), sizes={"y": 7})
    inputs = CASES[name][1]
    module = printed.load(program.to_source(framework="jax"))
    np.testing.assert_array_equal(printed.run(module, inputs)[0], outputs(program, inputs, jit=True)[0])


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_are_those_of_onnx_runtime(center: int):
    made = model(NMS.replace("NonMaxSuppression(", f"NonMaxSuppression<center_point_box = {center}>("))
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, BOXES)
    np.testing.assert_array_equal(from_onnx(made)(**BOXES), wanted)


def test_a_call_beyond_a_table_is_told_its_bound():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[batch, length, 2] x) => (float[batch, length, 2] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
            shape = Shape (x)
            count = Slice (shape, one, two)
            table = Constant <value = float[1, 4, 2] {1, 2, 3, 4, 5, 6, 7, 8}> ()
            rows = Slice (table, zero, count, one)
            y = Add (x, rows)
        }""")
    program = jaxport.from_onnx(model)
    assert program(np.ones((2, 4, 2), np.float32)).shape == (2, 4, 2)
    x = np.ones((2, 5, 2), np.float32)
    for call in (program, jax.jit(program), jax.grad(lambda x: program(x).sum()), jaxport.make_mox(program)):
        with pytest.raises(
            jaxport.ModelError, match=r"(?s)cannot be called with batch=2, length=5.*`length <= 4` has to hold"
        ):
            call(x)
    fixed = {"x": ("batch", 5, 2)}
    for call in (
        lambda: program.to_source(inputs=fixed),
        lambda: program.to_source(inputs={"x": (2, 5, 2)}),
        lambda: jaxport.to_onnx(program, [fixed["x"]]),
    ):
        with pytest.raises(
            jaxport.ModelError, match=r"(?s)cannot be called with .*length=5.*`length <= 4` has to hold"
        ):
            call()
    with pytest.raises(jaxport.ModelError, match="`Add` cannot be computed"):  # no bound
        jaxport.from_onnx(
            onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
            g (float[n] x, float[m] y) => (float[k] z) { z = Add (x, y) }""")
        )(x[0, 0], x[0, :, 0])


@pytest.mark.parametrize(
    ("x", "axis"),
    [
        (np.array([1, np.nan, 2, np.nan, -0.0, 0.0, np.inf]), 0),
        (np.array([3, 1, 3, -2, 1]), 0),
        (np.arange(18).reshape(2, 9) % 4 > 1, 1),
        (np.arange(24).reshape(2, 4, 3) // 5 % 2, 1),
    ],
)
def test_distinct_slices_are_those_of_numpy(x: np.ndarray, axis: int) -> None:
    _, *expected = np.unique(x, True, True, True, axis=axis)
    for found, wanted in zip(distinct(jnp.asarray(x), axis, len(expected[0])), expected, strict=True):
        np.testing.assert_array_equal(found, wanted.ravel())
