"""The blocks of an imported program: runs of nodes of one module, marked while a window of `blocks` is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import onnx_ir as ir

from jaxport.importer.modules import NodeModule, NodePlace
from jaxport.importer.resolving.graph import Body, BoundNode

__all__ = ["Item", "Nested", "Segment", "segments"]


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive nodes of one module.

    Attributes:
      module: the module.
      items: its nodes, and the segments of the modules inside it.
      inputs: the values computed before, without initializers.
      outputs: the values that are used later.
    """

    module: NodeModule
    items: tuple[Item, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


@dataclass(frozen=True, eq=False)
class Nested:
    """A node with modules inside: the items of the bodies of its branches, or of the function that it calls."""

    node: BoundNode
    bodies: Mapping[Body, tuple[Item, ...]]


Item = BoundNode | Nested | Segment


def segments(body: Body, places: Mapping[BoundNode, NodePlace], around: int = 0) -> tuple[Item, ...]:
    """Return the nodes of a graph, with those of modules grouped into segments.

    Args:
      body: the graph.
      places: the place of each of its nodes.
      around: the number of modules around the whole graph.
    """
    last_use: dict[ir.Value, int] = dict.fromkeys(body.outputs, len(body.nodes))
    position = {node: index for index, node in enumerate(body.nodes)}
    for index, node in enumerate(body.nodes):
        for value in _used(node):
            last_use[value] = max(index, last_use.get(value, 0))

    def grouped(nodes: Sequence[BoundNode], depth: int) -> tuple[Item, ...]:
        items: list[Item] = []
        for module, run in groupby(nodes, lambda node: (*places[node].modules, *[None] * (depth + 1))[depth]):
            members = list(run)
            if module is None:
                items += [_nested(node, places[node]) for node in members]
                continue
            made = dict.fromkeys(value for node in members for value in node.outputs if value is not None)
            end = position[members[-1]]
            inputs = dict.fromkeys(value for node in members for value in _used(node))
            items.append(
                Segment(
                    module,
                    grouped(members, depth + 1),
                    tuple(value for value in inputs if value not in made and value not in body.initializers),
                    tuple(value for value in made if last_use.get(value, 0) > end),
                )
            )
        return tuple(items)

    return grouped(body.nodes, around)


def _nested(node: BoundNode, place: NodePlace) -> BoundNode | Nested:
    """Return the node, with the items of its bodies if these have modules of their own."""
    bodies = {body: segments(body, places, len(place.modules)) for body, places in place.bodies.items()}
    with_modules = {
        body: items for body, items in bodies.items() if not all(isinstance(item, BoundNode) for item in items)
    }
    return Nested(node, with_modules) if with_modules else node


def _used(node: BoundNode) -> list[ir.Value]:
    used = [value for value in node.inputs if value is not None]
    return used + [value for inner in node.bodies() for value in inner.captured]
