"""What has no effect is not printed, and what an export spells out is JAX's own call: the bits are those of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.importer import from_onnx
from jaxport.importer.program import Program
from tests.codegen import structured
from tests.importer import printed
from tests.importer.models import model

SPECIAL = np.array(
    [
        [0.0, -0.0, 1.5, -1.5],
        [np.nan, np.inf, -np.inf, 3e38],
        [1e-45, -1e-45, 3e9, -3e9],
        [127.5, -128.5, 65535.7, 7.0],
    ],
    np.float32,
)
WHOLE = np.array([0, 1, -1, 7, -7, 8, 2**31 - 1, -(2**31)], np.int32)


def same_bits(program: Program, arrays: list[np.ndarray], tmp_path: Any, present: str, absent: tuple[str, ...]) -> None:
    """Checks the source for both kinds of printers, and that its results have the bits of the program's."""
    expected = np.asarray(jax.jit(program)(*arrays))
    for framework in ("jax", "nnx"):
        source: Any = program.to_source(framework=framework)
        code = " ".join(source.code.partition("def model" if framework == "jax" else "def __call__")[2].split())
        code = code.partition("def load")[0].rpartition('"""')[2]
        assert present in code, code
        assert not [word for word in absent if word in code], code
        if framework == "jax":
            module = printed.load(source)
            found = np.asarray(jax.jit(module.model)(module.params, *arrays))
        else:
            source.save(tmp_path)
            made = structured.load(tmp_path).load()
            found = np.asarray(jax.jit(lambda *arrays, made=made: made(*arrays))(*arrays))
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        is_nan = np.isnan(expected) if expected.dtype.kind == "f" else np.zeros(expected.shape, bool)
        assert np.array_equal(is_nan, np.isnan(found) if found.dtype.kind == "f" else is_nan)
        assert found[~is_nan].tobytes() == expected[~is_nan].tobytes()


