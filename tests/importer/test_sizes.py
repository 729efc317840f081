"""Open sizes of which a network needs more than their names say: inferred, given by the user, or refused with the constraint."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import jaxport
from jaxport.errors import InvalidArgument, ValueNotKnown
from jaxport.importer import from_onnx
from jaxport.importer.traced.assumptions import Assumptions
from tests.cli.running import run
from tests.codegen import structured
from tests.importer import printed
from tests.importer.models import model

RESIZE = """Resize<mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">"""
POOL = "MaxPool<kernel_shape = [2, 2], strides = [2, 2]>"
SCALES = "<float[4] s = {1, 1, 2, 2}>"
ONE_LEVEL = f"""g (float[b, 3, h, w] x) => (float[b, 6, h2, w2] y) {SCALES} {{
    d = {POOL}(x) u = {RESIZE}(d, , s) y = Concat<axis = 1>(x, u) }}"""
THREE_LEVELS = f"""g (float[b, 3, h, w] x) => (float[b, 12, h2, w2] y) {SCALES} {{
    d = {POOL}(x) e = {POOL}(d) f = {POOL}(e)
    u = {RESIZE}(f, , s) v = Concat<axis = 1>(e, u) p = {RESIZE}(v, , s) q = Concat<axis = 1>(d, p)
    r = {RESIZE}(q, , s) y = Concat<axis = 1>(x, r) }}"""
ODD = f"""g (float[b, 3, h, w] x) => (float[b, 3, h2, w2] y) <float[3, 3, 3, 3] k = {{{", ".join(["0.1"] * 81)}}}> {{
    d = Conv<kernel_shape = [3, 3], strides = [2, 2]>(x, k)
    u = ConvTranspose<kernel_shape = [3, 3], strides = [2, 2]>(d, k) y = Add(x, u) }}"""
TABLE = """g (float[b, seq, 2] x, float[b, past, 2] c) => (float[b, t, 2] y)
    <float[1, 8, 2] table = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
    k = Concat<axis = 1>(c, x) s = Shape<start = 1, end = 2>(k) z = Shape<start = 1, end = 2>(c)
    o = Constant<value_ints = [1]>() p = Slice(table, z, s, o) y = Add(x, p) }"""
REFLECT = """g (float[b, 3, h, w] x) => (float[b, 3, h2, w2] y) {
    p = Constant<value_ints = [0, 0, 2, 1, 0, 0, 2, 0]>() y = Pad<mode = "reflect">(x, p) }"""
SQUEEZE = "g (float[b, 1, h] x) => (float[b, h] y) { y = Squeeze(x) }"
HALVES = (
    """g (float[b, n, 4] x) => (float[b, 2, m, 4] y) { t = Constant<value_ints = [0, 2, -1, 4]>() y = Reshape(x, t) }"""
)
RANGE = """g (float[b, n] x) => (float[b, n] y) { s = Shape<start = 1, end = 2>(x) a = Constant<value_ints = [0]>()
    q = Squeeze(s, a) f = Cast<to = 1>(q) z = Constant<value_float = 0.0>() o = Constant<value_float = 1.0>()
    r = Range(z, f, o) y = Add(x, r) }"""
SQUEEZED_ELSE_KEPT = """g (float[b, n, s] x) => (float[b, m] y) {
    t = Shape<start = 2, end = 3>(x) one = Constant<value_ints = [1]>() c = Equal(t, one) d = Squeeze(c)
    a = Constant<value_ints = [2]>()
    z = If(d)<then_branch = f () => (float[b, n] u) { u = Squeeze(x, a) },
              else_branch = e () => (float[b, n, s] v) { v = Identity(x) }>"""
ONE = SQUEEZED_ELSE_KEPT + " y = Transpose<perm = [1, 0]>(z) }"
MANY = SQUEEZED_ELSE_KEPT + " y = Transpose<perm = [2, 1, 0]>(z) }"
WINDOWS = """g (float[b, n] x) => (float[m, 4] y) <int64[1] four = {4}, int64[1] three = {3}, int64[1] zero = {0}> {
    s = Shape<start = 1, end = 2>(x) short = Sub(four, s) more = Max(short, zero) p = Concat<axis = 0>(zero, zero, zero, more)
    padded = Pad(x, p) t = Shape<start = 1, end = 2>(padded) u = Add(t, three) v = Div(u, four) w = Mul(v, four)
    d = Sub(w, t) q = Concat<axis = 0>(zero, zero, zero, d) whole = Pad(padded, q)
    k = Constant<value_ints = [-1, 4]>() y = Reshape(whole, k) }"""
