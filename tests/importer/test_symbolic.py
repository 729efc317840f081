"""Sizes that only have names: the model's own, and expressions of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxport.errors import InvalidArgument
from jaxport.importer import from_onnx
from jaxport.importer.traced.input_specs import input_specs
from tests.importer.models import model


def shapes(*sizes: tuple[str | int, ...]) -> list[str]:
    """The symbolic shapes of inputs that a model declares with these sizes."""
    inputs = ", ".join(f"float[{', '.join('n' for _ in shape)}] x{index}" for index, shape in enumerate(sizes))
    made = model(f"g ({inputs}) => (float[1] y) {{ y = Shape(x0) }}")
    for value, shape in zip(made.graph.input, sizes, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            dim.Clear()
            if isinstance(size, int):
                dim.dim_value = size
            elif size:
                dim.dim_param = size
    return [str(spec.shape) for spec in input_specs(from_onnx(made)).values()]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([("batch", 3)], ["(batch, 3)"]),
        ([("batch", ""), ("",)], ["(batch, x0_1)", "(x1_0,)"]),
        ([("past", "new"), ("past + new",)], ["(past, new)", "(past + new,)"]),
        ([("B", "2*B", "floordiv(B, 2)")], ["(B, 2*B, floordiv(B, 2))"]),
        ([("past + 1",)], ["(past_1,)"]),  # of what `past` is, no input says
        ([("class", "class - 1")], ["(class_, class_ - 1)"]),
        ([("N", "2*(N + 1)", "N*(N+1)", "(N//2)", "N % 4")], ["(N, 2*N + 2, N^2 + N, floordiv(N, 2), mod(N, 4))"]),
        ([("mod", "floordiv + 1", "floordiv", "max")], ["(mod_2, floordiv_2 + 1, floordiv_2, max_)"]),
        ([("N", "-5", "floordiv(N, 0)", "N^99999999")], ["(N, size_5, floordiv_N_0, N_99999999)"]),
        ([("a", "b.c", "__import__('os')", "a if a else a", "a[0]")], ["(a, b_c, import_os, a_if_a_else_a, a_0)"]),
        ([("x" * 300 + "+ 1", "a", "(" * 190)], [f"({'x' * 48}, a, size)"]),
        ([("a b", "a_b", "a/b")], ["(a_b_2, a_b, a_b_3)"]),
    ],
)
def test_names_of_sizes(sizes, expected: list[str]):
    assert shapes(*sizes) == expected


CACHE = """g (float[batch, past, 4] old, float[batch, new, 4] fresh, float[batch, "past + new"] mask) => (float[batch, total, 4] y)
    { c = Concat<axis = 1>(old, fresh) p = Constant<value_ints = [2]>() m = Unsqueeze(mask, p) y = Mul(c, m) }"""


def test_an_expression_of_sizes_lets_a_cache_trace():
    made = model(CACHE.replace('"past + new"', "total"))
    made.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past + new"
    program = from_onnx(made)
    specs = input_specs(program)
    assert str(jax.eval_shape(program, *specs.values()).shape) == "(batch, past + new, 4)"
    arrays = [np.ones(shape, np.float32) for shape in ((2, 3, 4), (2, 1, 4), (2, 4))]
    exported = jax.export.export(jax.jit(program))(*specs.values())
    np.testing.assert_array_equal(exported.call(*arrays), np.ones((2, 4, 4)))
    assert program.verify(sizes=[{"batch": 2, "past": 5, "new": 1}]).ok
    code = program.to_source(framework="jax").code
    assert "mask: float32[batch, past + new]" in code


UNRELATED = "g (float[a] x, float[b] y) => (float[c] z) { z = Add(x, y) }"


def test_what_needs_sizes_to_be_equal_is_refused_with_the_node():
    from jaxport.errors import ModelError

    program = from_onnx(model(UNRELATED))
    with pytest.raises(ModelError, match="the Add that makes `z`"):
        jax.eval_shape(program, *input_specs(program).values())


POSITIONS = """g (float[batch, length, 2] x) => (float[batch, length, 2] y) <float[1, 6, 2] table = {1,2,3,4,5,6,7,8,9,10,11,12}> {
    s = Shape<start = 1, end = 2>(x) z = Constant<value_ints = [0]>() o = Constant<value_ints = [1]>()
    p = Slice(table, z, s, o) y = Add(x, p) }"""


def test_sizes_are_held_to_the_tables_that_they_cut():
    program = from_onnx(model(POSITIONS))
    source = program.to_source(framework="jax")
    assert 'params["table"][:, :length]' in source.code.replace("'", '"')
    assert program.verify().ok
    assert all(output.shape[1] <= 6 for output in program.verify().outputs)


REPEATED = """g (float[n, 2] x) => (float[a, b] y) { s = Shape<start = 0, end = 1>(x) k = Constant<value_ints = [1]>()
    i = Constant<value_int = 0>() d = Constant<value_int = 2>() v = Concat<axis = 0>(k, s) r = OneHot<axis = 0>(i, d, v)
    y = Tile(x, r) }"""


def test_one_hot_is_shape_arithmetic_too():
    program = from_onnx(model(REPEATED))
    assert str(jax.eval_shape(program, *input_specs(program).values()).shape) == "(n^2, 2)"
    np.testing.assert_array_equal(jax.jit(program)(np.ones((3, 2), np.float32)), np.ones((9, 2)))


def test_a_known_value_is_repeated_for_each_row():
    """The queries of a detector, which are constants, are repeated along the batch."""
    graph = """g (float[n, 2] x) => (float[a, b, c] y) { s = Shape<start = 0, end = 1>(x) k = Constant<value_ints = [1, 1]>()
        r = Concat<axis = 0>(s, k) q = Constant<value = float[1, 2, 2] {1, 2, 3, 4}>() t = Tile(q, r)
        i = Constant<value_ints = [1]>() e = Unsqueeze(x, i) y = Add(t, e) }"""
    program = from_onnx(model(graph))
    assert str(jax.eval_shape(program, *input_specs(program).values()).shape) == "(n, 2, 2)"
    x = np.ones((3, 2), np.float32)
    expected = np.tile(np.array([[[2, 3], [4, 5]]], np.float32), (3, 1, 1))
    np.testing.assert_array_equal(program(x), expected)
    code = program.to_source(framework="nnx").code
    assert "jnp.broadcast_to(" in code or "jnp.tile(" in code


def test_an_input_of_an_undefined_type_is_refused():
    made = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    made.graph.input[0].type.tensor_type.elem_type = 0
    with pytest.raises(InvalidArgument, match="does not declare the shape of the input `x`"):
        input_specs(from_onnx(made))


def test_a_shape_is_padded_with_its_last_sizes() -> None:
    made = model("""g (float[n, 2] x) => (float[a, b] y) <int64[2] pads = {0, 1}, int64 three = {3}, float[1, 1] one = {1.0}>
        { s = Shape<end = 1>(x) p = Pad(s, pads, three) y = Expand(one, p) }""")
    (n,) = jax.export.symbolic_shape("n")
    made_of = jax.eval_shape(from_onnx(made), jax.ShapeDtypeStruct((n, 2), np.float32))
    assert str(made_of.shape) == "(n, 3)"
