"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxport.importer.ops.arithmetic import safe_root
from jaxport.importer.resolving.registry import Host, op
from jaxport.importer.values.host import HostValue, Tensor
from jaxport.importer.values.namespaces import jnp, nn
from jaxport.jaxprs import PythonFunction


def _of_nothing(x: Tensor, limit: str) -> dict[str, bool | float]:
    """Return the option by which the maximum or minimum of an empty array is the limit of its type."""
    if 0 not in x.shape:
        return {}
    if x.dtype.kind == "b":
        return {"initial": limit == "max"}
    return {
        "initial": getattr(np.iinfo(x.dtype), limit)
        if x.dtype.kind in "iu"
        else float("-inf" if limit == "min" else "inf")
    }


REDUCTIONS: dict[str, PythonFunction] = {
    "ReduceSum": jnp.sum,
    "ReduceMean": jnp.mean,
    "ReduceProd": jnp.prod,
    "ReduceMax": lambda x, **over: (
        jnp.any(x, **over) if x.dtype == bool else jnp.max(x, **over, **_of_nothing(x, "min"))
    ),
    "ReduceMin": lambda x, **over: (
        jnp.all(x, **over) if x.dtype == bool else jnp.min(x, **over, **_of_nothing(x, "max"))
    ),
    "ReduceL1": lambda x, **over: jnp.sum(jnp.abs(x), **over),
    "ReduceL2": lambda x, **over: safe_root(jnp.sum(x * x, **over)),
    "ReduceLogSum": lambda x, **over: jnp.log(jnp.sum(x, **over)),
    "ReduceLogSumExp": nn.logsumexp,
    "ReduceSumSquare": lambda x, **over: jnp.sum(x * x, **over),
}
AXES_INPUT_SINCE = {"ReduceSum": 13}

PER_ELEMENT: dict[str, PythonFunction] = {
    "ReduceL1": jnp.abs,
    "ReduceL2": jnp.abs,
    "ReduceLogSum": jnp.log,
    "ReduceSumSquare": lambda x: x * x,
}
"""What the reductions over no axis do to each element, if they do anything."""


def _over(x: Tensor, axes: Sequence[int] | HostValue | None) -> tuple[int, ...] | None:
    """Return the axes to reduce, or None for all: if none are given, and always for a scalar."""
    return tuple(axes) if axes is not None and len(axes) and x.ndim else None


def _register(name: str, reduced: PythonFunction) -> None:
    """Register both forms of a reduction: with the axes as an attribute, and as an input."""
    since = AXES_INPUT_SINCE.get(name, 18)

    @op(name, since=1, until=since - 1)
    def with_attribute(data, *, axes=None, keepdims=1):
        return reduced(data, axis=_over(data, axes), keepdims=bool(keepdims))

    @op(name, since=since)
    def with_input(data, axes: Host | None = None, *, keepdims=1, noop_with_empty_axes=0):
        if noop_with_empty_axes and (axes is None or not axes.size):
            return PER_ELEMENT.get(name, lambda x: x)(data)
        return reduced(data, axis=_over(data, axes), keepdims=bool(keepdims))


for _name, _reduced in REDUCTIONS.items():
    _register(_name, _reduced)