STATE = f"""g (float[n, b, 2] x) => (float[n, 1, b, 2] y) <float[1, 6, 2] w = {{{", ".join(["0.1"] * 12)}}},
    float[1, 6, 2] r = {{{", ".join(["0.2"] * 12)}}}, float[1, 1, 2] h = {{0.5, 0.25}}> {{ y = GRU<hidden_size = 2>(x, w, r, , , h) }}"""
STRIDES = """g (float[b, 1, n] x) => (float[b, 1, m] y) <float[1, 1, 5] k = {1, 2, 3, 4, 5}, float[1, 1, 3] l = {1, 0, 2}> {
    c = Conv<strides = [4]>(x, k) d = Conv<strides = [2]>(c, l) s = Shape<start = 2, end = 3>(x)
    five = Constant<value_ints = [5]>() eight = Constant<value_ints = [8]>() t = Sub(s, five) u = Div(t, eight)
    zero = Constant<value_int = 0>() one = Constant<value_int = 1>() a = Constant<value_ints = [0]>() q = Squeeze(u, a)
    i = Range(zero, q, one) f = Cast<to = 1>(i) y = Add(d, f) }"""
FIXED = """g (float[b, n] x, float[b, 4] c) => (float[m, 4] y) { y = Concat<axis = 0>(x, c) }"""

# Row after row of all but the first: as many iterations as rows, whose number is a size.
ROWS = """g (float[b, 2] x) => (float[2] y) { one = Constant<value_ints = [1]>() zero = Constant<value_ints = [0]>()
    most = Constant<value_ints = [9999]>() rest = Slice(x, one, most, zero) start = Constant<value_floats = [0.5, 2.0]>()
    rank = Shape(rest) rows = Gather(rank, zero) n = Squeeze(rows, zero) yes = Constant<value = bool {1}>()
    y = Loop(n, yes, start) <body = f (int64 i, bool go, float[2] v) => (bool next, float[2] w) {
        row = Gather<axis = 0>(rest, i) t = Tanh(v) w = Add(t, row) next = Identity(go) }> }"""

INFERRED = {
    "one level": (ONE_LEVEL, ["`h` has to be a multiple of 2"], [(1, 3, 8, 4), (2, 3, 2, 6)]),
    "three levels": (THREE_LEVELS, ["`h` has to be a multiple of 8"], [(1, 3, 8, 24), (2, 3, 16, 8)]),
    "odd": (ODD, ["`h` has to be 1 more than a multiple of 2"], [(1, 3, 7, 5), (2, 3, 3, 9)]),
    "table": (TABLE, ["`seq + past <= 8` has to hold"], [((1, 3, 2), (1, 5, 2)), ((2, 1, 2), (2, 2, 2))]),
    "reflect": (REFLECT, ["`h >= 3` has to hold", "`w >= 2` has to hold"], [(1, 3, 3, 2), (2, 3, 5, 4)]),
    "squeeze": (SQUEEZE, ["`b >= 2` has to hold", "`h >= 2` has to hold"], [(2, 1, 3), (4, 1, 2)]),
    "halves": (HALVES, ["`n` has to be a multiple of 2"], [(1, 4, 4), (3, 6, 4)]),
    "range": (RANGE, [], [(1, 5), (3, 2)]),
    "one": (ONE, ["`s <= 1` has to hold"], [(2, 3, 1)]),
    "many": (MANY, ["`s >= 2` has to hold"], [(2, 3, 2), (1, 1, 4)]),
    "windows": (WINDOWS, [], [(1, 4), (2, 5)]),
    "state": (STATE, ["`b` has to be 1"], [(3, 1, 2)]),
    "rows": (ROWS, [], [(1, 2), (2, 2), (9, 2)]),
    "strides": (STRIDES, ["`n >= 5` has to hold"], [(1, 1, 13), (2, 1, 29), (2, 1, 36)]),
    "fixed": (FIXED, ["`n` has to be 4"], [((1, 4), (1, 4)), ((3, 4), (3, 4))]),
}


