"""Sampled inputs are valid where the program uses them, and show mistakes where nothing bounds them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export, lax

import jaxport
from jaxport.export.ports import Port
from jaxport.testing import f32, i32, spec
from jaxport.verify.sampling import Range, bounds, ordered, sample

TABLE = jnp.arange(40.0).reshape(10, 4)


@pytest.mark.parametrize(
    ("fn", "specs", "expected"),
    [
        (lambda ids: TABLE[ids], [i32("B", "T")], {0: [10]}),
        (lambda ids: jnp.take(TABLE, ids, axis=1), [i32("B")], {0: [4]}),
        (lambda ids: TABLE[ids.reshape(-1).astype(jnp.uint32)], [i32("B", 2)], {0: [10]}),
        (lambda ids, table: table[ids + 1], [i32("B"), f32("V", 3)], {0: ["V"]}),
        (lambda ids: jax.nn.one_hot(ids, 7), [i32("B")], {0: [7]}),
        (
            lambda x, n: jnp.where(jnp.arange(x.shape[1]) < n[:, None], x, 0),
            [f32("B", "T"), i32("B")],
            {1: ["1..T + 1"]},
        ),
        (lambda c, x, p: lax.dynamic_update_slice(c, x, (0, p)), [f32("B", "T"), f32("B", 1), i32()], {2: ["T"]}),
        (lambda x, p: lax.dynamic_slice_in_dim(x, p, 3), [f32(8), i32()], {1: [6]}),
        (lambda x, i: x.at[i].add(1), [f32("B", 2), i32(3)], {1: ["B"]}),
        (lambda x, i: jax.ops.segment_sum(x, i, num_segments=4), [f32("B"), i32("B")], {1: [4]}),
        (lambda x, i: jnp.take_along_axis(x, i, 1), [f32("B", "T"), i32("B", 2)], {1: ["T"]}),
        (jax.jit(lambda ids: TABLE[ids]), [i32("B")], {0: [10]}),
        (lambda ids: lax.scan(lambda c, i: (c + TABLE[i].sum(), i), 0.0, ids), [i32("B")], {0: [10]}),
        (lambda ids: lax.cond(ids[0] > 0, lambda i: TABLE[i], lambda i: TABLE[i] * 2, ids), [i32(3)], {0: [10]}),
        (
            lambda ids: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + TABLE[ids].sum()), (0, 0.0)),
            [i32(3)],
            {0: [10]},
        ),
        (lambda i, j: TABLE[i, j], [i32("B"), i32("B")], {0: [10], 1: [4]}),
        (lambda i: TABLE[jnp.arange(3), i], [i32(3)], {0: [4]}),
        (lambda x, i, j: x.at[i, j].set(0), [f32("B", "T"), i32(2), i32(2)], {1: ["B"], 2: ["T"]}),
        (lambda mask: TABLE[jnp.cumsum(mask, axis=1) * mask - 1], [i32("B", "T")], {0: [10, 2]}),
        (lambda x, mask: x[jnp.arange(3), mask.sum(1) - 1], [f32(3, "T"), i32(3, "T")], {1: [2]}),
        (lambda i: i // 3, [i32("B")], {}),
        (lambda x: jnp.floor(x), [f32("B")], {}),
        (lambda x: TABLE[jnp.argmax(x, axis=1)], [f32("B", 10)], {}),
    ],
)
def test_the_axes_that_an_integer_selects_from_are_found(fn, specs, expected):
    scope = export.SymbolicScope()
    structs = [
        jax.ShapeDtypeStruct(
            [export.symbolic_shape(d, scope=scope)[0] if isinstance(d, str) else d for d in s.shape], s.dtype
        )
        for s in specs
    ]
    found = bounds(jax.make_jaxpr(fn)(*structs))
    texts = {index: {f"{r.first}..{r.stop}" for r in ranges} for index, ranges in found.items()}
    assert texts == {
        index: {size if ".." in str(size) else f"0..{size}" for size in sizes} for index, sizes in expected.items()
    }


def drawn(dtype, *valid, shape=(200,)):
    return sample(Port("x", shape, np.dtype(dtype)), {}, np.random.default_rng(0), valid)


def test_bounded_integers_are_valid_and_reach_both_ends():
    values = drawn(np.int32, Range(0, 10), Range(1, 7))
    assert values.dtype == np.int32
    assert (values.min(), values.max()) == (1, 6)


def test_free_values_have_both_signs():
    assert drawn(np.float32).min() < 0 < drawn(np.float32).max()
    assert drawn(np.int8).min() < 0 < drawn(np.int8).max()
    assert drawn(np.uint8).min() >= 0
    assert set(drawn(np.bool_)) == {False, True}
    assert drawn(np.complex64).imag.min() < 0
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.float16):
        assert drawn(dtype).dtype == np.dtype(dtype)
        assert drawn(dtype).astype(np.float32).max() > 0


def test_a_small_bound_beats_a_small_dtype():
    assert drawn(np.uint8, Range(0, 1000)).max() > 100
    assert drawn(np.int32, Range(0, 0)).tolist() == [0] * 200
    assert drawn(np.int32, Range(1, 1)).tolist() == [0] * 200


def test_keys_are_drawn_as_keys():
    port = Port("key", (2,), jax.random.key(0).dtype)
    keys = sample(port, {}, np.random.default_rng(0))
    assert keys.dtype == port.dtype
    assert keys.shape == (2,)


def test_symbolic_shapes_get_the_sizes():
    (batch,) = export.symbolic_shape("B")
    port = Port("x", (2 * batch, 3), np.dtype(np.float32))
    assert sample(port, {"B": 4}, np.random.default_rng(0)).shape == (8, 3)
    assert spec(3).shape == (3,)


@pytest.mark.parametrize(
    "search",
    [
        lambda edges, x: jnp.searchsorted(edges, x),
        lambda edges, x: jnp.digitize(x, edges),
        lambda edges, x: jnp.interp(x, edges, edges * 2),
        lambda edges, x: jnp.histogram(x, bins=edges)[0],
        lambda edges, x: jnp.searchsorted(jnp.exp(edges[None] + 1)[0], x, side="right"),
        lambda edges, x: jax.vmap(jnp.searchsorted, (None, 0))(edges, x[:, None]),
    ],
)
def test_what_is_searched_by_bisection_is_sorted(search):
    exported = jaxport.to_onnx(search, [(20,), ("N",)])
    assert exported.verify().ok
    trace = jax.make_jaxpr(search)(jnp.zeros(20), jnp.zeros(4))
    assert ordered(trace) == {0}


@pytest.mark.parametrize(
    ("constraint", "shapes"),
    [("a == b", ["2*a", "2*b"]), ("a == 2*b", ["a", "2*b"]), ("mod(a, 2) == 0", ["a", "a"])],
)
def test_sizes_that_equalities_replace_are_chosen(constraint: str, shapes: list[str]):
    exported = jaxport.to_onnx(lambda x, y: x + y, [(shape,) for shape in shapes], constraints=[constraint])
    assert exported.verify().ok
