"""Reductions over axes."""

from __future__ import annotations

from typing import Any

from jaxport.importer.namespaces import jnp, nn
from jaxport.importer.registry import Host, op

REDUCTIONS: dict[str, Any] = {
    "ReduceSum": jnp.sum,
    "ReduceMean": jnp.mean,
    "ReduceProd": jnp.prod,
    "ReduceMax": jnp.max,
    "ReduceMin": jnp.min,
    "ReduceL1": lambda x, **over: jnp.sum(jnp.abs(x), **over),
    "ReduceL2": lambda x, **over: jnp.sqrt(jnp.sum(x * x, **over)),
    "ReduceLogSum": lambda x, **over: jnp.log(jnp.sum(x, **over)),
    "ReduceLogSumExp": nn.logsumexp,
    "ReduceSumSquare": lambda x, **over: jnp.sum(x * x, **over),
}
AXES_INPUT_SINCE = {"ReduceSum": 13}


def _register(name: str, reduced: Any) -> None:
    """Both forms of a reduction: with the axes as an attribute, and as an input."""
    since = AXES_INPUT_SINCE.get(name, 18)

    @op(name, since=1, until=since - 1)
    def with_attribute(data, *, axes=None, keepdims=1):
        return reduced(data, axis=axes, keepdims=bool(keepdims))

    @op(name, since=since)
    def with_input(data, axes: Host | None = None, *, keepdims=1, noop_with_empty_axes=0):
        if axes is None or not axes.size:
            return data if noop_with_empty_axes else reduced(data, axis=None, keepdims=bool(keepdims))
        return reduced(data, axis=tuple(axes), keepdims=bool(keepdims))


for _name, _reduced in REDUCTIONS.items():
    _register(_name, _reduced)