def arrays(made: onnx.ModelProto, shapes: Any) -> dict[str, np.ndarray]:
    shapes = shapes if isinstance(shapes[0], tuple) else (shapes,)
    random = np.random.default_rng(0)
    return {
        value.name: random.normal(size=shape).astype(np.float32)
        for value, shape in zip(made.graph.input, shapes, strict=True)
    }


def expected(made: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(ort.InferenceSession(made.SerializeToString()).run(None, given)[0])


def called(source: Any, given: dict[str, np.ndarray], folder: Any) -> np.ndarray:
    """Runs either kind of source."""
    if hasattr(source, "origins"):
        source.save(folder)
        return np.asarray(structured.load(folder).load()(*given.values()))
    module = printed.load(source)
    return np.asarray(module.model(module.params, *given.values()))


@pytest.mark.parametrize("framework", ["jax", "nnx", "equinox"])
@pytest.mark.parametrize("name", INFERRED)
def test_sizes_that_arithmetic_decides_are_inferred(name: str, framework: str, tmp_path):
    text, notes, shapes = INFERRED[name]
    made = model(text)
    source = from_onnx(made).to_source(framework=framework)
    for note in notes:
        assert note in repr(source)
        assert note in " ".join(source.code.split())
    assert bool(source.notes) == bool(notes)
    for shape in shapes:
        given = arrays(made, shape)
        np.testing.assert_allclose(called(source, given, tmp_path), expected(made, given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", INFERRED)
def test_other_sizes_have_the_same_results_or_are_refused_with_what_has_to_hold(name: str):
    """Whatever was assumed is checked: no size gives other numbers, and none an error that does not say which it needs."""
    made, draw = model(INFERRED[name][0]), np.random.default_rng(0)
    module, session = (
        printed.load(from_onnx(made).to_source(framework="jax")),
        ort.InferenceSession(made.SerializeToString()),
    )
    declared = [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in made.graph.input]
    for _ in range(8):
        sizes = {name: int(draw.integers(1, 10)) for shape in declared for name in shape if isinstance(name, str)}
        given = arrays(made, tuple(tuple(sizes.get(size, size) for size in shape) for shape in declared))
        want = results(session, given)
        try:
            found = np.asarray(module.model(module.params, *given.values()))
        except ValueError as error:
            told = str(error)
        else:
            if want is None and not found.size:  # ONNX Runtime refuses windows of which there are none
                continue
            assert want is not None, f"ONNX Runtime refuses {sizes}"
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5, err_msg=str(sizes))
            continue
        assert " has to be " in told, sizes


def results(session: ort.InferenceSession, given: dict[str, np.ndarray]) -> np.ndarray | None:
    """The first result in ONNX Runtime; None if it refuses the inputs."""
    try:
        return np.asarray(session.run(None, given)[0])
    except Exception:  # noqa: BLE001  a class of its own for each status
        return None


LENGTH = """g (float[batch, length, 2] x) => (float[batch, length, 2] y) <int64[1] zero = {0}> {
    s = Shape<start = 1, end = 2>(x) p = Slice(table, zero, s) y = Add(x, p) }"""


@pytest.mark.parametrize("framework", ["nnx", "burn"])
@pytest.mark.parametrize("rows", [512, 4095, 4096, 8192, 40000])
def test_a_table_bounds_a_length_however_long_it_is(rows: int, framework: str):
    made = model(LENGTH)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((rows, 2), np.float32), "table"))
    source = from_onnx(made).to_source(framework=framework)
    assert source.notes == (f"`length <= {rows}` has to hold, for the Add that makes `y`",)
    assert (f'check_size("length", length, 0, {rows})' if framework == "burn" else f"length > {rows}") in source.code


def test_axes_that_an_exporter_names_apart_are_one(tmp_path):
    """The batch and the length of tokens, and those of their mask: told, and checked."""
    text = """g (float[s72, s70] x, float[s43, s53] mask) => (float[s72, s70] y) <int64[1] rest = {-1}, int64[1] end = {1}> {
        b = Shape<end = 1>(x) shape = Concat<axis = 0>(b, rest) m = Reshape(mask, shape) y = Add(x, m) }"""
    source = from_onnx(model(text)).to_source(framework="nnx")
    assert [note.partition(",")[0] for note in source.notes] == ["`s53` has to be `s70`", "`s43` has to be `s72`"]
    ones = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(called(source, {"x": ones, "mask": ones}, tmp_path), 2 * ones)
    with pytest.raises(ValueError, match=r"mask.shape\[0\] has to be s72, not 6"):
        called(source, {"x": ones, "mask": np.ones((6, 1), np.float32)}, tmp_path)


