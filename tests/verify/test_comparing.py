"""What counts as a difference, and its figures."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from jaxport.verify import difference

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("expected", "actual", "problem"),
    [
        (np.float32([1, 2]), np.float64([1, 2]), "the dtype is float64, float32 is expected"),
        (np.float32([1, 2]), np.float32([[1, 2]]), "the shape is (1, 2), (2,) is expected"),
        (np.float32([1, 2]), np.float32([1, 2.1]), "1 of 2 elements differ, by up to 0.1 where 2 is expected"),
        (np.float32([NAN, 1]), np.float32([0, 1]), "1 of 2 elements differ; one is 0.0 where nan is expected"),
        (np.float32([0, 1]), np.float32([NAN, 1]), "1 of 2 elements differ; one is nan where 0.0 is expected"),
        (np.float32([INF, 1]), np.float32([-INF, 1]), "1 of 2 elements differ; one is -inf where inf is expected"),
        (np.int32([5, 6]), np.int32([5, 7]), "1 of 2 elements differ, by up to 1 where 6 is expected"),
        (np.bool_([True]), np.bool_([False]), "1 of 1 elements differ, by up to 1 where 1 is expected"),
        (np.int64([2**60]), np.int64([2**60 + 1]), "1 of 1 elements differ, by up to 0 where 1.15292e+18 is expected"),
        (np.complex64([1 + 1j]), np.complex64([1 + 2j]), "1 of 1 elements differ, by up to 1 where 1+1j is expected"),
        (
            ml_dtypes.bfloat16(1) * np.ones(2, ml_dtypes.bfloat16),
            np.array([1, 2], ml_dtypes.bfloat16),
            "1 of 2 elements differ, by up to 1 where 1 is expected",
        ),
    ],
)
def test_a_difference_is_told(expected, actual, problem):
    assert difference(expected, actual).problem == problem


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (np.float32([NAN, INF, -INF, 0.0]), np.float32([NAN, INF, -INF, -0.0])),
        (np.float32([1e6, 1e-3]), np.float32([1e6, 1e-3 + 1])),  # small beside the largest element
        (np.float32(1), np.nextafter(np.float32(1), np.float32(2))),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)),
        (np.array([1, 2], ml_dtypes.float8_e4m3fn), np.array([1, 2.25], ml_dtypes.float8_e4m3fn)),
        (np.float16([100]), np.float16([100.2])),
        (np.complex64([NAN + 1j]), np.complex64([NAN + 2j])),
        (np.array([1, -2], ml_dtypes.int4), np.array([1, -2], ml_dtypes.int4)),
    ],
)
def test_what_a_dtype_justifies_agrees(expected, actual):
    assert difference(expected, actual).problem == ""


@pytest.mark.parametrize(
    ("options", "agrees"),
    [({}, False), ({"rtol": 0.1}, True), ({"rtol": 0.01, "atol": 0.0}, False), ({"rtol": 0.0, "atol": 0.2}, True)],
)
def test_given_tolerances_replace_the_default_ones(options, agrees):
    assert (difference(np.float32([1, 2]), np.float32([1, 2.1]), **options).problem == "") is agrees
    assert (difference(np.int32([100]), np.int32([101]), rtol=0.1).problem == "") is True


def test_the_figures():
    found = difference(np.float32([1, -4, NAN]), np.float32([1.5, -4, NAN]), rtol=1)
    assert (found.absolute, found.relative, found.finite) == (0.5, 0.125, pytest.approx(2 / 3))
    assert found.ulps == 2**22


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e5m2])
def test_ulps_are_steps_between_floats(dtype):
    steps = np.dtype(f"u{np.dtype(dtype).itemsize}").type(3)
    one = np.ones(1, dtype)
    next_ones = (one.view(steps.dtype) + steps).view(dtype)
    assert difference(one, next_ones, rtol=9).ulps == 3
    assert difference(-one, -next_ones, rtol=9).ulps == 3
    assert difference(np.zeros(1, dtype), -np.zeros(1, dtype)).ulps == 0
    tiny = np.ones(1, steps.dtype).view(dtype)
    assert difference(tiny, -tiny, atol=1).ulps == 2


def test_a_complex_number_with_an_infinite_part():
    infinite = np.array([complex(np.inf, 1), 1], np.complex64)
    assert not difference(infinite, infinite + np.complex64(1e-7j)).problem
    assert difference(infinite, np.conj(infinite)).problem == "1 of 2 elements differ, by up to 2 where 1 is expected"
