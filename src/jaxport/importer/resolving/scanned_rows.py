"""Rows that a loop reads by the number of its step: arrays that it goes over.

An export writes such a loop where there may be no rows, of which ONNX's Scan is not defined. In JAX it is a scan over the rows,
whose indices are in no doubt.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.graph.editing import is_op
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.resolving.registry import lookup

__all__ = ["pass_rows"]

DOMAIN = "jaxport"


def pass_rows(body: Body) -> None:
    """Give loops the arrays that their bodies read row by row, from the first one on or from the last one."""
    for node in body.nodes:
        if is_op(node.node, "Loop") and len(node.inputs) > 1 and node.inputs[0] is not None:
            _pass_rows(node)


def _pass_rows(node: BoundNode) -> None:
    inner, target = node.attributes.get("body"), lookup(DOMAIN, "LoopOverRows", 1)
    if not isinstance(inner, Body) or target is None:
        return
    step = inner.inputs[0]
    made = {value: other for other in inner.nodes for value in other.outputs if value is not None}
    own = {*inner.inputs, *inner.initializers, *made}
    arrays: list[ir.Value] = []
    lasts: list[ir.Value | None] = []
    rows: dict[ir.Value, BoundNode] = {}
    for other in inner.nodes:
        row, last = other.outputs[0], None
        if not is_op(other.node, "Gather") or other.attributes.get("axis", 0) != 0 or row is None:
            continue
        x, index = other.inputs
        if index is not step:
            turned = made.get(index) if index is not None else None
            if turned is None or not is_op(turned.node, "Sub") or turned.inputs[1] is not step:
                continue
            last = turned.inputs[0]
            if last is None or last in own:
                continue
        if x is not None and x not in own:
            arrays, lasts, rows = [*arrays, x], [*lasts, last], {**rows, row: other}
    if not rows:
        return
    node.target, node.inputs = target, (*node.inputs, *arrays, *lasts)
    inner.inputs = (*inner.inputs, *rows)
    inner.nodes[:] = _needed([other for other in inner.nodes if other not in rows.values()], inner)
    inner.expire()
    counts = any(step in _read(other) for other in inner.nodes) or step in inner.outputs
    node.attributes |= {"row_count": len(rows), "counts": int(counts)}


def _needed(nodes: list[BoundNode], body: Body) -> list[BoundNode]:
    """Return the nodes without those whose results nothing reads any more."""
    read, needed = {*body.outputs}, []
    for node in reversed(nodes):
        if any(value in read for value in node.outputs):
            needed.append(node)
            read |= _read(node)
    return needed[::-1]


def _read(node: BoundNode) -> set[ir.Value | None]:
    """Return the values that a node reads, those that its bodies do included."""
    return {*node.inputs, *(value for inner in node.bodies() for value in inner.captured)}