def test_a_multiple_that_a_file_declares_has_a_name():
    text = 'g (float[b, "4*n"] x) => (float[b, k, 4] y) <int64[3] shape = {0, -1, 4}> { y = Reshape(x, shape) }'
    source = from_onnx(model(text)).to_source(framework="jax")
    assert source.notes == ()
    assert "y: float32[b, n, 4]" in source.code


def test_sizes_computed_in_floating_point_are_asked_for():
    text = """g (float[n] x) => (float[k] y) <float factor = {1.2}, float one = {1}> {
        s = Shape(x) f = Cast<to = 1>(s) m = Mul(f, factor) c = Cast<to = 7>(m) y = Expand(one, c) }"""
    with pytest.raises(ValueNotKnown, match="computed in floating point from `n`, which is open; give a number"):
        from_onnx(model(text)).to_source(framework="jax")


IN_FLOATS = """<float half = {0.5}, float more = {1.5}, float two = {2}, float[4] grown = {1, 1, 1.5, 0.75}, int64 first = {0},
    int64[1] zero = {0}, int64[1] every = {-1}>"""
ROWS = "s = Shape(x) h = Gather(s, first) f = Cast<to = 1>(h)"
KEPT = "n = Cast<to = 7>(c) e = Unsqueeze(n, zero) y = Slice(x, zero, e, zero)"
ROUNDED = {
    "half": (f"{ROWS} c = Mul(f, half) {KEPT}", lambda n: int(n * 0.5)),
    "half, rounded up": (f"{ROWS} g = Div(f, two) c = Ceil(g) {KEPT}", lambda n: -(-n // 2)),
    "half, to the nearest": (f"{ROWS} g = Mul(half, f) p = Add(g, half) c = Floor(p) {KEPT}", lambda n: (n + 1) // 2),
    "rounded twice": (f"{ROWS} g = Mul(f, more) u = Ceil(g) d = Cast<to = 11>(u) b = Cast<to = 1>(d) c = Div(b, two) {KEPT}",
                      lambda n: -(-3 * n // 2) // 2),
    "a number": (f"{ROWS} k = Constant<value = float {{2.0}}>() n = Cast<to = 7>(k) e = Unsqueeze(n, zero) y = Slice(x, zero, e, zero)",
                 lambda n: min(n, 2)),
    "one and a half": (f"""{ROWS} g = Mul(f, more) c = Floor(g) n = Cast<to = 6>(c) m = Cast<to = 7>(n) e = Unsqueeze(m, zero)
        z = ConstantOfShape(e) w = Unsqueeze(z, every) q = ReduceSum<keepdims = 1>(x) y = Add(w, q)""", lambda n: 3 * n // 2),
}  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), ROUNDED.values(), ids=list(ROUNDED))
def test_sizes_in_floats_are_exact_if_their_factors_are(body: str, expected, tmp_path):
    made = model(f"g (float[n, 2] x) => (float[m, k] y) {IN_FLOATS} {{ {body} }}")
    program, session = from_onnx(made), ort.InferenceSession(made.SerializeToString())
    sources = [program.to_source(framework=framework) for framework in ("nnx", "equinox")]
    assert "f32" not in program.to_source(framework="burn").code.partition("pub fn forward")[2].partition("let ")[2]
    exported = jaxport.to_onnx(program, [("n", 2)])
    for size in (1, 2, 5, 8, 4097):
        x = np.ones((size, 2), np.float32)
        (wanted,) = session.run(None, {"x": x})
        assert len(wanted) == expected(size) or wanted.shape[1] == expected(size)
        for source in sources:
            np.testing.assert_array_equal(called(source, {"x": x}, tmp_path), wanted)
        np.testing.assert_array_equal(program(x), wanted)
        np.testing.assert_array_equal(exported(x), wanted)


def test_a_vector_of_one_size_is_no_range():
    """It is the size itself, and no positions that begin at 0."""
    body = "s = Shape(x) h = Gather(s, first) e = Unsqueeze(h, zero) z = ConstantOfShape(e) w = Unsqueeze(z, every) y = Add(w, x)"
    source = from_onnx(model(f"g (float[n, 1] x) => (float[m, k] y) {IN_FLOATS} {{ {body} }}")).to_source(
        framework="nnx"
    )
    assert "zeros((0" not in source.code
    doubled = body.replace("Unsqueeze(h, zero)", "Expand(h, t)").replace(
        "s = Shape(x)", "s = Shape(x) t = Constant<value_ints = [2]>()"
    )
    source = from_onnx(
        model(f"g (float[n, 1] x) => (float[m, k] y) {IN_FLOATS} {{ {doubled.split(' z = ')[0]} y = Cast<to = 1>(e) }}")
    ).to_source(framework="nnx")
    assert "jnp.arange" not in source.code


def test_the_sizes_of_an_image_in_floats_are_exact_as_a_vector():
    made = model(f"""g (float[1, 2, h, w] x) => (float[1, 2, p, q] y) {IN_FLOATS} {{
        s = Shape(x) f = Cast<to = 1>(s) m = Mul(f, grown) c = Floor(m) n = Cast<to = 7>(c) y = {RESIZE}(x, , , n) }}""")
    program, session = from_onnx(made), ort.InferenceSession(made.SerializeToString())
    exported = jaxport.to_onnx(program, [(1, 2, "h", "w")])
    assert not {*program.params} & {"grown"}
    for sizes in ((2, 4), (5, 7), (8, 9)):
        x = np.random.default_rng(0).normal(size=(1, 2, *sizes)).astype(np.float32)
        for result in (program(x), exported(x)):
            np.testing.assert_array_equal(result, session.run(None, {"x": x})[0])


@pytest.mark.parametrize("framework", ["jax", "nnx"])
def test_sizes_of_other_results_are_refused_by_the_source(framework: str, tmp_path):
    source = from_onnx(model(SQUEEZE)).to_source(framework=framework)
    with pytest.raises(ValueError, match="b has to be at least 2"):
        called(source, {"x": np.ones((1, 1, 3), np.float32)}, tmp_path)


@pytest.mark.parametrize("framework", ["jax", "equinox"])
def test_sizes_on_the_other_side_of_a_comparison_are_refused_by_the_source(framework: str, tmp_path):
    source = from_onnx(model(ONE)).to_source(framework=framework)
    with pytest.raises(ValueError, match="s has to be 1, not 3"):
        called(source, {"x": np.ones((1, 1, 3), np.float32)}, tmp_path)


def test_crates_refuse_sizes_of_other_results():
    code = from_onnx(model(ONE)).to_source(framework="burn").code
    assert 'check_size("s", s_2, 1, 1)' in code
    assert 'check_size("b", b, 2, usize::MAX)' in from_onnx(model(SQUEEZE)).to_source(framework="burn").code


BRANCHES = "<then_branch = f () => (float[n] u) { u = Relu(x) }, else_branch = e () => (float[n] v) { v = Neg(x) }>"


@pytest.mark.parametrize("comparison", ["Greater", "Equal"])
def test_sizes_that_fit_both_branches_are_refused(comparison: str):
    text = f"""g (float[n] x) => (float[n] y) {{ k = Constant<value_ints = [3]>() s = Shape(x) c = {comparison}(s, k)
        d = Squeeze(c) y = If(d){BRANCHES} }}"""
    with pytest.raises(ValueNotKnown, match=r"whether n (>|==) 3 depends on the sizes"):
        from_onnx(model(text)).to_source(framework="jax")


def test_a_slice_that_may_be_whole_or_not_is_held_to_the_side_that_fits():
    text = """g (float[n] x) => (float[m] y) <int64[1] zero = {0}, int64[1] four = {4}, float[4] w = {1, 2, 3, 4}> {
        a = Slice(x, zero, four) y = Add(a, w) }"""
    assert "`n >= 4` has to hold" in repr(from_onnx(model(text)).to_source(framework="jax"))


def test_the_sign_of_what_is_left_of_a_size_is_the_usual_one(tmp_path):
    """A count of windows of five, in steps of two; a division of a negative size rounds towards zero instead."""
    text = """g (float[n] x) => (float[m] y) <float[1] half = {0.5}, int64[1] five = {5}, int64[1] two = {2}, int64[1] one = {1}> {
        s = Shape(x) d = Sub(s, five) q = Div(d, two) w = Add(q, one) y = Expand(half, w) }"""
    program = from_onnx(model(text))
    source = program.to_source(tmp_path, framework="nnx")
    assert "`n >= 5` has to hold" in repr(source)
    made = structured.load(tmp_path).load()
    assert [made(np.zeros(size, np.float32)).shape for size in (5, 8)] == [(1,), (2,)]
    assert program(np.zeros(8, np.float32)).shape == (2,)
    with pytest.raises(ValueError, match="n has to be at least 5"):
        made(np.zeros(4, np.float32))


def test_sizes_are_given_in_the_notation_of_exports(tmp_path):
    made = model(THREE_LEVELS)
    source = from_onnx(made).to_source(inputs={"x": ("n", 3, "32*rows", 64)}, framework="nnx")
    assert not source.notes
    given = arrays(made, (2, 3, 32, 64))
    np.testing.assert_allclose(called(source, given, tmp_path), expected(made, given), rtol=1e-6)
    assert "32 * rows, 64" in from_onnx(made).to_source(inputs={"x": ("n", 3, "32*rows", 64)}, framework="jax").code
    (rows,) = jax.export.symbolic_shape("rows")
    spec = jax.ShapeDtypeStruct((1, 3, 8 * rows, 16), np.float32)
    assert "8 * rows, 16" in from_onnx(made).to_source(inputs={"x": spec}, framework="jax").code


def test_a_given_name_stands_for_the_one_of_the_file():
    made = model("g (float[batch, 4] x, float[batch, 4] c) => (float[batch, 4] y) { y = Add(x, c) }")
    assert "c: float32[2 * n, 4]" in from_onnx(made).to_source(inputs={"x": ("2*n", 4)}, framework="jax").code


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("g (float[a, c] x, float[b] z) => (float[a, n] y) { y = Add(x, z) }", '`c == b`.*"x": ("a", "b")'),
        (
            "g (float[b, n] x) => (float[m, 8] y) { t = Constant<value_ints = [-1, 8]>() y = Reshape(x, t) }",
            '`mod(b*n, 8) == 0`.*"x": ("b", "8*n")',
        ),
        (
            "g (float[b, n] x) => (float[b, 5] y) <float[5] t = {1, 2, 3, 4, 5}> { y = Add(x, t) }",
            '`n == 5`.*"x": ("b", 5)',
        ),
    ],
)
def test_what_names_do_not_say_is_refused_with_the_constraint(text: str, constraint: str):
    need, given = constraint.split(".*")
    with pytest.raises(ValueNotKnown) as refused:
        from_onnx(model(text)).to_source(framework="nnx")
    assert need in str(refused.value)
    assert given in str(refused.value)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"z": (2, 3)}, "`z` is not an input"),
        ({"x": ("b", 3)}, "is given 2 sizes"),
        ({"x": ("b", 3, "h", "2^")}, "`2\\^` is not a size"),
        ({"x": ("b", 3, "h", -1)}, "`-1` is not a size"),
    ],
)
def test_malformed_sizes_are_refused(inputs: dict[str, Any], why: str):
    with pytest.raises(InvalidArgument, match=why):
        from_onnx(model(ONE_LEVEL)).to_source(inputs=inputs, framework="jax")


