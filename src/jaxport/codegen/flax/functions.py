"""The functions of Flax NNX that stand for calls of JAX's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jaxport.importer.values.host import HostValue
from jaxport.importer.values.namespaces import lax
from jaxport.importer.values.recording import Step


def _max_pool(step: Step) -> Step | None:
    """`lax.reduce_window(x, -inf, lax.max, …)` is `nnx.max_pool(x, …)`."""
    x, first, combine, *windows = step.args
    is_lowest = (first.item() if isinstance(first, HostValue) and not first.ndim else first) == -math.inf
    return _pool(step, "nnx.max_pool", x, *windows) if is_lowest and combine is lax.max else None


def _avg_pool(step: Step) -> Step | None:
    return _pool(step, "nnx.avg_pool", *step.args)


def _pool(
    step: Step,
    function: str,
    x: object,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: str | tuple[tuple[int, int], ...],
) -> Step | None:
    """Return a pool over the axes between the first and the last; None if others are pooled, or the window is
    dilated.
    """
    pads = ((0, 0),) * len(window) if padding == "VALID" else padding
    if step.kwargs or isinstance(pads, str):
        return None
    if any((window[axis], strides[axis], pads[axis]) != (1, 1, (0, 0)) for axis in (0, -1)):
        return None
    options: dict[str, Any] = {"strides": strides[1:-1]} if set(strides) != {1} else {}
    if any(map(any, pads)):
        options["padding"] = tuple(pads[1:-1])
    return replace(step, name=function, args=(x, window[1:-1]), kwargs=options)


FUNCTIONS: Mapping[str, Callable[[Step], Step | None]] = {
    "lax.reduce_window": _max_pool,
    "helper.avg_pool": _avg_pool,
}
"""Calls of functions of NNX by the name of JAX's function."""
