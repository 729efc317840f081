"""Say why attention to a cache of an unusual form has no GroupQueryAttention."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from jaxport.graph.editing import integer, is_op, source
from jaxport.graph.fusions.scores import unrounded
from jaxport.graph.fusions.sums import look_behind
from jaxport.graph.matching import Seen
from jaxport.onnx_facts import SCATTERS


def unusual_cache(sides: Iterable[Seen]) -> str | None:
    """Return what is unusual about the caches that keys or values are; None if they are no caches."""
    return next((reason for seen in sides if (reason := _reason(unrounded(seen))) is not None), None)


def _reason(seen: Seen) -> str | None:
    node = seen.value.producer()
    if _is_scattered(node):
        return "there is a place of its own for each row, where the operator writes one block of rows"
    if is_op(node, "Concat") and any(_is_reordered(value) for value in node.inputs):
        return "its cache is reordered before it is read, as for beams: the operator reads and writes it in its order"
    if is_op(node, "RotaryEmbedding") and _is_cache(source(node)):
        return "its keys are rotated after they are cached: the operator attends to what it caches"
    if is_op(node, "MatMul") and any(_grows(value) for value in node.inputs):
        return "its keys or values are products of what is cached, as in latent attention"
    return None


def _is_cache(value: ir.Value) -> bool:
    """Whether a value is a cache with new rows, behind the others or in place of some."""
    node = look_behind(value).producer()
    return is_op(node, "Concat", *SCATTERS) and any(map(_is_input, node.inputs))


def _is_scattered(node: ir.Node | None) -> bool:
    """Whether rows are scattered into a cache, or into one with a spare row, which is cut off."""
    if is_op(node, "Slice"):
        node = look_behind(source(node)).producer()
    if not is_op(node, *SCATTERS):
        return False
    longer = look_behind(source(node)).producer()
    return _is_input(source(longer if is_op(longer, "Concat") else node))


def _is_input(value: ir.Value | None) -> bool:
    return value is not None and look_behind(value).is_graph_input()


def _is_reordered(value: ir.Value | None) -> bool:
    """Whether a value is a cache whose sequences are taken in another order."""
    node = None if value is None else look_behind(value).producer()
    return is_op(node, "Gather") and integer(node, "axis", 0) == 0 and _is_input(source(node))


def _grows(value: ir.Value | None) -> bool:
    """Whether a value is a cache with new rows behind it."""
    node = None if value is None else look_behind(value).producer()
    return is_op(node, "Concat") and len(node.inputs) == 2 and _is_input(node.inputs[0])
