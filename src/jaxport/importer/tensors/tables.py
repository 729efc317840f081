"""Tensors of a file that nobody trains, though nothing but their values says so: tables of sines, masks, and
windows.
"""

from __future__ import annotations

import numpy as np

TOLERANCE = 2e-3
"""The largest difference of a table from sines: an angle of a few thousand in float32 is that exact."""


def is_table(array: np.ndarray) -> bool:
    """Whether a tensor is a table of the sines and cosines of positions, or a mask that is added.

    >>> angles = np.arange(9)[:, None] * np.array([1.0, 0.1])
    >>> is_table(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)), is_table(angles)
    (True, False)
    >>> is_table(np.array([[0.0, -100.0], [0.0, 0.0]])), is_table(np.zeros((2, 2))), is_table(np.array([[0.0, 0.5]]))
    (True, False, False)
    """
    return array.dtype.kind == "f" and array.ndim > 1 and (_is_mask(array) or _is_sinusoidal(array))


def is_window(array: np.ndarray) -> bool:
    """Whether a tensor is a window of signal processing: Hann's, Hamming's or Blackman's, symmetric or periodic.

    >>> is_window(np.hanning(64)), is_window(np.blackman(9)[None, :]), is_window(np.linspace(0, 1, 64))
    (True, True, False)
    """
    window = array.ravel().astype(np.float64)
    if array.dtype.kind != "f" or window.size < 8 or max(array.shape) != window.size or np.ptp(window) < 0.5:
        return False
    for period in (window.size, window.size - 1):
        angles = 2 * np.pi / period * np.arange(window.size)[:, None] * np.arange(3)
        coefficients, *_ = np.linalg.lstsq(np.cos(angles), window, rcond=None)
        if np.abs(np.cos(angles) @ coefficients - window).max() <= TOLERANCE and coefficients[1] < 0:
            return True
    return False


def _is_mask(array: np.ndarray) -> bool:
    """Whether a tensor has two values: 0, and one that excludes a position."""
    low = array.min()
    return bool(low <= -100 and ((array == 0) | (array == low)).all() and (array == 0).any())


def _is_sinusoidal(array: np.ndarray) -> bool:
    """Whether each column of a table is the sine or the cosine of the position times a number."""
    rows = array.reshape(-1, array.shape[-1]).astype(np.float64)
    if len(rows) < 4 or np.prod(array.shape[:-2]) != 1 or not np.isin(rows[0], (0.0, 1.0)).all() or abs(rows).max() > 1:
        return False
    is_sine = rows[0] == 0
    if is_sine.all() or not is_sine.any() or (rows[0] == rows[1]).any():
        return False
    # The first step of a cosine is too flat to tell a slow angle exactly: the sine of the same angle tells it.
    sines = np.arcsin(rows[1][is_sine])
    angles = np.zeros(rows.shape[1])
    angles[is_sine] = sines
    angles[~is_sine] = [sines[np.argmin(abs(np.cos(sines) - cosine))] for cosine in rows[1][~is_sine]]
    positions = np.arange(len(rows))[:, None]
    expected = np.where(is_sine, np.sin(positions * angles), np.cos(positions * angles))
    return bool(abs(rows - expected).max() <= TOLERANCE)
