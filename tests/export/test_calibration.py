"""Ranges found on batches: by their extremes, by percentiles, and by the divergence of the distributions."""

from __future__ import annotations

import contextlib
import io

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.export.calibration import BINS, LEVELS, Calibration, Histogram, _divergence

GENERATOR = np.random.default_rng(3)
WEIGHTS = GENERATOR.normal(size=(64, 32)).astype(np.float32) / 8
KERNEL = GENERATOR.normal(size=(3, 3, 3, 8)).astype(np.float32) / 4
BATCHES = [GENERATOR.normal(size=(32, 64)).astype(np.float32) for _ in range(4)]

DISTRIBUTIONS = {
    "normal": GENERATOR.normal(size=99_991),
    "outliers": np.concatenate([GENERATOR.normal(size=99_991), GENERATOR.uniform(-20, 20, 20)]),
    "one side": np.abs(np.concatenate([GENERATOR.normal(size=50_000), GENERATOR.uniform(0, 12, 9)])),
    "long tails": GENERATOR.standard_t(4, size=99_991),
    "shifted": GENERATOR.normal(2, 1, size=50_000),
}


def histogram(*batches):
    found = Histogram()
    for batch in batches:
        found.add(np.asarray(batch, np.float32))
    return found


def of_onnxruntime(array, method, percentile=None):
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    with contextlib.redirect_stdout(io.StringIO()):
        collector = calibrate.HistogramCollector(method, False, BINS, LEVELS, percentile, None)
        collector.collect({"x": array.astype(np.float32)})
        return [float(end) for end in collector.compute_collection_result()["x"][:2]]


@pytest.mark.parametrize("percentile", [99.0, 99.99, 100.0])
@pytest.mark.parametrize("array", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_percentiles_are_those_of_onnxruntime(array, percentile):
    found = histogram(array)
    width = 2 * found.limit / BINS
    np.testing.assert_allclose(
        found.percentile(percentile), of_onnxruntime(array, "percentile", percentile), rtol=0, atol=1.01 * width
    )


@pytest.mark.parametrize("array", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_the_range_of_least_divergence_is_that_of_onnxruntime(array):
    """The same range, or one that is as good: bins without elements separate the two."""
    found = histogram(array)
    width = 2 * found.limit / BINS
    expected, actual = of_onnxruntime(array, "entropy"), found.entropy()
    if np.abs(np.subtract(expected, actual)).max() > 2.01 * width:
        halves = [round(max(np.abs(ends)) / width) for ends in (expected, actual)]
        theirs, ours = (
            min(_divergence(found.counts, BINS // 2 - h, BINS // 2 + h + 1) for h in range(half - 1, half + 1))
            for half in halves
        )
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_zeros_do_not_narrow_the_range():
    """After a Relu half of the elements are zero, which every quantization represents."""
    array = np.concatenate([GENERATOR.normal(size=50_000), [15, 18]])
    with_zeros, without = histogram(np.maximum(array, 0)).entropy(), histogram(array[array > 0]).entropy()
    assert with_zeros == pytest.approx(without, abs=1e-3)
    assert with_zeros[1] > 4


def test_a_histogram_grows_in_range_and_not_in_memory():
    batches = [GENERATOR.normal(scale=2.0**power, size=20_000) for power in (-3, 5, 0, 8)]
    found, whole = histogram(*batches), np.concatenate(batches)
    assert found.counts.shape == (BINS,)
    assert found.counts.sum() == whole.size
    assert found.limit < 2 * np.abs(whole).max()
    expected = np.quantile(whole, [0.005, 0.995])
    np.testing.assert_allclose(found.percentile(99.0), expected, rtol=0, atol=4 * found.limit / BINS)


@pytest.mark.parametrize("batch", [np.zeros(5), np.full(5, 3.0), np.float32([-1e-40, 2e-40]), np.float32([3e38])])
def test_few_values_have_a_range(batch):
    found = histogram(batch, batch)
    for least, greatest in (found.percentile(99.99), found.entropy(), found.percentile(100)):
        assert (least, greatest) == (pytest.approx(np.float32(batch).min()), pytest.approx(np.float32(batch).max()))


@pytest.mark.parametrize(("method", "options"), [("percentile", {"percentile": 99.9}), ("entropy", {})])
def test_an_outlier_does_not_cost_the_others_their_resolution(method, options):
    outlier = BATCHES[0].copy()
    outlier[0, 0] = 500
    batches = [outlier, *BATCHES[1:]]
    errors = {}
    for calibration in (Calibration(batches), Calibration(batches, method, **options)):
        exported = jaxport.to_onnx(lambda x: x @ WEIGHTS, [("B", 64)], precision="int8", calibration=calibration)
        errors[calibration.method] = np.abs(exported(BATCHES[1]) - BATCHES[1] @ WEIGHTS).max()
    assert errors[method] < 0.2 * errors["minmax"]


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_convolutions_are_calibrated_by_each_method(method):
    def model(x):
        dims = ("NHWC", "HWIO", "NHWC")
        return jnp.maximum(lax.conv_general_dilated(x, KERNEL, (1, 1), "SAME", dimension_numbers=dims), 0).mean((1, 2))

    images = [GENERATOR.normal(size=(4, 8, 8, 3)).astype(np.float32) for _ in range(2)]
    calibration = Calibration(images, method=method)
    exported = jaxport.to_onnx(model, [("B", 8, 8, 3)], precision="int8", calibration=calibration)
    assert "1 Conv of 8 bits" in exported.pass_reports[-1].text
    assert exported.verify([images[0]], atol=0.05).ok


def test_batches_alone_are_calibrated_by_their_extremes():
    models = [
        jaxport.to_onnx(lambda x: x @ WEIGHTS, [("B", 64)], precision="int8", calibration=given)
        for given in (iter(BATCHES), Calibration(BATCHES), Calibration(BATCHES, "percentile", 100))
    ]
    for model in models[1:]:
        assert np.array_equal(model(BATCHES[0]), models[0](BATCHES[0]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "mean"}, "unknown method 'mean'"),
        ({"method": "percentile", "percentile": 50}, "percentile=50 is out of range"),
        ({"method": "percentile", "percentile": 100.5}, "percentile=100.5 is out of range"),
        ({"method": "percentile", "percentile": float("nan")}, "percentile=nan is out of range"),
        ({"method": "entropy", "percentile": 99.9}, '`percentile` does not apply to the method "entropy"'),
        ({"batches": []}, "`calibration` has no batches"),
        ({"batches": [np.float32([[1, np.nan]])]}, "a calibration batch contains NaN"),
        ({"batches": [({"a": np.ones(2)}, jnp.float32([np.nan]))]}, "a calibration batch contains NaN"),
    ],
)
def test_bad_calibrations_are_refused(options, text):
    with pytest.raises(jaxport.InvalidArgument, match=text):
        Calibration(**{"batches": BATCHES, **options})


def test_batches_with_nan_are_refused_before_the_function_is_traced():
    def untouched(x):
        raise AssertionError

    with pytest.raises(jaxport.InvalidArgument, match="contains NaN"):
        jaxport.to_onnx(untouched, [("B", 2)], precision="int8", calibration=[np.float32([[np.nan, 1]])])
