"""What ONNX leaves open about integers, as JAX's compiled code decides it; both directions fold constants by it."""

from __future__ import annotations

import numpy as np


def quotient(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Divide integers, rounding towards zero; by zero it is all ones, and the least number by -1 is itself.

    >>> quotient(np.array([7, -7, 7, -128], np.int8), np.array([2, 2, 0, -1], np.int8))
    array([   3,   -3,   -1, -128], dtype=int8)
    """
    left, right = np.asarray(left), np.asarray(right)
    divisor = np.where(right == 0, right.dtype.type(1), right)
    with np.errstate(over="ignore"):
        rounded_down, rest = np.floor_divide(left, divisor), np.remainder(left, divisor)
    rounded = rounded_down + ((rest != 0) & ((left < 0) != (divisor < 0))).astype(rounded_down.dtype)
    return np.where(right == 0, np.invert(right), rounded)