def test_an_array_becomes_a_constant_and_the_source_says_so():
    made = model("g (float[b, n] x, int64[2] s) => (float[p, q] y) { y = Reshape(x, s) }")
    source = from_onnx(made).to_source(inputs={"s": np.array([2, -1]), "x": ("b", "2*n")}, framework="nnx")
    assert "the input `s` is a constant: [2, -1]" in repr(source)
    assert "the input `s` is a constant: [2, -1]" in source.code


def test_the_command_takes_sizes(tmp_path, capsys):
    onnx.save(model(ONE_LEVEL), tmp_path / "net.onnx")
    command = ["import", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "out"), "--framework", "nnx"]
    assert run(*command, "--input", "x:B,3,32*H,32*W") == 0
    assert "return jnp.concatenate" in (tmp_path / "out" / "model.py").read_text()
    assert run(*command, "--input", "images:B,3,H,W") != 0
    assert "does not name an input of the model" in capsys.readouterr().err


def test_assumptions_are_sentences():
    assumed = Assumptions().with_size("h", "2*h", "").with_size("h", "4*h", "").with_constraint("n <= 3", "node `a`")
    assert assumed.lines() == ["`h` has to be a multiple of 8", "`n <= 3` has to hold, for node `a`"]
    assert Assumptions().with_size("total", "past + new", "").lines() == ["`total` has to be `past + new`"]


