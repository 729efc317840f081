"""Sorting, selecting the largest, and positions of extremes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import check, f32, i32, spec
from tests.export.rules.indices import DTYPES
from tests.exports import expect_exactly

pytestmark = pytest.mark.sampled(2)

SPECIAL = np.array([3, np.nan, -0.0, 0.0, np.nan, np.inf, -np.inf, 1, np.inf, 0.0, -0.0, 1], np.float32)


def special(dtype):
    """Values with ties and with all that orders oddly."""
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return np.arange(12) % 3 == 0
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([3, limits.max, 7, limits.min, 3, 0, limits.max, 7, 1, limits.min, limits.max - 1, 2], dtype)
    values = SPECIAL.astype(dtype)
    values[7] = jnp.finfo(dtype).max
    return values


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype):
    def fn(x):
        plain = jnp.sort(x), jnp.argsort(x), jnp.argsort(x, descending=True), jnp.argmax(x), jnp.argmin(x)
        return *plain, lax.sort((x, jnp.arange(12.0), -x if x.dtype != bool else x), num_keys=1)

    values = special(dtype)
    with jax.enable_x64(True):
        check(fn, spec(12, dtype=values.dtype), values=(values,))


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_of_every_dtype(dtype):
    values = special(dtype)
    with jax.enable_x64(True):
        check(lambda x: lax.top_k(x, 5), spec(12, dtype=values.dtype), values=(values,))


CASES = {
    "sort": (jnp.sort, f32("B", "T")),
    "the first axis": (lambda x: jnp.sort(x, axis=0), f32("B", "T")),
    "flat": (lambda x: jnp.sort(x, axis=None), f32("B", "T")),
    "descending": (lambda x: jnp.sort(x, descending=True), f32("B", "T")),
    "not stable": (lambda x: jnp.sort(x, stable=False), f32("B", "T")),
    "argsort": (lambda x: jnp.argsort(x, axis=0), i32("B", "T")),
    "argsort, descending": (lambda x: jnp.argsort(x, descending=True), i32("B", "T")),
    "two keys": (lambda x, y: lax.sort((x, y, x * y), num_keys=2), i32(9), i32(9)),
    "two keys of an inner axis": (lambda x, y: lax.sort((x, y, x * y), num_keys=2, dimension=0), i32(9, 2), i32(9, 2)),
    "three keys": (lambda x, y, z: lax.sort((x > 0, y, z), num_keys=3), i32(20), i32(20), f32(20)),
    "a payload": (lambda x: lax.sort((x, jnp.exp(x)), num_keys=1), f32("B", "T")),
    "a payload that repeats": (lambda x: lax.sort((x, jnp.broadcast_to(x[:1], x.shape)), num_keys=1), f32("B", "T")),
    "a payload along the axis": (
        lambda x, y: lax.sort((x, jnp.broadcast_to(y, x.shape)), num_keys=1), f32("B", "T"), f32("T")
    ),
    "lexsort": (lambda x, y: jnp.lexsort((x, y)), i32("B", "T"), i32("B", "T")),
    "top k": (lambda x: lax.top_k(x, 3), f32("B", 7)),
    "top k of an inner axis": (lambda x: lax.top_k(x, 2, axis=0), f32(4, 7)),
    "top 0": (lambda x: lax.top_k(x, 0), f32(4, 7)),
    "top k of symbolic size": (lambda x: lax.top_k(x, 2), i32("B", "T + 2")),
    "approximately the largest": (lambda x: lax.approx_max_k(x, 3), f32(3, 7)),
    "approximately the smallest": (lambda x: lax.approx_min_k(x, 3), f32(3, 7)),
    "argmax": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(x)), f32("B", "T")),
    "partition": (lambda x: (jnp.partition(x, 2), jnp.argpartition(x, 2)), f32(4, 7)),
    "vmap": (jax.vmap(lambda x: lax.sort((x, x * 2), num_keys=1)[1], in_axes=1), f32(4, 5)),
    "vmap of argsort": (jax.vmap(jnp.argsort, in_axes=1, out_axes=1), f32(4, 5)),
    "gradient": (jax.grad(lambda x: jnp.sum(jnp.sort(x, 1) * jnp.arange(5.0))), f32(4, 5)),
    "gradient of top k": (jax.grad(lambda x: jnp.sum(lax.top_k(x, 2)[0] * jnp.arange(1.0, 3.0))), f32(4, 5)),
    "jvp": (lambda x: jax.jvp(lambda x: jnp.sort(x, 1), (x,), (x * 2,)), f32(4, 5)),
    "without elements": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1)), f32(0, 3)),
    "one element": (lambda x: lax.sort(x + 1, dimension=0), f32(1)),
}  # fmt: skip
EMPTY = {"argmax": {"empty": "JAX refuses the position in nothing"}}


@pytest.mark.parametrize("name", CASES)
def test_ordering(name):
    fn, *specs = CASES[name]
    check(fn, *specs, without=EMPTY.get(name))


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_the_first_nan_is_the_extreme(axis):
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    x[0, 1, 2] = x[1, 2, 3] = x[0, 3, 2] = np.nan
    x[2, 0, 0] = np.inf
    check(lambda x: (jnp.argmax(x, axis), jnp.argmin(x, axis)), f32(3, 4, 5), values=(x,))


def test_many_ties_keep_their_order():
    x = np.random.default_rng(0).integers(0, 4, (3, 5000)).astype(np.int32)
    check(lambda x: (jnp.argsort(x), lax.top_k(x, 3000)), i32(3, 5000), values=(x,))


GRAPHS = {
    "integers": (jnp.sort, [i32("B", 5)], ["TopK[B, 5]"]),
    "the order of integers": (jnp.argsort, [i32("B", 5)], ["TopK -> Cast[B, 5]"]),
    "floats": (
        jnp.sort, [f32("B", 5)],
        ["IsNaN -> Cast -> TopK -> GatherElements -> TopK -> GatherElements -> GatherElements[B, 5]", "Where"],
    ),
    "scores": (
        lambda x: lax.top_k(jax.nn.sigmoid(x), 2)[0], [f32("B", 5)],
        ["Sigmoid -> IsNaN -> Where -> TopK -> GatherElements[B, 2]"],
    ),
    "scores with biases": (
        lambda x: lax.top_k(jax.nn.sigmoid(x) + np.float32([1, -2, 0, 3, -1]), 2)[1], [f32("B", 5)],
        ["Sigmoid -> Add -> IsNaN -> Where -> TopK -> Cast[B, 2]"],
    ),
    "shares": (
        lambda x: lax.top_k(jax.nn.softmax(x), 2)[0], [f32("B", 5)],
        ["Softmax -> IsNaN -> Where -> TopK -> GatherElements[B, 2]"],
    ),
    "two keys": (
        lambda x, y: lax.sort((x, y), num_keys=2), [i32(5), i32(5)],
        ["TopK -> GatherElements -> TopK -> GatherElements -> GatherElements", "GatherElements"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_graph_looks_like(name):
    expect_exactly(*GRAPHS[name])


def test_a_reduction_that_keeps_candidates_is_refused():
    with pytest.raises(jaxport.Unsupported, match=r"approx_top_k.*\n?.*aggregate_to_topk=True"):
        jaxport.to_onnx(lambda x: lax.approx_max_k(x, 3, aggregate_to_topk=False), [f32(100000)])


@pytest.mark.parametrize("function", [jnp.sort, jnp.argsort, lambda x: lax.top_k(x, 3), jnp.argmax, jnp.argmin])
def test_numbers_beyond_int32_keep_their_order_without_64_bits(function):
    """Also when the file is imported where `int64` is `int32`."""
    x = np.array([3, 2**31 + 5, 2**32 - 1, 0, 2**31 - 1, 2**31], np.uint32)
    exported = jaxport.to_onnx(function, [jax.ShapeDtypeStruct((6,), np.uint32)])
    for found in (exported(x), jaxport.from_onnx(exported.model)(x)):
        for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(function(x)), strict=True):
            np.testing.assert_array_equal(got, wanted)


SELECTING = {
    "largest": lambda x: lax.top_k(x, 12),
    "nearest": lambda x: lax.top_k(-x, 5),
    "nearest of all": lambda x: lax.top_k(-x, 12),
    "negated twice": lambda x: lax.top_k(-lax.neg(x), 12),
    "negated and moved": lambda x: lax.top_k(-x.reshape(3, 4), 3, axis=0),
    "distances": lambda x: lax.top_k(-jnp.abs(x), 7),
    "partition": lambda x: jnp.partition(x, 4),
    "partition of the negative": lambda x: jnp.partition(-x, 4),
    "argpartition": lambda x: jnp.argpartition(x, 4),
    "argpartition of the negative": lambda x: jnp.argpartition(-x, 4),
    "sort of the negative": lambda x: (jnp.sort(-x), jnp.argsort(-x)),
    "scores": lambda x: lax.top_k(jax.nn.sigmoid(x), 5)[1],
    "shares": lambda x: lax.top_k(jax.nn.softmax(x.reshape(3, 4), axis=0), 4),
    "no shares": lambda x: lax.top_k(jnp.exp(x.reshape(3, 4)[:, :3]) / jnp.sum(jnp.exp(x.reshape(3, 4)[:, :3]), 0)[:, None], 3),
    "clamped by NaN": lambda x: (lax.clamp(x[1], x, x[0]), lax.clamp(x[7], x, x[0]), jnp.clip(x, -1, np.nan)),
    "clipped by NaN": lambda x: (jnp.clip(x, x[1], 1), jnp.clip(x, -np.nan, 1), lax.clamp(np.array(np.nan, x.dtype), x, x[0])),
}  # fmt: skip


@pytest.mark.parametrize("opset", [18, 26])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", SELECTING)
def test_the_order_of_nan_and_of_zeros(name, dtype, opset):
    """That of XLA's bits: NaN first, or last behind a negation; zeros by their signs."""
    values = special(dtype)
    with jax.enable_x64(dtype == "float64"):
        exported = jaxport.to_onnx(SELECTING[name], [spec(12, dtype=dtype)], opset=opset)
        expected = jax.tree.leaves(jax.jit(SELECTING[name])(values))
        for found, wanted in zip(jax.tree.leaves(exported(values)), expected, strict=True):
            found, wanted = np.asarray(found), np.asarray(wanted)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
            if found.dtype.kind not in "iu":  # no runtime promises the sign of a NaN
                signs = [np.signbit(np.nan_to_num(x.astype(np.float64))) for x in (found, wanted)]
                np.testing.assert_array_equal(*signs)
    assert dtype == "float64" or "float64" not in exported.requirements.dtypes
