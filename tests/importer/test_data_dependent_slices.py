"""Slices and updates of one size whose position is an input: they are traced, printed, and equal to what is exported."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport import from_onnx, to_onnx
from jaxport.errors import ModelError, ValueNotKnown
from tests.importer.models import program
from tests.importer.printed import load

RNG = np.random.default_rng(0)
CACHE, ROWS = RNG.normal(size=(2, 8, 4)).astype(np.float32), RNG.normal(size=(2, 3, 4)).astype(np.float32)
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "slice": (lambda x, n: lax.dynamic_slice_in_dim(x, n, 3, 1), [CACHE]),
    "slice on two axes": (lambda x, n: lax.dynamic_slice(x, (0, n, n - 1), (2, 3, 2)), [CACHE]),
    "update": (lambda x, y, n: lax.dynamic_update_slice(x, y, (0, n, 0)), [CACHE, ROWS]),
    "update on two axes": (lambda x, y, n: lax.dynamic_update_slice(x, y[..., :2], (0, n, 1)), [CACHE, ROWS]),
    "update of one row": (lambda x, y, n: lax.dynamic_update_slice(x, y[:, :1], (0, n, 0)), [CACHE, ROWS]),
    "update and what is read of it": (
        lambda x, y, n: lax.dynamic_slice_in_dim(lax.dynamic_update_slice(x, y, (0, n, 0)), n - 1, 4, 1).sum(1),
        [CACHE, ROWS],
    ),
    "update in a loop": (
        lambda x, y, n: lax.fori_loop(0, 6, lambda i, c: lax.dynamic_update_slice(c, y + i, (0, n + i, 0)), x),
        [CACHE, ROWS],
    ),
    "roll": (lambda x, n: jnp.roll(x, n, axis=1), [CACHE]),
    "roll of two axes": (lambda x, n: jnp.roll(x, (n, -n), (1, 2)), [CACHE]),
}


@pytest.mark.parametrize(("name", "opset"), [*((name, 18) for name in FUNCTIONS), ("update", 24)])
def test_a_position_may_be_traced(name: str, opset: int) -> None:
    function, arrays = FUNCTIONS[name]
    exported = to_onnx(function, [*arrays, jax.ShapeDtypeStruct((), np.int32)], opset=opset)
    imported = from_onnx(exported.proto)
    module = load(imported.to_source(framework="jax"))
    whole, printed = jax.jit(imported), jax.jit(lambda *given: module.model(module.params, *given))
    for position in (-9, -1, 2, 7):
        given = [*arrays, np.int32(position)]
        expected = function(*given)
        for run in (whole, printed):
            np.testing.assert_allclose(run(*given), expected, rtol=1e-6, err_msg=f"{position}")
    slope = jax.grad(lambda x: jnp.sum(jax.jit(imported)(x, *arrays[1:], np.int32(2)) ** 2))(arrays[0])
    expected = jax.grad(lambda x: jnp.sum(function(x, *arrays[1:], np.int32(2)) ** 2))(arrays[0])
    np.testing.assert_allclose(slope, expected, rtol=1e-5)


OPEN: dict[str, Callable[..., Any]] = {
    "slice": lambda x, y, n: lax.dynamic_slice_in_dim(x, n, y.shape[1], 1),
    "slice on two axes": lambda x, y, n: lax.dynamic_slice(x, (0, n, n - 1), (x.shape[0], y.shape[1], 2)),
    "update": FUNCTIONS["update"][0],
    "update on two axes": FUNCTIONS["update on two axes"][0],
    "update of a part": lambda x, y, n: lax.dynamic_update_slice(x, y[:, 1:], (0, n, 0)),
    "roll": lambda x, y, n: jnp.roll(x, n, axis=1),
    "roll of all elements": lambda x, y, n: jnp.roll(x, n),
    "slice from a remainder": lambda x, y, n: lax.dynamic_slice_in_dim(
        jnp.tile(x, (1, 2, 1)), n % x.shape[1], y.shape[1], 1
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_position_may_be_traced_where_the_size_has_a_name(name: str) -> None:
    function = OPEN[name]
    scope = jax.export.SymbolicScope(["t <= s", "t >= 2"])
    shapes = [jax.export.symbolic_shape(text, scope=scope) for text in ("b, s, 4", "b, t, 4")]
    specs = [*(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes), jax.ShapeDtypeStruct((), np.int32)]
    imported = from_onnx(to_onnx(function, specs, opset=18).proto)
    module = load(imported.to_source(framework="jax"))
    whole, printed = jax.jit(imported), jax.jit(lambda *given: module.model(module.params, *given))
    for position in (-9, -1, 2, 7):
        given = [CACHE, ROWS, np.int32(position)]
        for run in (whole, printed):
            np.testing.assert_array_equal(run(*given), function(*given), err_msg=f"{position}")


WINDOW = """g (float[s] x, float[t] y, int64[1] n, int64 high) => (float[m] z) <int64 low = {0}, int64[1] zero = {0}> {
    c = Clip(n, low, high) size = Shape(y) e = Add(c, size) z = Slice(x, c, e, zero) }"""


def test_a_window_that_may_be_cut_off_is_refused() -> None:
    x, y, n = np.arange(8, dtype=np.float32), np.ones(3, np.float32), np.array([9])
    made = program(WINDOW)
    run = jax.jit(lambda x, n, high: made(x, y, n, high), static_argnums=2)
    np.testing.assert_array_equal(run(x, n, 5), [5, 6, 7])
    with pytest.raises(ModelError, match="3 entries that may begin at 6 does not fit into 8"):
        run(x, n, 6)
    np.testing.assert_array_equal(made(x, y, n, 6), [6, 7])


def test_an_update_whose_size_has_a_name() -> None:
    graph = """g (float[s] x, float[t] new, float[r] old, int64[1] n) => (float[s] y) <int64[1] zero = {0},
        int64[1] all = {9223372036854775807}> { size = Shape(old) e = Add(n, size)
        a = Slice(x, zero, n, zero) b = Slice(x, e, all, zero) y = Concat<axis = 0>(a, new, b) }"""
    made, x, n = program(graph), np.arange(8, dtype=np.float32), np.array([3])
    rows = -np.ones(3, np.float32)
    np.testing.assert_array_equal(made(x, rows[:2], rows[:2], n), [0, 1, 2, -1, -1, 5, 6, 7])
    np.testing.assert_array_equal(made(x, rows, rows[:2], n), [0, 1, 2, -1, -1, -1, 5, 6, 7])
    np.testing.assert_array_equal(jax.jit(made)(x, rows[:2], rows[:2], n), [0, 1, 2, -1, -1, 5, 6, 7])
    with pytest.raises(ModelError, match="3 entries replace 2"):
        jax.jit(made)(x, rows, rows[:2], n)


CUT = """g (float[8] x, int64[1] n) => (float[{}] y) <int64[1] two = {{2}}, int64[1] zero = {{0}}> {{
    e = Add(two, n) y = Slice(x, n, e, zero) }}"""


def test_the_declared_size_is_that_of_the_result() -> None:
    x, n = np.arange(8, dtype=np.float32), np.array([3], np.int32)
    made = program(CUT.format(2))
    np.testing.assert_array_equal(jax.jit(made)(x, n), [3, 4])
    np.testing.assert_array_equal(made(x, n), [3, 4])


def test_a_slice_that_may_be_cut_off_is_refused() -> None:
    with pytest.raises(ValueNotKnown, match="`starts` of an operation has to be known"):
        jax.jit(program(CUT.format("m")))(np.ones(8, np.float32), np.array([3], np.int32))


def test_sums_of_sums_are_read_once() -> None:
    sums = " ".join(f"s{i + 1} = Add(s{i}, s{i})" for i in range(60))
    start = time.process_time()
    program(f"g (float[8] x, int64[1] s0) => (float[m] y) <int64[1] z = {{0}}> {{ {sums} y = Slice(x, s60, s59, z) }}")
    assert time.process_time() - start < 5


def test_an_update_of_another_size_is_refused() -> None:
    """`UpdatedSlice` is what a Concat around a new part becomes."""
    graph = """g (float[8] x, float[m] new, int64[1] n) => (float[8] y) <int64[1] two = {2}, int64[1] zero = {0},
        int64[1] all = {9223372036854775807}> {
        e = Add(n, two) a = Slice(x, zero, n, zero) b = Slice(x, e, all, zero) y = Concat<axis = 0>(a, new, b) }"""
    made, x, n = program(graph), np.arange(8, dtype=np.float32), np.array([3], np.int32)
    np.testing.assert_array_equal(made(x, -np.ones(2, np.float32), n), [0, 1, 2, -1, -1, 5, 6, 7])
    with pytest.raises(ModelError, match="3 entries replace 2"):
        made(x, np.ones(3, np.float32), n)