def test_inferred_sizes_are_those_of_verification():
    report = from_onnx(model(THREE_LEVELS)).verify()
    assert report.ok
    assert from_onnx(model(THREE_LEVELS)).verify(sizes=[{"b": 1, "h": 16, "w": 8}]).ok


ONE_ROW = {
    "Reshape": """m = Transpose<perm = [1, 0, 2]>(x) d = Shape<start = 1, end = 2>(x) r = Constant<value_ints = [1, 3, 4]>()
        s = Concat<axis = 0>(d, r) y = Reshape(m, s)""",
    "Reshape of -1": """m = Transpose<perm = [1, 0, 2]>(x) s = Constant<value_ints = [-1, 12]>() f = Reshape(m, s)
        d = Shape<start = 1, end = 2>(x) r = Constant<value_ints = [12]>() t = Concat<axis = 0>(d, r) y = Reshape(f, t)""",
    "Squeeze": "m = Transpose<perm = [1, 0, 2]>(x) a = Constant<value_ints = [1]>() y = Squeeze(m, a)",
}


@pytest.mark.parametrize("framework", ["jax", "nnx", "equinox"])
@pytest.mark.parametrize("name", ONE_ROW)
def test_an_open_size_that_has_to_be_a_number_is_told_and_checked(name: str, framework: str, tmp_path):
    program = from_onnx(model(f"g (float[batch, seq, 12] x) => (float y) {{ {ONE_ROW[name]} }}"))
    source = program.to_source(tmp_path, framework=framework)
    assert [note.partition(",")[0] for note in source.notes] == ["`batch` has to be 1"]
    assert "if x.shape[0] != 1:\n" in source.code
    assert "raise ValueError(f'batch has to be 1, not {x.shape[0]}')" in source.code.replace('"', "'")


