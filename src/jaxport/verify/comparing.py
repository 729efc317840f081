"""Comparing two arrays: what they may differ by, and by how much they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: By how many units of its precision a float may differ, by the bits of its type: relative to each element, and to
#: the largest one. Both sides sum in orders of their own, and an error grows on its way through a model; the narrow
#: types are rounded after each operation on both sides, so that a few steps are much.
UNITS: dict[int, tuple[float, float]] = {4: (1, 1), 8: (1, 1), 16: (8, 4), 32: (1e3, 1e2), 64: (1e5, 1e4)}


@dataclass(frozen=True)
class Difference:
    """By how much a result differs from what is expected.

    Attributes:
      problem: why they do not agree, or nothing where they do.
      absolute: the largest difference of two elements.
      relative: the same in units of the largest element that is expected.
      ulps: the largest number of floats that lie between two elements; None for integers.
      finite: the share of elements that are finite on both sides, which the figures are about.
    """

    problem: str = ""
    absolute: float = 0.0
    relative: float = 0.0
    ulps: int | None = None
    finite: float = 1.0


def tolerances(dtype: Any) -> tuple[float, float]:
    """How much an element may differ: relative to itself, and relative to the largest element.

    >>> tolerances(np.int32)
    (0.0, 0.0)
    """
    if not jnp.issubdtype(dtype, np.inexact):
        return 0.0, 0.0
    precision = jnp.finfo(dtype)
    relative, scaled = UNITS[precision.bits]
    return relative * float(precision.eps), scaled * float(precision.eps)


def difference(expected: Any, actual: Any, rtol: float | None = None, atol: float | None = None) -> Difference:
    """Compare what is expected with what was computed: dtype, shape, and every element.

    NaN agrees with NaN, and an infinity with the same infinity, also as a part of a complex number. Integers and
    booleans are compared exactly, unless tolerances are given.

    Args:
      expected, actual: arrays.
      rtol: how much an element may differ relative to itself; by default what its dtype justifies.
      atol: how much any element may differ; by default what the dtype justifies for the largest element.

    >>> difference(np.float32([1, 2]), np.float32([1, 3])).problem
    '1 of 2 elements differ, by up to 1 where 2 is expected'
    """
    expected, actual = np.asarray(expected), np.asarray(actual)
    if actual.dtype != expected.dtype:
        return Difference(f"the dtype is {actual.dtype}, {expected.dtype} is expected")
    if actual.shape != expected.shape:
        return Difference(f"the shape is {actual.shape}, {expected.shape} is expected")
    if expected.size == 0 or expected.dtype == jax.dtypes.float0:  # neither has values
        return Difference()
    inexact = jnp.issubdtype(expected.dtype, np.inexact)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # NumPy warns of NaN in the narrow types
        a, b = actual.astype(wide), expected.astype(wide)
        same = (actual == expected) | ((actual != actual) & (expected != expected))
    finite = np.isfinite(a) & np.isfinite(b) if inexact else np.ones(expected.shape, bool)
    if wide is np.complex128 and (infinite := ~finite & ~same).any():
        of_expected, of_actual = (np.stack([x.real, x.imag])[:, infinite] for x in (expected, actual))
        parts = difference(of_expected, of_actual, rtol, atol)
        if parts.problem:
            return parts
        same |= infinite
    a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    error, size = np.abs(a - b), np.abs(b)
    largest = float(size.max())
    relative, scaled = tolerances(expected.dtype)
    rtol = relative if rtol is None else rtol
    atol = scaled * largest if atol is None else atol
    allowed = atol + rtol * size
    wrong = ~same & ~(
        finite & (error <= allowed) & (allowed > 0)
    )  # large integers may differ by less than float64 sees
    return Difference(
        _problem(wrong, error, finite, expected, actual) if wrong.any() else "",
        absolute=float(error.max()),
        relative=float(error.max() / largest) if largest else float(error.max()),
        ulps=_ulps(expected[finite], actual[finite]) if inexact and expected.dtype.kind != "c" else None,
        finite=float(finite.mean()),
    )


def _problem(wrong: np.ndarray, error: np.ndarray, finite: np.ndarray, expected: np.ndarray, actual: np.ndarray) -> str:
    count = f"{int(wrong.sum())} of {wrong.size} elements differ"
    special = np.flatnonzero(wrong & ~finite)
    if special.size:
        where = special[0]
        return f"{count}; one is {actual.flat[where]} where {expected.flat[where]} is expected"
    where = int(np.argmax(np.where(wrong, error, -1)))
    return f"{count}, by up to {error.flat[where]:.3g} where {expected.flat[where]:.6g} is expected"


def _ulps(expected: np.ndarray, actual: np.ndarray) -> int:
    """The largest number of steps from one float to the next one between two elements."""
    if expected.size == 0:
        return 0
    width = expected.dtype.itemsize
    ranks = []
    for array in (expected, actual):
        bits = np.ascontiguousarray(array).view(f"i{width}").astype(object if width == 8 else np.int64)
        # The bits of a negative float grow with its size: let them grow with its value.
        ranks.append(np.where(bits < 0, -(2 ** (8 * width - 1)) - bits, bits))
    return int(np.abs(ranks[0] - ranks[1]).max())
