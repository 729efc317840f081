"""Models whose file fixes the batch, called with another one: each batch gives what it gives alone."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest

from jaxport.errors import InvalidArgument
from jaxport.importer import from_onnx
from tests.importer import printed
from tests.importer.models import model, program

GENERATOR = np.random.default_rng(0)
ATTENTION = """g (float[1, 4, 6] x) => (float[1, 4, 6] y) <int64[4] heads = {1, 4, 2, 3}, int64[3] merged = {1, 4, 6}> {
    h = Reshape(x, heads) q = Transpose<perm = [0, 2, 1, 3]>(h) k = Transpose<perm = [0, 2, 3, 1]>(h)
    s = MatMul(q, k) p = Softmax(s) v = MatMul(p, q) t = Transpose<perm = [0, 2, 1, 3]>(v) y = Reshape(t, merged) }"""


def one_by_one(graph: str, x: np.ndarray, size: int = 1, axis: int = 0, **others: Any) -> np.ndarray:
    """What ONNX Runtime gives for each batch, side by side."""
    session = onnxruntime.InferenceSession(model(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    parts = np.split(x, x.shape[axis] // size, axis)
    return np.concatenate([np.asarray(session.run(None, {"x": part, **others})[0]) for part in parts], axis)


def test_a_constant_reshape_to_the_size_of_the_batch() -> None:
    x = GENERATOR.standard_normal((5, 4, 6), np.float32)
    rebatched = program(ATTENTION, batch=True)
    wanted = one_by_one(ATTENTION, x)
    np.testing.assert_allclose(rebatched(x), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(rebatched)(x), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rebatched(x[:1]), wanted[:1], rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: rebatched(x)[2].sum())(x)
    assert np.abs(gradient[2]).max() > 0
    assert not np.delete(gradient, 2, 0).any()


def test_printed_source_for_another_batch() -> None:
    x = GENERATOR.standard_normal((3, 4, 6), np.float32)
    rebatched = program(ATTENTION, batch=True)
    source = rebatched.to_source(inputs={"x": jax.ShapeDtypeStruct(x.shape, x.dtype)}, framework="jax")
    (result,) = printed.run(printed.load(source), {"x": x})
    np.testing.assert_allclose(result, one_by_one(ATTENTION, x), rtol=1e-5, atol=1e-6)


def test_batches_of_two_whose_rows_see_one_another() -> None:
    graph = """g (float[2, 3] x) => (float[2, 3] y) <int64[1] axes = {0}> {
        m = ReduceMean(x, axes) y = Sub(x, m) }"""
    x = GENERATOR.standard_normal((6, 3), np.float32)
    np.testing.assert_allclose(program(graph, batch=True)(x), one_by_one(graph, x, size=2), rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidArgument, match="give all of them the same number of rows, a multiple of 2"):
        program(graph, batch=True)(x[:5])


def test_axes_by_name_and_inputs_that_are_shared() -> None:
    graph = "g (float[3, 1] x, float[1] scale) => (float[3, 1] y) { y = Mul(x, scale) }"
    x, scale = GENERATOR.standard_normal((3, 4), np.float32), np.array([2], np.float32)
    rebatched = program(graph, batch={"x": 1, "y": 1, "scale": None})
    np.testing.assert_allclose(rebatched(x, scale), one_by_one(graph, x, axis=1, scale=scale))


def test_an_input_of_another_size_is_shared() -> None:
    graph = "g (float[1, 3] x, float[3] scale) => (float[1, 3] y) { y = Mul(x, scale) }"
    x, scale = GENERATOR.standard_normal((4, 3), np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_allclose(program(graph, batch=True)(x, scale), x * scale)


def test_the_refusal_of_another_batch_says_what_to_do() -> None:
    x = np.ones((2, 4, 6), np.float32)
    with pytest.raises(InvalidArgument, match=r"from_onnx\(…, batch=True\)` \(or `jax\.vmap`\)"):
        program(ATTENTION)(x)
    mapped = jax.vmap(program(ATTENTION))(x[:, None])
    np.testing.assert_allclose(mapped[:, 0], one_by_one(ATTENTION, x), rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidArgument, match=r"has shape \[1, 4, 5\]"):
        program(ATTENTION, batch=True)(np.ones((1, 4, 5), np.float32))


@pytest.mark.parametrize(
    ("graph", "batch", "message"),
    [
        ("g (float[1, 2] x) => (float[1, 2] y) { y = Neg(x) }", {"z": 0}, "`z` is not an input or output"),
        ("g (float[1, 2] x) => (float[1, 2] y) { y = Neg(x) }", {"x": 2}, "`x` has no axis 2"),
        ("g (float x) => (float y) { y = Neg(x) }", True, "no input of the model has rows"),
        ("g (float[1] x, float[2] z) => (float[2] y) { y = Add(x, z) }", {"z": 0}, "`z` has 2 rows, `x` has 1"),
    ],
)
def test_axes_that_cannot_be(graph: str, batch: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        from_onnx(model(graph), batch=batch)


def test_an_output_without_rows_is_refused() -> None:
    graph = "g (float[1, 3] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }"
    with pytest.raises(InvalidArgument, match="the output `y` does not have one row for each row of the inputs"):
        program(graph, batch=True)(np.ones((2, 3), np.float32))
    several = program("g (float[1] x, float[1] z) => (float[1] y) { y = Add(x, z) }", batch=True)
    with pytest.raises(InvalidArgument, match="the inputs have these numbers of rows: `x` 2, `z` 3"):
        several(np.ones(2, np.float32), np.ones(3, np.float32))
