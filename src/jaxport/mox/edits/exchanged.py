"""Weights that edits compute in the place of parameters (quantized ones, for example), as values of the model before
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from jaxport.blocks.callables.values import is_tracer
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array
from jaxport.jaxprs.walk import producers
from jaxport.mox.edits.lora import TARGET
from jaxport.mox.expressions import Mox
from jaxport.mox.programs.tree import Node
from jaxport.mox.querying.calls import TracedCall, call_of
from jaxport.mox.querying.origins import places_of


def exchanged_weights(mox: Mox) -> dict[str, Array]:
    """Return what edits compute in the places of parameters that the program does not hold any more, by their paths.

    Raises:
      InvalidArgument: as `exchanged_weight`.
    """
    nodes = [node for node in mox.tree.nodes if node.block is not None]
    places = places_of(mox, nodes)
    paths = dict.fromkeys(path for node in nodes if node.block is not None for path in node.block.exchanged.values())
    return {path: exchanged_weight(mox, path) for path in paths if path not in places}


def exchanged_weight(mox: Mox, path: str) -> Array:
    """Return what edits compute in the place of a parameter; of a stack of layers, for each of them.

    Raises:
      InvalidArgument: it is another value in another call, or depends on the arguments; or an edit of the layer does
        more than to exchange its parameters.
    """
    nodes = [node for node in mox.tree.nodes if _takes(node, path)]
    outer = [node for node in nodes if not any(_takes(around, path) for around in node.around)]
    around = {edit for node in nodes for edit in _edits_around(node, path)}
    inner = [node for node in nodes if not any(node in other.around for other in nodes)]
    if not all(map(_only_exchanges, around)) or any(node.block.edited for node in inner if node.block is not None):
        raise _refused(path, "an edit of the layer does more than to exchange its parameters")
    if len({frozenset(_adapters_around(node, path)) for node in inner}) > 1:
        raise _refused(path, "not all calls of the layer have the same adapters")
    values: list[Any] = [_value(mox, node, path) for node in outer]
    if any(value is None for value in values):
        raise _refused(path, "its value depends on the arguments of the program")
    if len(values) > 1 and any(map(is_tracer, values)):
        raise _refused(path, "several calls compute it, and under a trace these values cannot be compared")
    if any(not jnp.array_equal(value, values[0]) for value in values[1:]):
        raise _refused(path, "it has other values in other calls")
    return values[0]


def _takes(node: Node, path: str) -> bool:
    return node.block is not None and path in node.block.named.values()


def _adapters_around(node: Node, path: str) -> Iterator[tuple[str, ...]]:
    """Yield the parameters of each adapter of a weight around a block."""
    for around in (node, *node.around):
        if _adapts(around, path) and around.block is not None:
            yield tuple(around.block.config["new_params"].values())


def _adapts(node: Node, path: str) -> bool:
    block = node.block
    if block is None or block.target != TARGET:
        return False
    return path in (weight for weight, *_ in block.config["plans"])


def _edits_around(node: Node, path: str) -> Iterator[Node]:
    """Yield the edits of a layer from that which computes a parameter, or is its outermost adapter, to the inside."""
    edits: list[Node] = []
    last, is_given = 0, True
    for around in node.around:
        block = around.block
        if block is None or block.path != (node.block.path if node.block is not None else ""):
            break
        if _adapts(around, path):
            last = len(edits)
        elif block.target != TARGET and block.edited and block.kind == "function":
            edits.append(around)
        if is_given and not _takes(around, path):
            is_given, last = False, len(edits)
    yield from edits[:last]


def _only_exchanges(node: Node) -> bool:
    """Whether an edit calls the original once, with its own arguments, and returns what that returns."""
    jaxpr, block = node.equation.params["jaxpr"].jaxpr, node.block
    if block is None:
        return False
    count, results = len(block.arguments), list(jaxpr.outvars[: block.results])
    calls = [equation for equation in producers(jaxpr).values() if "block" in equation.params]
    return any(
        list(call.invars[:count]) == list(jaxpr.invars[:count]) and list(call.outvars[: len(results)]) == results
        for call in calls
    )


def _value(mox: Mox, node: Node, path: str) -> Array | None:
    match = call_of(TracedCall, mox, node)
    if not match.lengths:
        return match.computed(path)
    values: list[Any] = [match.step(step).computed(path) for step in range(math.prod(match.lengths))]
    if any(value is None for value in values):
        return None
    return jnp.stack(values).reshape(*match.lengths, *values[0].shape)


def _refused(path: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the adapters of `{path}` cannot be merged into it",
        where="`merge_lora`",
        why=why,
        instead="use `mox.params` and `mox.apply` instead",
    )
