"""Writing parts of arrays: every form of index and every way to combine, and what the graphs look like."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import check, f32, i32, spec
from tests.export.rules.indices import DTYPES, EMPTY, random_case
from tests.exports import expect_exactly, operators

pytestmark = pytest.mark.sampled(3)

CUBE = f32(4, 5, 6)
HOW = ["set", "add", "multiply", "min", "max"]
#: `how` is the method of `x.at[...]`. Sampled integers lie from -9 to 9: most are negative or out of range.
CASES = {
    "one row": (lambda x, i, u, how: getattr(x.at[i], how)(u), CUBE, i32(), f32(5, 6)),
    "one column": (lambda x, i, u, how: getattr(x.at[:, i], how)(u), CUBE, i32(), f32(4, 6)),
    "a constant place": (lambda x, u, how: getattr(x.at[1:3, 2], how)(u), CUBE, f32(2, 6)),
    "a constant column": (lambda x, u, how: getattr(x.at[:, -1], how)(u), CUBE, f32(4, 6)),
    "strides": (lambda x, u, how: getattr(x.at[:, 1:5:2], how)(u), CUBE, f32(4, 2, 6)),
    "reversed": (lambda x, u, how: getattr(x.at[::-1], how)(u), CUBE, CUBE),
    "rows": (lambda x, i, u, how: getattr(x.at[i], how)(u), CUBE, i32(2, 3), f32(2, 3, 5, 6)),
    "rows of one": (lambda x, i, u, how: getattr(x.at[i], how)(u), f32(1, 6), i32(3), f32(3, 6)),
    "one place": (lambda x, i, u, how: getattr(x.at[i, i], how)(u), f32(1, 1), i32(3), f32(3)),
    "columns": (lambda x, i, u, how: getattr(x.at[:, i], how)(u), CUBE, i32(2, 3), f32(4, 2, 3, 6)),
    "columns, clipped": (lambda x, i, u, how: getattr(x.at[:, i], how)(u, mode="clip"), CUBE, i32(3), f32(4, 3, 6)),
    "separate axes": (lambda x, i, u, how: getattr(x.at[i, :, i], how)(u), CUBE, i32(3), f32(3, 5)),
    "elements": (lambda x, i, u, how: getattr(x.at[i, i, i], how)(u), CUBE, i32(2, 3), f32(2, 3)),
    "an element each": (lambda x, i, u, how: getattr(x.at[jnp.arange(4), i], how)(u), CUBE, i32(4), f32(4, 6)),
    "some each": (
        lambda x, i, u, how: getattr(x.at[jnp.arange(4)[:, None], i], how)(u), f32(4, 5), i32(4, 3), f32(4, 3)
    ),
    "vmap": (lambda x, i, u, how: jax.vmap(lambda x, i, u: getattr(x.at[i], how)(u))(x, i, u), CUBE, i32(4, 3), f32(4, 3, 6)),
    "vmap of scalars": (lambda x, i, u, how: jax.vmap(lambda x, i, u: getattr(x.at[i], how)(u))(x, i, u), f32(4, 5), i32(4), f32(4)),
    "symbolic rows": (lambda x, i, u, how: getattr(x.at[i], how)(u), f32("B", "T"), i32("B"), f32("B", "T")),
    "symbolic columns": (lambda x, i, u, how: getattr(x.at[:, i], how)(u), f32("B", 5, "T"), i32(3), f32("B", 3, "T")),
    "symbolic elements": (lambda x, i, u, how: getattr(x.at[jnp.arange(x.shape[0]), i], how)(u), f32("B", "T"), i32("B"), f32("B")),
    "nothing": (lambda x, i, u, how: getattr(x.at[:, i], how)(u), f32(4, 3), i32(0), f32(4, 0)),
    "into nothing": (lambda x, i, u, how: getattr(x.at[:, i], how)(u), f32(0, 3), i32(2), f32(0, 2)),
}  # fmt: skip


@pytest.mark.parametrize("how", ["set", "add", "max"])
@pytest.mark.parametrize("name", CASES)
def test_writing(name, how):
    fn, *specs = CASES[name]
    check(lambda *args: fn(*args, how), *specs, without=EMPTY if name.startswith("symbolic") else None)


BOOLEAN = [("bool", how) for how in ("set", "min", "max")]  # JAX refuses arithmetic on booleans


@pytest.mark.parametrize(("dtype", "how"), [*BOOLEAN, *((d, h) for d in DTYPES[1:] for h in [*HOW, "subtract"])])
def test_every_dtype(dtype, how):
    generator = np.random.default_rng(0)
    x, u = (generator.integers(0, 300, (n, 3)).astype(jnp.dtype(dtype)) for n in (4, 5))
    indices = np.array([1, 1, 7, -2, -1], np.int32)
    specs = [spec(*v.shape, dtype=v.dtype) for v in (x, indices, u)]
    with jax.enable_x64(True):
        check(lambda x, i, u: getattr(x.at[i], how)(u), *specs, values=(x, indices, u))


@pytest.mark.parametrize("how", ["min", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_nan_wins(how, dtype):
    x, u = np.array([1, np.nan, 3, 4], dtype), np.array([np.nan, 1, np.nan, 7, 5], dtype)
    indices = np.array([0, 1, 2, 2, 3], np.int32)
    with jax.enable_x64(True):
        check(
            lambda x, i, u: getattr(x.at[i], how)(u),
            spec(4, dtype=dtype),
            i32(5),
            spec(5, dtype=dtype),
            values=(x, indices, u),
        )


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("opset", [17, 18, 26])
def test_every_opset(how, opset):
    check(lambda x, i, u: getattr(x.at[i], how)(u), f32(4, 3), i32(6), f32(6, 3), opset=opset)


APPLIED = {
    "one row": (lambda x, i: x.at[i].apply(jnp.sin), CUBE, i32()),
    "again and again": (lambda x, i: x.at[i].apply(lambda v: v * 2 + 1), f32(4, 3), i32(9)),
    "unique": (lambda x, i: x.at[i].apply(jnp.cos, unique_indices=True), CUBE, i32(2)),
    "clipped columns": (lambda x, i: x.at[:, i].apply(lambda v: v * 2 + 1, mode="clip"), CUBE, i32(5)),
    "an element each": (lambda x, i: x.at[jnp.arange(4), i].apply(jnp.sin), f32(4, 5), i32(4)),
    "a constant place": (lambda x: x.at[1:3].apply(jnp.exp), CUBE),
}


@pytest.mark.parametrize("name", APPLIED)
def test_apply(name):
    fn, *specs = APPLIED[name]
    check(fn, *specs)


UPDATED = {
    "a key-value cache": (lambda x, u, i: (0 * i, 0 * i, i, 0 * i), f32(1, 2, 8, 4), f32(1, 2, 1, 4)),
    "several steps of a cache": (lambda x, u, i: (0 * i, 0 * i, i, 0 * i), f32(1, 2, 8, 4), f32(1, 2, 3, 4)),
    "a block": (lambda x, u, i: (i, i, 0 * i), CUBE, f32(2, 3, 4)),
    "a block at constants": (lambda x, u, i: (1, 4, 2), CUBE, f32(2, 3, 4)),
    "all of it": (lambda x, u, i: (i, i), f32(3, 4), f32(3, 4)),
    "symbolic": (lambda x, u, i: (0 * i, i), f32("B", "2*T"), f32("B", "T")),
    "a symbolic step": (lambda x, u, i: (0 * i, i, 0 * i), f32("B", "T", 3), f32("B", 1, 3)),
    "a symbolic block": (lambda x, u, i: (0 * i, i, 0 * i + 1), f32("B", "2*T", 8), f32("B", "T", 3)),
}


@pytest.mark.parametrize("name", UPDATED)
def test_dynamic_updates(name):
    place, *specs = UPDATED[name]
    check(lambda x, u, i: lax.dynamic_update_slice(x, u, place(x, u, i)), *specs, i32(), without=EMPTY)


@pytest.mark.parametrize("width", [1, 2])
def test_dynamic_updates_under_vmap(width):
    fn = jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0 * i)))
    check(fn, CUBE, f32(4, width, 3), i32(4))


GENERAL = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "max": lax.scatter_max,
    "apply": lambda x, i, u, numbers, mode: lax.scatter_apply(
        x, i, lambda v: v * 2 + 1, numbers, update_shape=u.shape, mode=mode
    ),
}


@pytest.mark.parametrize("seed", range(60))
def test_scatter_in_general(seed):
    # Of several updates without an index, XLA writes only the last: there is at least one index.
    x, indices, updates, numbers, _ = random_case(seed + 1000, least=1)
    function = list(GENERAL.values())[seed % len(GENERAL)]
    mode = ("clip", "drop", "promise_in_bounds")[seed % 3]

    def fn(x, i, u):
        return function(x, i, u, lax.ScatterDimensionNumbers(*numbers), mode=mode)

    values = (x, indices, updates)
    check(fn, *(spec(*v.shape, dtype=v.dtype) for v in values), values=values, without={"float64": "as in float32"})


GRADIENTS = {
    "of a set": lambda x, i: x.at[i].set(2 * x[:3]),
    "of a sum": lambda x, i: x.at[i].add(x[:3] ** 2),
    "of a maximum": lambda x, i: x.at[i].max(2 * x[:3]),
    "of a product": lambda x, i: x.at[i].multiply(x[:3], unique_indices=True),
    "of an update": lambda x, i: lax.dynamic_update_slice(x, x[:2, :3] * 2, (i[0], i[1])),
    "of a read": lambda x, i: x[:, i],
    "of a slice": lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 3)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    fn = GRADIENTS[name]
    indices = np.array([2, 0, -1], np.int32)
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    check(lambda x, i: jax.grad(lambda x: jnp.sum(fn(x, i) ** 2))(x), f32(4, 5), i32(3), values=(x, indices))


def test_a_cache_in_a_loop():
    def fn(xs):
        write = lambda cache, x: (lax.dynamic_update_slice_in_dim(cache, x[None], 1, 0), cache.sum())
        return lax.scan(write, jnp.zeros((5, 3), xs.dtype), xs)

    check(fn, f32("B", 3))


SEGMENTS = {
    "numbers": (f32(12), i32(12), 5),
    "rows": (f32(12, 3), i32(12), 5),
    "matrices": (f32(12, 3, 2), i32(12), 12),
    "fewer rows than segments": (f32(4, 3), i32(4), 5),
    "symbolic numbers": (f32("T"), i32("T"), 5),
    "symbolic rows": (f32("T", 3), i32("T"), None),
    "no rows": (f32(0, 3), i32(0), 5),
    "no segments": (f32(4, 3), i32(4), 0),
    "integers": (i32(12, 3), i32(12), 5),
    "halves": (spec(12, 3, dtype="float16"), i32(12), 5),
    "small ids": (f32(300), spec(300, dtype="uint8"), 260),
}
REDUCTIONS = [jax.ops.segment_sum, jax.ops.segment_prod, jax.ops.segment_max, jax.ops.segment_min]


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", SEGMENTS)
def test_segments(name, reduce):
    """Many ids are negative or too large, and dropped."""
    data, ids, count = SEGMENTS[name]
    if count is None:
        check(lambda x, i, y: reduce(x, i, num_segments=y.shape[0]), data, ids, f32("B"), without=EMPTY)
    else:
        check(lambda x, i: reduce(x, i, num_segments=count), data, ids, without=EMPTY if "symbolic" in name else None)


@pytest.mark.parametrize("how", ["add", "multiply", "min", "max"])
def test_writing_rows_of_one_number(how):
    """Here, ids may be counted from the end."""
    check(lambda u, i: getattr(jnp.full((5, 3), 2.0).at[i], how)(u), f32(3, 4, 3), i32(3, 4))
    check(lambda u, i: getattr(jnp.full((1, 3), 2.0).at[i], how)(u), f32(3, 4, 3), i32(3, 4))


def test_what_is_dropped_does_not_matter():
    data = np.array([np.nan, 1, np.inf, 2, -np.inf], np.float32)
    exported = jaxport.to_onnx(lambda x, i: jax.ops.segment_sum(x, i, num_segments=2), [data, np.zeros(5, np.int32)])
    np.testing.assert_array_equal(exported(data, np.array([2, 0, -3, 1, 9], np.int32)), np.float32([1, 2]))


GRAPHS = {
    "segments": (
        lambda x, i: jax.ops.segment_sum(x, i, num_segments=5), [f32(12, 3), i32(12)],
        ["Clip -> Unsqueeze -> Cast -> ScatterND -> Slice"],
    ),
    "fewer rows than segments": (
        lambda x, i: jax.ops.segment_sum(x, i, num_segments=50), [f32(12, 3), i32(12)],
        ["Clip -> Equal -> Reshape -> Where -> ScatterND", "Unsqueeze -> Cast"],
    ),
    "a step of a cache": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, 0, i, 0)), [f32(3, 2, 8, 4), f32(3, 2, 1, 4), i32()],
        ["Clip -> Cast -> Where -> ScatterND"],
    ),
    "a constant place": (lambda x, u: x.at[:, 2].set(u), [CUBE, f32(4, 6)], ["Slice", "Reshape", "Slice -> Concat"]),
    "rows, some of which may be outside": (
        lambda x, i, u: x.at[i].set(u, wrap_negative_indices=False), [f32(9, 3), i32(4), f32(4, 3)],
        ["Concat -> ScatterND -> Slice", "Clip -> Unsqueeze -> Cast"],
    ),
    "constant places": (lambda x, u: x.at[:, ::2].add(u), [CUBE, f32(4, 3, 6)], ["ScatterElements"]),
    "rows": (
        lambda x, i, u: x.at[i].add(u, mode="clip"), [CUBE, i32(3), f32(3, 5, 6)], ["Clip -> Unsqueeze -> Cast -> ScatterND"]
    ),
    "rows that may be dropped": (
        lambda x, i, u: x.at[i].add(u), [CUBE, i32(3), f32(3, 5, 6)],
        ["Clip -> Equal -> Reshape -> Where -> ScatterND", "Unsqueeze -> Cast"],
    ),
    "a step of many caches": (
        jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0))), [f32(4, 8, 3), f32(4, 1, 3), i32(4)],
        ["Clip -> Reshape -> Expand -> ScatterElements"],
    ),
    "a step of many caches of long rows": (
        jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0))), [f32(4, 8, 16), f32(4, 1, 16), i32(4)],
        ["Clip -> Cast -> Unsqueeze -> Concat", "Squeeze", "ScatterND"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_graph_looks_like(name):
    expect_exactly(*GRAPHS[name])


CACHE = f32("B", 6, 2, 8)
STEPS = {
    "a slice": (lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i, 0, 0)), i32()),
    "a slice of several steps": (
        lambda x, u, i: lax.dynamic_update_slice(x, jnp.concatenate([u, u], 1), (0, i, 0, 0)),
        i32(),
    ),
    "an index": (lambda x, u, i: x.at[:, i].set(u[:, 0]), i32()),
    "an index that is clipped": (lambda x, u, i: x.at[:, i].set(u[:, 0], mode="clip"), i32()),
    "heads first": (
        lambda x, u, i: jnp.swapaxes(x, 1, 2).at[:, :, i].set(u[:, 0]),
        i32(),
    ),
    "a place of each row": (jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0, 0))), i32("B")),
    "an index of each row": (lambda x, u, i: x.at[jnp.arange(x.shape[0]), i].set(u[:, 0]), i32("B")),
}


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_a_cache(name, opset):
    fn, place = STEPS[name]
    few = {"empty": "the same", "float64": "the same"}
    for batch in ("B", 1):
        specs = [f32(batch, *CACHE.shape[1:]), f32(batch, 1, 2, 8), i32(*(batch for _ in place.shape))]
        exported = check(fn, *specs, opset=opset, without=few)
        assert "ScatterElements" not in operators(exported)
        rows = 2 if batch == "B" else 1
        x, u = (jax.random.normal(jax.random.key(n), (rows, n, 2, 8)) for n in (6, 1))
        for i in (0, 3, 5, 6, 9, -1, -6, -7):
            index = jnp.full((rows,) * len(place.shape), i)
            np.testing.assert_array_equal(exported(x, u, index), fn(x, u, index))
