"""The functions of `jax.numpy` and its neighbours that are made of reading, writing, sorting, padding and accumulating."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, f32, i32

pytestmark = pytest.mark.sampled(4)

X, S = f32(4, 5), f32("B", "T")
AXES = {"empty": "JAX refuses an axis without elements"}

SELECTION = {
    "where": (lambda x: jnp.where(x > 0, size=7), X),
    "where, filled": (lambda x: jnp.where(x > 0, size=30, fill_value=-1), X),
    "nonzero": (lambda x: jnp.nonzero(x > 0, size=12, fill_value=3), X),
    "nonzero, symbolic": (lambda x: jnp.nonzero(x > 0, size=3), S),
    "flatnonzero": (lambda x: jnp.flatnonzero(x > 0, size=5), X),
    "argwhere": (lambda x: jnp.argwhere(x > 0, size=6), X),
    "extract": (lambda x: jnp.extract(x > 0, x, size=4), X),
    "compress": (lambda x, c: jnp.compress(c > 0, x, axis=0, size=3), X, i32(4)),
    "choose": (lambda i: jnp.choose(i, [np.arange(4), np.arange(4) * 10, np.arange(4) * 3], mode="clip"), i32(4)),
    "select": (lambda x: jnp.select([x > 1, x < -1], [x, x * 2], 7.0), X),
    "piecewise": (lambda x: jnp.piecewise(x, [x < 0, x > 1], [-1.0, lambda v: v * 3, 0.0]), X),
    "delete": (lambda x: jnp.delete(x, 2, axis=1), X),
    "delete several": (lambda x: jnp.delete(x, np.array([0, 3]), axis=1), X),
    "insert": (lambda x: jnp.insert(x, 1, 7.0, axis=1), X),
    "insert several": (lambda x, v: jnp.insert(x, np.array([1, 3]), v, axis=1), X, f32(4, 2)),
    "put": (lambda x, i: jnp.put(x, i, jnp.array([1.0, 2.0, 3.0], x.dtype), inplace=False), X, i32(3)),
    "place": (lambda x: jnp.place(x, x > 0, jnp.array([1.0, 2.0], x.dtype), inplace=False), X),
    "put along": (lambda x, i: jnp.put_along_axis(x, i, 9.0, axis=1, inplace=False), X, i32(4, 1)),
    "fill diagonal": (lambda x: jnp.fill_diagonal(x, 3.0, inplace=False), X),
    "one-hot": (lambda i: jax.nn.one_hot(i, 5), i32(4)),
    "one-hot by writing": (lambda i: jnp.zeros((4, 6)).at[jnp.arange(4), i].set(1.0), i32(4)),
    "dispatch to experts": (lambda x, i: jnp.zeros((3, 2, 5), x.dtype).at[i, jnp.arange(4) % 2].add(x), X, i32(4)),
    "log-probabilities": (
        lambda x, i: jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None], axis=1)[:, 0], f32("B", 6), i32("B")
    ),
}  # fmt: skip
MOVEMENT = {
    "roll": (lambda x: jnp.roll(x, 2, axis=1), X),
    "roll two axes": (lambda x: jnp.roll(x, (-1, 3), axis=(0, 1)), X),
    "roll flat": (lambda x: jnp.roll(x, 7), X),
    "roll at run time": (lambda x, i: jnp.roll(x, i[0], axis=1), S, i32(1)),
    "flip": (lambda x: (jnp.flip(x), jnp.fliplr(x), jnp.rot90(x)), S),
    "tile": (lambda x: jnp.tile(x, (2, 3)), S),
    "repeat": (lambda x: jnp.repeat(x, 3, axis=1), S),
    "repeat each": (lambda x: jnp.repeat(x, np.array([1, 0, 2, 3, 1]), axis=1), X),
    "repeat at run time": (lambda x, n: jnp.repeat(x, jnp.abs(n), axis=1, total_repeat_length=9), X, i32(5)),
    "split": (lambda x: (*jnp.split(x, [1, 3], axis=1), *jnp.array_split(x, 3, axis=1)), X),
    "diagonals": (lambda x: (jnp.diagonal(x), jnp.trace(x), jnp.diag(x[0])), f32("T", "T")),
    "a diagonal beside the main one": (lambda x: (jnp.diag(x, 1), jnp.diagonal(x, -2)), X),
    "triangles": (lambda x: (jnp.tril(x), jnp.triu(x, 1)), S),
    "triangle indices": (lambda x: x[jnp.tril_indices(4, m=5)], X),
    "mesh": (lambda x: x[jnp.ix_(np.array([0, 2]), np.array([1, 4]))], X),
    "unravel": (lambda i: jnp.unravel_index(i, (4, 5)), i32(6)),
    "ravel": (lambda i, j: jnp.ravel_multi_index((i, j), (4, 5), mode="clip"), i32(6), i32(6)),
    "differences": (lambda x: (jnp.diff(x, axis=0), jnp.ediff1d(x), *jnp.gradient(x)), X),
}
SEARCH = {
    "unique": (lambda x: jnp.unique(x, size=6), i32(4, 5)),
    "unique, all": (
        lambda x: jnp.unique(
            x, size=25, fill_value=-7, return_index=True, return_inverse=True, return_counts=True
        ), i32(4, 5)
    ),
    "unique rows": (lambda x: jnp.unique(x, axis=0, size=3), i32(4, 2)),
    "unique, symbolic": (lambda x: jnp.unique(x, size=4), i32("B", "T")),
    "unique of floats": (lambda x: jnp.unique(jnp.round(x), size=9), f32(20)),
    "set operations": (
        lambda x, y: (
            jnp.setdiff1d(x, y, size=5), jnp.union1d(x, y, size=12), jnp.intersect1d(x, y, size=3),
            jnp.setxor1d(x, y, size=9), jnp.isin(x, y),
        ), i32(8), i32(4)
    ),
    **{
        f"searchsorted by {method}": (
            lambda a, v, method=method: [
                jnp.searchsorted(jnp.sort(a), v, method=method, side=side) for side in ("left", "right")
            ], f32(9), f32(3, 2)
        )
        for method in ("scan", "scan_unrolled", "sort", "compare_all")
    },
    "searchsorted in integers": (lambda a, v: jnp.searchsorted(jnp.sort(a), v), i32(9), i32(7)),
    "digitize": (lambda x: jnp.digitize(x, np.array([-1.0, 0, 1.5], np.float32)), X),
    "interpolation": (lambda x, p, q: jnp.interp(x, jnp.sort(p), q), f32(6), f32(6), f32(6)),
    "mode": (lambda x: jax.scipy.stats.mode(x), i32(3, 7)),
    "rank": (lambda x: jax.scipy.stats.rankdata(x), f32(7)),
}  # fmt: skip
STATISTICS = {
    "histogram": (lambda x: jnp.histogram(x, bins=6), f32(20)),
    "histogram of a range": (lambda x: jnp.histogram(x, bins=5, range=(-1, 1)), f32(20)),
    "weighted histogram": (
        lambda x, w: jnp.histogram(x, bins=np.array([-1.0, 0, 0.5, 1.0], np.float32), weights=w), f32(20), f32(20)
    ),
    "histogram in two dimensions": (lambda x, y: jnp.histogram2d(x, y, bins=4), f32(20), f32(20)),
    "bincount": (lambda x: jnp.bincount(x, length=6), i32("B")),
    "weighted bincount": (lambda x, w: jnp.bincount(x, w, length=6), i32(20), f32(20)),
    "vmap of bincount": (jax.vmap(lambda i: jnp.bincount(i, length=4)), i32(4, 5)),
    "median": (lambda x: (jnp.median(x, axis=1), jnp.nanmedian(x, axis=0)), X),
    "median, symbolic": (lambda x: jnp.median(x, axis=1), S),
    "percentiles": (lambda x: jnp.percentile(x, np.array([10.0, 50, 99]), axis=0), X),
    "quantile": (lambda x: (jnp.quantile(x, 0.3, method="nearest"), jnp.nanquantile(x, 0.4, axis=0)), X),
}  # fmt: skip
SEGMENTS = {
    **{
        f"segment {how}": (
            lambda x, i, how=how: getattr(jax.ops, f"segment_{how}")(x, i, num_segments=4), f32(9, 2), i32(9)
        )
        for how in ("sum", "prod", "max", "min")
    },
    "in buckets": (lambda x, i: jax.ops.segment_sum(x, i, num_segments=4, bucket_size=3), f32(9, 2), i32(9)),
    "clipped": (lambda x, i: jax.ops.segment_max(x, i, num_segments=4, mode="clip"), f32(9, 2), i32(9)),
    "symbolic": (lambda x, i: jax.ops.segment_sum(x, i, num_segments=4), f32("B", "T"), i32("B")),
    "vmap": (jax.vmap(lambda x, i: jax.ops.segment_sum(x, i, num_segments=3)), X, i32(4, 5)),
    "gradient": (
        lambda x, i: jax.grad(lambda x: jnp.sum(jax.ops.segment_max(x, i, num_segments=4)))(x), f32(9), i32(9)
    ),
}  # fmt: skip
ACCUMULATION = {
    "sums": (lambda x: (jnp.cumsum(x), jnp.cumsum(x, axis=1), jnp.nancumsum(x, 1)), S),
    "products": (lambda x: (jnp.cumprod(x, axis=0), jnp.nancumprod(x)), X),
    "with the initial value": (lambda x: jnp.cumulative_sum(x, axis=1, include_initial=True), X),
    "a scan": (lambda x: lax.associative_scan(jnp.maximum, x, axis=1), X),
    "trapezoids": (lambda x: jnp.trapezoid(x), X),
}
GROUPS = [SELECTION, MOVEMENT, SEARCH, STATISTICS, SEGMENTS, ACCUMULATION]
CASES = {name: case for group in GROUPS for name, case in group.items()}
WITHOUT = ["diagonals", "nonzero, symbolic", "roll at run time", "median, symbolic", "unique, symbolic"]


def test_every_name_is_used_once():
    assert len(CASES) == sum(map(len, GROUPS))


@pytest.mark.parametrize("name", CASES)
def test_function(name):
    fn, *specs = CASES[name]
    check(fn, *specs, without=AXES if name in WITHOUT else None)