@pytest.mark.parametrize("parts", ["a, r, b", "a, b, r", "r, s, a, b", "a, r, r, b"])
def test_all_parts_of_a_concatenation_have_one_size(parts: str):
    made = model(
        f"g (float[n, 4] a, float[m, 4] b) => (float[k, l] y) {{ r = Relu(a) s = Relu(b) y = Concat<axis = 1>({parts}) }}"
    )
    assert from_onnx(made).to_source(framework="jax").notes == ("`n` has to be `m`, for the Concat that makes `y`",)


def test_a_refusal_of_names_says_what_has_to_hold():
    made = model("""g (float[b, t, 2] x) => (float y) <float[1, 4, 2] table = {1, 2, 3, 4, 5, 6, 7, 8}> {
        z = Constant<value_ints = [0]>() e = Shape<start = 1, end = 2>(x) o = Constant<value_ints = [1]>()
        p = Slice(table, z, e, o) y = Add(x, p) }""")
    with pytest.raises(jaxport.JaxportError, match=r"`t <= 4` has to hold"):
        jaxport.to_onnx(from_onnx(made), [("b", "t", 2)])
    made = model("g (float[n, 4] a, float[m, 4] b) => (float[k, l] y) { y = Concat<axis = 1>(a, b) }")
    with pytest.raises(jaxport.JaxportError, match=r"`n` has to be `m`"):
        jaxport.to_onnx(from_onnx(made), [("n", 4), ("m", 4)])


def test_a_number_that_is_a_factor_of_both_sizes_is_left_out_of_what_has_to_hold():
    """Heads that are merged with the batch, as in OPT's attention to a cache."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        net (float[B,4,P,16] past, float[B,4,S,16] rows, float[B,T] mask) => (float[M,N,16] y)
        <int64[1] heads = {4}, int64[1] size = {16}> {
            whole = Concat<axis = 2>(past, rows)
            b = Shape<start = 0, end = 1>(mask)
            t = Shape<start = 1, end = 2>(mask)
            merged = Mul(b, heads)
            shape = Concat<axis = 0>(merged, t, size)
            y = Reshape(whole, shape)
        }""")
    code = jaxport.from_onnx(model).to_source(framework="nnx").code
    assert "`T` has to be `S + P`" in code
    assert "jnp.concatenate((past, rows), axis=2).reshape(-1, S + P, 16)" in code
