"""Open sizes of which a network needs more than their names say: inferred, given by the user, or refused with the constraint."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime as ort
import pytest

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
FIXED = """g (float[b, n] x, float[b, 4] c) => (float[m, 4] y) { y = Concat<axis = 0>(x, c) }"""

INFERRED = {
    "one level": (ONE_LEVEL, ["`h` has to be a multiple of 2"], [(1, 3, 8, 4), (2, 3, 2, 6)]),
    "three levels": (THREE_LEVELS, ["`h` has to be a multiple of 8"], [(1, 3, 8, 24), (2, 3, 16, 8)]),
    "odd": (ODD, ["`h` has to be 1 more than a multiple of 2"], [(1, 3, 7, 5), (2, 3, 3, 9)]),
    "table": (TABLE, ["`seq + past <= 8` has to hold"], [((1, 3, 2), (1, 5, 2)), ((2, 1, 2), (2, 2, 2))]),
    "reflect": (REFLECT, ["`h >= 3` has to hold", "`w >= 2` has to hold"], [(1, 3, 3, 2), (2, 3, 5, 4)]),
    "squeeze": (SQUEEZE, ["`b >= 2` has to hold", "`h >= 2` has to hold"], [(2, 1, 3), (4, 1, 2)]),
    "halves": (HALVES, ["`n` has to be a multiple of 2"], [(1, 4, 4), (3, 6, 4)]),
    "range": (RANGE, [], [(1, 5), (3, 2)]),
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


@pytest.mark.parametrize("framework", ["jax", "nnx"])
def test_sizes_of_other_results_are_refused_by_the_source(framework: str, tmp_path):
    source = from_onnx(model(SQUEEZE)).to_source(framework=framework)
    with pytest.raises(ValueError, match="b has to be at least 2"):
        called(source, {"x": np.ones((1, 1, 3), np.float32)}, tmp_path)


def test_sizes_are_given_in_the_notation_of_exports(tmp_path):
    made = model(THREE_LEVELS)
    source = from_onnx(made).to_source(inputs={"x": ("n", 3, "32*rows", 64)}, framework="nnx")
    assert not source.notes
    given = arrays(made, (2, 3, 32, 64))
    np.testing.assert_allclose(called(source, given, tmp_path), expected(made, given), rtol=1e-6)
    assert "32 * rows, 64" in from_onnx(made).to_source(inputs={"x": ("n", 3, "32*rows", 64)}).code
    (rows,) = jax.export.symbolic_shape("rows")
    spec = jax.ShapeDtypeStruct((1, 3, 8 * rows, 16), np.float32)
    assert "8 * rows, 16" in from_onnx(made).to_source(inputs={"x": spec}).code


def test_a_given_name_stands_for_the_one_of_the_file():
    made = model("g (float[batch, 4] x, float[batch, 4] c) => (float[batch, 4] y) { y = Add(x, c) }")
    assert "c: float32[2 * n, 4]" in from_onnx(made).to_source(inputs={"x": ("2*n", 4)}).code


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("g (float[a, 4] x, float[b, 4] c) => (float[n, 4] y) { y = Add(x, c) }", '`a == b`.*"x": ("b", 4)'),
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
        from_onnx(model(ONE_LEVEL)).to_source(inputs=inputs)


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
