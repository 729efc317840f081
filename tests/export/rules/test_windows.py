"""Pooling of every dtype and padding, any monoid over windows, and the derivatives of pooling."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax._src.lax.windowed_reductions import _select_and_scatter

import jaxport
from jaxport.testing import check, expect_graph, f32, i32, spec
from tests.exports import operators

IMAGES = f32("B", "H", "W", 3)
IDENTITY = {lax.add: 0, lax.max: -jnp.inf, lax.min: jnp.inf, lax.mul: 1}


def pool(x, monoid, window, strides=None, padding="VALID", **options):
    """`lax.reduce_window` from the identity of the monoid, which JAX recognises."""
    start, strides = IDENTITY[monoid], strides or (1,) * x.ndim
    if x.dtype.kind in "iu" and monoid in (lax.max, lax.min):
        start = np.iinfo(x.dtype).min if monoid is lax.max else np.iinfo(x.dtype).max
    elif x.dtype == bool:
        start = monoid is lax.min
    return lax.reduce_window(x, np.asarray(start, x.dtype), monoid, window, strides, padding, **options)


WINDOWS = {
    "plain": {"window": (1, 2, 3, 1)},
    "strides": {"window": (1, 2, 3, 1), "strides": (1, 2, 2, 1)},
    "same": {"window": (1, 3, 3, 1), "strides": (1, 2, 2, 1), "padding": "SAME"},
    "same lower": {"window": (1, 3, 2, 1), "strides": (1, 2, 1, 1), "padding": "SAME_LOWER"},
    "stride over the window": {"window": (1, 2, 2, 1), "strides": (1, 3, 3, 1), "padding": "SAME"},
    "padding": {"window": (1, 3, 2, 1), "padding": ((0, 0), (2, 1), (0, 1), (0, 0))},
    "padding over the window": {"window": (1, 2, 2, 1), "padding": ((0, 0), (3, 2), (0, 4), (0, 0))},
    "negative padding": {"window": (1, 2, 2, 1), "padding": ((0, 0), (-1, 1), (1, -2), (0, 0))},
    "dilated": {"window": (1, 2, 2, 1), "window_dilation": (1, 2, 3, 1), "padding": ((0, 0), (1, 1), (0, 2), (0, 0))},
    "dilated data": {
        "window": (1, 3, 2, 1),
        "base_dilation": (1, 2, 3, 1),
        "padding": ((0, 0), (1, 0), (2, 3), (0, 0)),
    },
    "batch and channels": {"window": (2, 1, 1, 2), "padding": ((1, 0), (0, 0), (0, 0), (1, 1))},
    "all axes": {"window": (2, 2, 2, 2), "padding": "SAME"},
    "one axis": {"window": (1, 1, 3, 1), "strides": (1, 1, 2, 1), "padding": "SAME"},
    "strides alone": {"window": (1, 1, 1, 1), "strides": (1, 2, 3, 1)},
    "nothing": {"window": (1, 1, 1, 1)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("monoid", [lax.add, lax.max, lax.min, lax.mul], ids=["sum", "max", "min", "product"])
def test_windows(monoid, options):
    check(lambda x: pool(x, monoid, **options), f32("B", 6, 7, 3))


@pytest.mark.parametrize("name", ["strides", "same", "padding", "dilated", "one axis", "nothing"])
@pytest.mark.parametrize("monoid", [lax.add, lax.max, lax.mul], ids=["sum", "max", "product"])
def test_open_sizes(monoid, name):
    check(lambda x: pool(x, monoid, **WINDOWS[name]), IMAGES)


DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "bool")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("monoid", [lax.add, lax.max, lax.min], ids=["sum", "max", "min"])
def test_dtypes(monoid, dtype):
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    generator = np.random.default_rng(0)
    if kind.kind in "iu":  # up to the bounds, so that sums wrap and extremes meet the identity
        limits = np.iinfo(kind)
        x = generator.integers(limits.min, limits.max, (2, 5, 6, 3), dtype=kind, endpoint=True)
        x[0, 0], x[1, 1] = limits.min, limits.max
    else:
        x = (
            generator.normal(size=(2, 5, 6, 3)).astype(kind)
            if kind.kind != "b"
            else generator.random((2, 5, 6, 3)) > 0.5
        )
    if dtype == "bool" and monoid is lax.add:
        pytest.skip("JAX has no sum of booleans over windows")
    for name in ("same", "padding over the window"):
        check(lambda x, name=name: pool(x, monoid, **WINDOWS[name]), spec(2, 5, 6, 3, dtype=kind), values=[x])


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("monoid", [lax.add, lax.max, lax.min], ids=["sum", "max", "min"])
def test_wide_integers(monoid, dtype):
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, (2, 5, 6, 3), dtype=dtype, endpoint=True)
    fn = lambda x: pool(x, monoid, **WINDOWS["same"])
    check(fn, spec(2, 5, 6, 3, dtype=dtype), values=[x], double_precision=True)


SPECIAL = {"nan": np.nan, "infinity": np.inf, "minus infinity": -np.inf}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("monoid", [lax.add, lax.max, lax.min], ids=["sum", "max", "min"])
def test_special_values(monoid, value):
    x = np.random.default_rng(0).normal(size=(2, 6, 7, 3)).astype(np.float32)
    x[0, 2, 3], x[1, 5, 6], x[1, 0, 0] = value, value, value
    for name in ("strides", "same", "padding"):
        fn = lambda x, name=name: pool(x, monoid, **WINDOWS[name])
        check(fn, f32(2, 6, 7, 3), values=[x], nonfinite="exact")
    everywhere = np.full((1, 6, 7, 1), value, np.float32)
    check(lambda x: pool(x, monoid, **WINDOWS["same"]), f32(1, 6, 7, 1), values=[everywhere], nonfinite="exact")


LIBRARIES = {
    "linen average": (lambda x: nn.avg_pool(x, (2, 2), (2, 2)), IMAGES),
    "linen average, same": (lambda x: nn.avg_pool(x, (3, 3), (2, 2), "SAME"), IMAGES),
    "linen average of what is there": (
        lambda x: nn.avg_pool(x, (3, 2), (2, 1), "SAME", count_include_pad=False),
        IMAGES,
    ),
    "linen average of everything": (lambda x: nn.avg_pool(x, x.shape[1:3]), IMAGES),
    "linen maximum": (lambda x: nn.max_pool(x, (2, 2), (2, 2)), IMAGES),
    "linen one axis": (lambda x: nn.max_pool(x, (3,), (2,), "SAME"), f32("B", "T", 4)),
    "linen three axes": (lambda x: nn.avg_pool(x, (2, 2, 2), padding="SAME"), f32("B", 3, 4, 5, 2)),
    "linen without batch": (lambda x: nn.max_pool(x, (2, 3)), f32("H", "W", 4)),
    "equinox average": (eqx.nn.AvgPool2d(3, 2, padding=1), f32(3, 6, 7)),
    "equinox maximum": (eqx.nn.MaxPool2d(3, 2, padding=1, use_ceil=True), f32(3, 6, 7)),
    "equinox open sizes": (jax.grad(lambda x: (eqx.nn.MaxPool2d(2, 2)(x) ** 2).sum()), f32(3, "H", "W")),
    "equinox average of open sizes": (jax.grad(lambda x: (eqx.nn.AvgPool2d(2, 2)(x) ** 2).sum()), f32(3, "H", "W")),
    "equinox one axis": (eqx.nn.MaxPool1d(3, 2), f32(3, 9)),
    "equinox three axes": (eqx.nn.AvgPool3d(2), f32(3, 4, 5, 6)),
    "equinox adaptive": (eqx.nn.AdaptiveAvgPool2d((2, 3)), f32(3, 6, 8)),
    "vmap": (jax.vmap(eqx.nn.MaxPool2d(2, 2)), f32("B", 3, 6, 7)),
    "vmap twice": (jax.vmap(jax.vmap(lambda x: nn.max_pool(x, (2, 2), (2, 2)))), f32("B", 2, 6, 7, 3)),
}


@pytest.mark.parametrize("case", LIBRARIES.values(), ids=LIBRARIES)
def test_pooling_of_the_libraries(case):
    check(*case)


def wide(x):
    return jnp.pad(x, ((0, 0), (0, 0), (2, 2), (2, 1)))


PADDED = {
    "average": lambda x: lax.reduce_window(wide(x), 0.0, lax.add, (1, 1, 2, 2), (1, 1, 1, 1), "VALID") / 4,
    "padded twice": lambda x: lax.reduce_window(wide(x), 0.0, lax.add, (1, 1, 3, 3), (1, 1, 1, 1), "SAME") / 9,
    "largest": lambda x: lax.reduce_window(
        wide((x * 9 - 60).astype(np.int8)), np.int8(-128), lax.max, (1, 1, 3, 3), (1, 1, 1, 1), "VALID"
    ),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_stays_apart_from_the_pool_behind_it(name):
    # The optimizer of ONNX Runtime joins them, with other values; before 18 padding cannot name its axes to prevent it.
    exported = check(PADDED[name], f32(2, 3, 5, 6), opsets=[18, 21, 23])
    assert [len(node.inputs) for node in exported.model.graph if node.op_type == "Pad"] == [4]


MONOIDS = {
    "log of the sum": lambda x: lax.reduce_window(x, -jnp.inf, jnp.logaddexp, (1, 3, 2, 1), (1, 2, 1, 1), "SAME"),
    "started elsewhere": lambda x: lax.reduce_window(x, 2.0, lax.add, (1, 3, 2, 1), (1, 1, 2, 1), "VALID"),
    "started elsewhere, padded": lambda x: (
        lax.reduce_window(x, 2.0, lax.add, (1, 3, 2, 1), (1, 1, 2, 1), "SAME"),
        lax.reduce_window(x, -3.0, lax.mul, (1, 3, 2, 1), (1, 1, 2, 1), ((0, 0), (2, 1), (0, 1), (0, 0))),
        lax.reduce_window(x, 0.5, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID", base_dilation=(1, 3, 2, 1)),
        lax.reduce_window(x, 0.5, lax.min, (1, 2, 2, 1), (1, 1, 1, 1), "SAME", window_dilation=(1, 2, 1, 1)),
    ),
    "started by a value": lambda x: lax.reduce_window(
        x, x[0, 0, 0, 0] * 0 + 1, lax.mul, (1, 3, 1, 1), (1, 1, 1, 1), "SAME"
    ),
    "of pairs": lambda x: lax.reduce_window(
        (x, -x),
        (0.0, -jnp.inf),
        lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])),
        (1, 2, 3, 1),
        (1, 1, 1, 1),
        "SAME",
    ),
    "not commutative": lambda x: lax.reduce_window(
        (x, x), (1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 2, 3, 1), None, "VALID"
    ),
}


@pytest.mark.parametrize("fn", MONOIDS.values(), ids=MONOIDS)
def test_monoids(fn):
    check(fn, f32("B", 5, 6, 2), without={"float64": "the starting values are float32"})


def squared(x, pooling):
    return (pooling(x) ** 2).sum()


POOLS = {
    "maximum": lambda x: nn.max_pool(x, (2, 2), (2, 2)),
    "overlapping maximum": lambda x: nn.max_pool(x, (3, 3), (2, 2), "SAME"),
    "minimum": lambda x: -nn.max_pool(-x, (3, 2), (1, 2), "SAME"),
    "smallest": lambda x: pool(x, lax.min, (1, 2, 3, 1), (1, 2, 1, 1), "SAME"),
    "average": lambda x: nn.avg_pool(x, (3, 3), (2, 2), "SAME"),
    "average of what is there": lambda x: nn.avg_pool(x, (3, 3), (2, 2), "SAME", count_include_pad=False),
}


@pytest.mark.parametrize("pooling", POOLS.values(), ids=POOLS)
def test_gradients(pooling):
    check(jax.grad(partial(squared, pooling=pooling)), f32("B", 6, 7, 3))


@pytest.mark.parametrize("pooling", [POOLS["overlapping maximum"], POOLS["average"]], ids=["maximum", "average"])
def test_gradients_with_open_sizes(pooling):
    check(jax.grad(partial(squared, pooling=pooling)), IMAGES)


@pytest.mark.parametrize("pooling", [POOLS["overlapping maximum"], POOLS["smallest"]], ids=["maximum", "minimum"])
def test_tangents(pooling):
    check(lambda x, t: jax.jvp(pooling, (x,), (t,)), f32("B", 6, 7, 3), f32("B", 6, 7, 3))


def test_second_derivatives():
    check(
        jax.hessian(partial(squared, pooling=lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "SAME"))),
        f32(7),
    )


@pytest.mark.parametrize(
    "derivative", [jax.grad, lambda fn: lambda x: jax.jvp(fn, (x,), (x + 1,))], ids=["backwards", "forwards"]
)
def test_derivatives_choose_the_first_of_equals_and_pass_over_nans(derivative):
    x = np.random.default_rng(0).integers(0, 3, (2, 6, 7, 2)).astype(np.float32)
    x[0, 2, 2, 0], x[0, 3, 3, 1], x[1, 0, 0] = np.nan, np.nan, -np.inf
    pooling = lambda x: nn.max_pool(x, (3, 3), (2, 2), "SAME")
    check(derivative(lambda x: (pooling(x) * jnp.arange(2.0)).sum()), f32(2, 6, 7, 2), values=[x], nonfinite="exact")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_gradients_of_short_floats(dtype):
    check(jax.grad(lambda x: nn.max_pool(x, (2, 2), (2, 2)).sum()), spec("B", 6, 7, 3, dtype=dtype))


SELECTIONS = {
    "largest": (lax.ge, lax.add),
    "smallest": (lax.lt, lambda total, x: total + total + x),
    "farthest": (lambda x, y: abs(x) > abs(y), lax.max),
}


@pytest.mark.parametrize(("select", "combine"), SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("of", [f32, i32])
def test_scattering_to_what_a_window_selects(select, combine, of):
    def scattered(x, source):
        window = (1, 2, 3), (1, 2, 2), ((0, 0), (1, 0), (1, 1))
        return _select_and_scatter(x, select, *window, source, jnp.ones((), x.dtype), combine)

    check(scattered, of(2, 5, 6), of(2, 3, 3))


EMPTY = {
    "no images": (0, 6, 7, 3),
    "no rows": (2, 0, 7, 3),
    "fewer rows than the window": (2, 2, 7, 3),
    "no channels": (2, 6, 7, 0),
}


@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("monoid", [lax.add, lax.max, lax.mul], ids=["sum", "max", "product"])
def test_empty(monoid, shape):
    for padding in ("VALID", ((0, 0), (1, 2), (0, 0), (0, 0))):
        check(lambda x, padding=padding: pool(x, monoid, (1, 3, 2, 1), None, padding), f32(*shape))


def test_structure():
    average = ["Transpose -> AveragePool -> Transpose"]
    expect_graph(check(lambda x: nn.avg_pool(x, (2, 2), (2, 2)), IMAGES), average, exact=True)
    expect_graph(check(lambda x: nn.avg_pool(x, (3, 3), (2, 2), "SAME"), IMAGES), average, exact=True)
    counted = partial(nn.avg_pool, window_shape=(3, 3), padding="SAME", count_include_pad=False)
    expect_graph(check(lambda x: counted(x), IMAGES), average, exact=True)
    expect_graph(check(lambda x: counted(x), f32("B", 6, 7, 3)), average, exact=True)
    expect_graph(check(eqx.nn.AvgPool2d(2), f32(3, 6, 7)), ["Reshape -> AveragePool -> Reshape"], exact=True)
    padded = partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding="SAME")
    expect_graph(check(lambda x: padded(x), IMAGES), ["Transpose -> MaxPool -> Transpose"], exact=True)
    smallest = check(lambda x: pool(x, lax.min, (1, 2, 2, 1), None, "VALID"), IMAGES)
    expect_graph(smallest, ["Transpose -> Neg -> MaxPool -> Neg -> Transpose"], exact=True)


def test_structure_where_nan_is_kept():
    nans = "IsNaN -> Cast -> MaxPool -> Cast -> Where -> Transpose"
    largest = check(lambda x: nn.max_pool(x, (2, 2)), IMAGES, nonfinite="exact")
    expect_graph(largest, ["Transpose -> Mul -> MaxPool -> Mul -> Where", nans])
    bounded = lambda x: nn.max_pool(nn.relu6(x), (2, 2))  # which is nowhere minus infinity
    largest = check(bounded, IMAGES, nonfinite="exact")
    expect_graph(largest, ["Transpose -> MaxPool -> Where", nans], counts={"Mul": 0})


def test_what_the_runtime_does_with_nan_is_said():
    x = np.array([[1, np.nan, 3, -np.inf, -np.inf, -np.inf]], np.float32)
    fn = lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 3), (1, 3), "VALID")
    plain, exact = (jaxport.to_onnx(fn, [(1, 6)], **options) for options in ({}, {"nonfinite": "exact"}))
    np.testing.assert_array_equal(exact(x), fn(x))
    assert operators(plain).count("MaxPool") == 1
    (row,) = plain.explain().rows
    assert row.note.startswith("passes over NaN")
    assert "MaxPool" in str(plain.explain())
    assert not any(row.note for row in exact.explain().rows)


def test_an_unknown_treatment_of_nan_is_refused():
    with pytest.raises(jaxport.InvalidArgument, match="nonfinite='jax' is unknown"):
        jaxport.to_onnx(lambda x: x, [("B",)], nonfinite="jax")
