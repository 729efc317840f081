"""Reading parts of arrays: every form of index, indices that are out of range, and what the graphs look like."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import check, expect_graph, f32, i32, spec
from tests.export.rules.indices import DTYPES, EMPTY, random_case
from tests.exports import expect_exactly

pytestmark = pytest.mark.sampled(3)

CUBE = f32(4, 5, 6)
INDICES = np.array([1, 7, -2], np.int32)
GRID = np.arange(12, dtype=np.float32).reshape(4, 3)

#: Sampled integers lie from -9 to 9: most of them are negative or out of range.
CASES = {
    "rows": (lambda x, i: x[i], CUBE, i32(2, 3)),
    "columns": (lambda x, i: x[:, i], CUBE, i32(2, 3)),
    "last axis": (lambda x, i: x[..., i], CUBE, i32(3)),
    "one row": (lambda x, i: x[i], CUBE, i32()),
    "one column": (lambda x, i: x[:, i], CUBE, i32()),
    "one element": (lambda x, i, j: x[i, 1, j], CUBE, i32(), i32()),
    "separate axes": (lambda x, i: x[i, :, i], CUBE, i32(3)),
    "separate axes and a slice": (lambda x, i: x[i, :, 1:3, i], f32(4, 5, 6, 3), i32(2)),
    "adjacent axes": (lambda x, i: x[:, i, i], CUBE, i32(2, 3)),
    "all axes": (lambda x, i: x[i, i, i], CUBE, i32(2, 3)),
    "broadcast indices": (lambda x, i, j: x[i[:, None], j], CUBE, i32(2), i32(3)),
    "an open mesh": (lambda x, i: x[i[:, None], i[None, :]], CUBE, i32(3)),
    "new axes": (lambda x, i: x[None, i, ..., None], CUBE, i32(3)),
    "a constant list": (lambda x: x[:, np.array([0, -1, 2])], CUBE),
    "constants that repeat": (lambda x: x[np.array([1, 1]), :, np.array([0, 2])], CUBE),
    "a constant mask": (lambda x: x[np.arange(4) % 2 == 0], CUBE),
    "strides": (lambda x: x[::2, 3:0:-1, ::-2], CUBE),
    "negative positions": (lambda x: x[-1, ..., -2:], CUBE),
    "fill": (lambda x, i: x.at[i].get(mode="fill", fill_value=7), CUBE, i32(2, 3)),
    "fill two axes": (lambda x, i: x.at[i, i].get(mode="fill"), CUBE, i32(4)),
    "clip": (lambda x, i: x.at[:, i].get(mode="clip"), CUBE, i32(4)),
    "wrap": (lambda x, i: jnp.take(x, i, axis=1, mode="wrap"), CUBE, i32(4)),
    "no negative indices": (lambda x, i: x.at[i].get(wrap_negative_indices=False, mode="fill"), CUBE, i32(4)),
    "take": (lambda x, i: jnp.take(x, i, axis=1), CUBE, i32(2, 3)),
    "take flat": (lambda x, i: jnp.take(x, i), CUBE, i32(3)),
    "take along": (lambda x, i: jnp.take_along_axis(x, i, axis=1), CUBE, i32(4, 2, 6)),
    "take along, broadcast": (lambda x, i: jnp.take_along_axis(x, i, axis=1), CUBE, i32(4, 2, 1)),
    "take along, all alike": (lambda x, i: jnp.take_along_axis(x, i, axis=-1), CUBE, i32(1, 1, 2)),
    "vmap": (jax.vmap(lambda x, i: x[i]), CUBE, i32(4, 3)),
    "vmap of scalars": (jax.vmap(lambda x, i: x[i]), f32(4, 5), i32(4)),
    "vmap of vmap": (jax.vmap(jax.vmap(lambda x, i: x[i])), CUBE, i32(4, 5, 3)),
    "vmap over other axes": (jax.vmap(lambda x, i: x[:, i], in_axes=(2, 1), out_axes=1), CUBE, i32(3, 6)),
    "vmap of indices": (jax.vmap(lambda x, i: x[i], in_axes=(None, 0)), CUBE, i32(7)),
    "slice": (lambda x, i, j: lax.dynamic_slice(x, (i, j, j), (2, 3, 1)), CUBE, i32(), i32()),
    "slice of one": (lambda x, i: lax.dynamic_index_in_dim(x, i, axis=1), CUBE, i32()),
    "slice at constants": (lambda x: lax.dynamic_slice(x, (3, 1, 0), (2, 2, 6)), CUBE),
    "slices": (jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3))), CUBE, i32(4)),
    "slices of one array": (jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (3,)), (None, 0)), f32(9), i32(4)),
    "symbolic rows": (lambda x, i: x[i], f32("B", "T"), i32("B")),
    "symbolic columns": (lambda x, i: x[:, i], f32("B", "T"), i32("B", 2)),
    "symbolic last": (lambda x: x[:, -1], f32("B", "T")),
    "symbolic elements": (lambda x, i: x[jnp.arange(x.shape[0]), i], f32("B", "T"), i32("B")),
    "symbolic reversal": (lambda x: x[:, jnp.arange(x.shape[1])[::-1]], f32("B", "T")),
    "symbolic take along": (lambda x, i: jnp.take_along_axis(x, i, axis=1), f32("B", "T", 6), i32("B", "T", 6)),
    "symbolic vmap": (jax.vmap(lambda x, i: x[i]), f32("B", "T", 3), i32("B", 2)),
    "symbolic slice": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, axis=1), f32("B", "2*T"), i32()),
    "a slice of symbolic size": (
        lambda x, y, i: lax.dynamic_slice_in_dim(x, i, y.shape[0]), f32("T + 4"), f32("T"), i32()
    ),
    "slices of symbolic size": (
        lambda x, y, i: jax.vmap(lambda i: lax.dynamic_slice_in_dim(x, i, y.shape[0]))(i), f32("T + 4"), f32("T"), i32(3)
    ),
    "symbolic windows": (lambda x: x[:, jnp.arange(x.shape[1] - 2)[:, None] + jnp.arange(3)], f32("B", "T")),
    "relative positions": (lambda t: t[jnp.arange(5)[:, None] - jnp.arange(5) + 4], f32(9, 2)),
    "nothing": (lambda x, i: x[i], CUBE, i32(2, 0)),
    "of nothing": (lambda x, i: x[:, i], f32(0, 3), i32(2)),
    "gradient": (lambda x, i: jax.grad(lambda x: jnp.sum(x[i] ** 2))(x), CUBE, i32(3)),
    "hessian": (lambda x, i: jax.hessian(lambda x: jnp.sum(x[i] ** 3))(x), f32(4), i32(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_reading(name):
    fn, *specs = CASES[name]
    check(fn, *specs, without=EMPTY if name.startswith("symbolic") else None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype):
    def fn(x, i):
        return (
            x[i],
            jnp.take(x, i, axis=1),
            jnp.take_along_axis(x, i[None], 0),
            lax.dynamic_slice(x, (i[0], i[1]), (2, 2)),
        )

    with jax.enable_x64(True):
        check(
            fn, spec(4, 3, dtype=jnp.dtype(dtype)), i32(3), values=(np.arange(12).reshape(4, 3).astype(dtype), INDICES)
        )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_every_dtype_of_indices(dtype, mode):
    indices = np.array([0, 1, 3, 100, np.iinfo(dtype).max], dtype)
    with jax.enable_x64(True):
        check(lambda x, i: x.at[i].get(mode=mode), f32(4, 3), spec(5, dtype=dtype), values=(GRID, indices))


@pytest.mark.parametrize("seed", range(45))
def test_gather_in_general(seed):
    x, indices, _, numbers, sizes = random_case(seed)
    mode = ("clip", "fill", "promise_in_bounds")[seed % 3]

    def fn(x, i):
        return lax.gather(x, i, lax.GatherDimensionNumbers(*numbers), sizes, mode=mode)

    specs = [spec(*v.shape, dtype=v.dtype) for v in (x, indices)]
    check(fn, *specs, values=(x, indices), without={"float64": "nothing is computed"})


GRAPHS = {
    "an embedding": (lambda t, i: t[i], [f32(10, 3), i32("B", "T")], ["Clip -> Gather[B, T, 3]"]),
    "constants in range cost nothing": (lambda x: x[:, np.array([0, -1])], [CUBE], ["Gather[4, 2, 6]"]),
    "along an axis": (lambda x, i: jnp.take_along_axis(x, i, 1, mode="clip"), [CUBE, i32(4, 2, 6)], ["Clip -> GatherElements"]),
    "an element each": (lambda x, i: x[jnp.arange(4), i], [f32(4, 5), i32(4)], ["Clip -> Unsqueeze -> Cast -> GatherND[4]"]),
    "of argmax": (lambda x: x[:, jnp.argmax(x[0])], [i32(4, 5)], ["Slice -> Reshape -> ArgMax -> Cast -> Gather[4]"]),
    "of argsort": (lambda x: x[jnp.argsort(x[:, 0])], [i32("B", 5)], ["Slice -> Squeeze -> TopK -> Cast -> Gather[B, 5]", "Shape"]),
    "of a range": (lambda x: x[:, jnp.arange(3) * 2], [CUBE], ["Gather[4, 3, 6]"]),
    "one row": (lambda x, i: x[i], [CUBE, i32()], ["Clip -> Gather[5, 6]"]),
    "strides": (lambda x: x[:, ::2, -1], [CUBE], ["Slice -> Reshape[4, 3]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_graph_looks_like(name):
    expect_exactly(*GRAPHS[name])


def test_a_clip_of_the_user_is_enough():
    exported = jaxport.to_onnx(lambda t, i: t[jnp.clip(i, 0, 9)], [f32(10, 3), i32("B")])
    expect_graph(exported, ["Max -> Min -> Gather"], exact=True)


def test_one_hot_mode_is_refused():
    with pytest.raises(jaxport.Unsupported, match=r"gather.*\n?.*one_hot.*mode=\"clip\""):
        jaxport.to_onnx(lambda x, i: x.at[i].get(mode="one_hot"), [f32(4), i32(2)])