NODES = {
    "minimum": (
        "d = Constant<value = double {1.797e308}>() c = Cast<to = 1>(d) y = Min(x, c)",
        "return x",
        ("minimum",),
    ),
    "minimum of the largest": ("c = Constant<value_float = 3.4028234663852886e38>() y = Min(x, c)", "jnp.minimum", ()),
    "times one": ("c = Constant<value_float = 1.0>() y = Mul(x, c)", "return x", ("*",)),
    "over one": ("c = Constant<value_float = 1.0>() y = Div(x, c)", "return x", ("/",)),
    "minus zero": ("c = Constant<value_float = 0.0>() y = Sub(x, c)", "return x", (" - ",)),
    "plus zero": ("c = Constant<value_float = 0.0>() y = Add(x, c)", "x + 0.0", ()),
    "plus negative zero": ("c = Constant<value_float = -0.0>() y = Add(x, c)", "return x", ("+",)),
    "no negative zero": (
        "k = Constant<value_ints = [2]>() s = Softmax(x) y, i = TopK(s, k)",
        "lax.top_k(",
        ("where",),
    ),
    "negative zeros are equal in order": ("k = Constant<value_ints = [2]>() y, i = TopK(x, k)", "jnp.where(x == 0", ()),
    "zero read by exp": ("c = Constant<value_float = 0.0>() s = Add(x, c) y = Exp(s)", "jnp.exp(x)", ("+",)),
    "zero read by division": ("c = Constant<value_float = 0.0>() s = Add(x, c) y = Reciprocal(s)", "0.0", ()),
    "zero after abs": ("c = Constant<value_float = 0.0>() s = Abs(x) y = Add(s, c)", "jnp.abs(x)", ("+",)),
    "full slice": (
        "a = Constant<value_ints = [0, 0]>() e = Constant<value_ints = [1000000000, 4]>() y = Slice(x, a, e)",
        "return x",
        ("[",),
    ),
    "bounds of axes": (
        "a = Constant<value_ints = [0, 0]>() e = Constant<value_ints = [1000000000, 3]>() y = Slice(x, a, e)",
        "x[:, :3]",
        ("0:",),
    ),
    "equal to true": (
        "z = Constant<value_float = 0.0>() t = Constant<value = bool {1}>() l = Less(x, z) e = Equal(l, t) y = Cast<to = 1>(e)",
        "x < 0.0",
        ("==", "True"),
    ),
    "not equal to true": (
        "z = Constant<value_float = 0.0>() t = Constant<value = bool {0}>() l = Less(x, z) e = Equal(l, t) d = Not(e) y = Cast<to = 1>(d)",
        "x < 0.0",
        ("==", "not"),
    ),
    "chosen by a constant": (
        "t = Constant<value = bool {0}>() n = Neg(x) y = Where(t, n, x)",
        "return x",
        ("where",),
    ),
    "may be negative": (
        "z = Constant<value_float = 0.0>() o = Constant<value_float = 1.0>() b = Less(x, z) s = Add(x, o) y = Where(b, s, x)",
        "jnp.where(",
        (),
    ),
    "end of an axis": (
        "a = Constant<value_ints = [1, 2]>() e = Constant<value_ints = [1000000000, 4]>() y = Slice(x, a, e)",
        "x[1:, 2:]",
        ("4",),
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_what_has_no_effect_is_gone(name: str, tmp_path):
    nodes, present, absent = NODES[name]
    program = from_onnx(model(f"g (float[n, 4] x) => (float[m, k] y) {{ {nodes} }}"))
    same_bits(program, [SPECIAL], tmp_path, present, absent)


def test_a_clip_without_an_end_is_the_other_one(tmp_path):
    made = model(
        "g (float[n, 4] x) => (float[n, 4] y) <float low = {0}> { high = Constant<value_float = 2.0>() y = Clip(x, low, high) }"
    )
    made.graph.initializer[0].ClearField("float_data")
    made.graph.initializer[0].raw_data = np.float32(-np.inf).tobytes()
    same_bits(from_onnx(made), [SPECIAL], tmp_path, "jnp.minimum(x, 2.0)", ("clip",))


SPELLED: dict[str, tuple[Callable[..., Any], list[Any], list[np.ndarray], str, tuple[str, ...]]] = {
    "floor division": (lambda n: n // 2, [jax.ShapeDtypeStruct(("b",), np.int32)], [WHOLE], "n // 2", ("sign",)),
    "floor division by three": (
        lambda n: n // 3,
        [jax.ShapeDtypeStruct(("b",), np.int32)],
        [WHOLE],
        "n // 3",
        ("sign",),
    ),
    "remainder": (lambda n: n % 3, [jax.ShapeDtypeStruct(("b",), np.int32)], [WHOLE], "n % 3", ("lax.div",)),
    "remainder by a size": (
        lambda n: n % n.shape[0],
        [jax.ShapeDtypeStruct(("b",), np.int32)],
        [WHOLE],
        "n % b",
        ("lax.div", "where"),
    ),
    "positions that wrap": (
        lambda x: x[(jnp.arange(x.shape[0]) + 3) % x.shape[0]],
        [("b", 4)],
        [np.arange(20, dtype=np.float32).reshape(5, 4)],
        "% b",
        ("< 0", "lax.div"),
    ),
    **{
        f"to {kind}": (lambda x, kind=kind: x.astype(kind), [("b", 4)], [SPECIAL], f"x.astype(jnp.{kind})", ("isnan",))
        for kind in ("int8", "uint8", "int16", "uint16", "int32")
    },
    "maximum": (lambda x: jnp.max(x, axis=1), [("b", 4)], [SPECIAL], "jnp.max(x", ("isnan",)),
    "minimum": (lambda x: jnp.min(x, axis=0), [("b", 4)], [SPECIAL], "jnp.min(x", ("isnan",)),
    "lookup": (
        lambda i, t: jnp.take(t, i, axis=0),
        [jax.ShapeDtypeStruct(("b",), np.int32), (9, 2)],
        [np.array([0, 8, 9, -1, -9, -10], np.int32), np.arange(18, dtype=np.float32).reshape(9, 2)],
        "jnp.take(t, i, axis=0)",
        ("nan", "clip"),
    ),
    "lookup of columns": (
        lambda i, t: jnp.take(t, i, axis=1),
        [jax.ShapeDtypeStruct(("b",), np.int32), (2, 9)],
        [np.array([0, 8, 9, -1, -9, -10], np.int32), np.arange(18, dtype=np.float32).reshape(2, 9)],
        "jnp.take(t, i, axis=1)",
        ("nan", "clip"),
    ),
    "positions": (
        lambda x, t: x + jnp.take(t, jnp.arange(x.shape[0]), axis=0),
        [("n", 2), (9, 2)],
        [np.ones((11, 2), np.float32), np.ones((9, 2), np.float32)],
        "jnp.arange(n",
        ("nan", "clip"),
    ),
    "counted": (
        lambda x: x + jnp.arange(x.shape[1], dtype=jnp.float32),
        [("b", "n")],
        [SPECIAL],
        "jnp.arange(n, dtype=jnp.float32)",
        ("0.0", "astype"),
    ),
    "a table of positions": (
        lambda x: x + jnp.arange(40.0),
        [("b", 40)],
        [np.ones((2, 40), np.float32)],
        "jnp.arange(40, dtype",
        (),
    ),
    "zeros": (
        lambda x: jnp.concatenate([jnp.zeros((1, 40)), x]),
        [("b", 40)],
        [np.ones((2, 40), np.float32)],
        "jnp.zeros((1, 40), jnp.float32)",
        ("full",),
    ),
}


@pytest.mark.parametrize("name", SPELLED)
def test_what_an_export_spells_out_is_one_call(name: str, tmp_path):
    function, specs, arrays, present, absent = SPELLED[name]
    program = from_onnx(jaxport.to_onnx(function, specs).model)
    same_bits(program, arrays, tmp_path, present, absent)


def test_bodies_of_loops_are_simplified(tmp_path):
    made = model("""g (float[3, 2] x, float[2] s) => (float[2] t) { t = Scan<num_scan_inputs = 1, body = b (float[2] c, float[2] e) => (float[2] d) {
        one = Constant<value_float = 1.0>() f = Mul(e, one) d = Add(c, f) }>(s, x) }""")
    source = from_onnx(made).to_source(framework="jax")
    assert "* 1.0" not in source.code
    module = printed.load(source)
    arrays = [np.ones((3, 2), np.float32), np.ones(2, np.float32)]
    np.testing.assert_array_equal(module.model(module.params, *arrays), [4, 4])
