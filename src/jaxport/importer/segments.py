"""The blocks of an imported program: runs of nodes of one module, marked while a window of `blocks` is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import onnx_ir as ir

from jaxport.importer.graph import Body, Node
from jaxport.importer.modules import Module

__all__ = ["Segment", "segments"]


@dataclass(frozen=True, eq=False)
class Segment:
    """Nodes of one module that follow one another.

    Attributes:
      module: the module.
      items: its nodes, and the segments of the modules inside it.
      inputs: the values that come from before, initializers left out.
      outputs: the values that are used later.
    """

    module: Module
    items: tuple[Node | Segment, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


def segments(body: Body, inside: Mapping[Node, Sequence[Module]]) -> tuple[Node | Segment, ...]:
    """The nodes of a graph, those of modules in segments.

    Args:
      body: the graph.
      inside: the modules around each node, from the outside in.
    """
    last_use: dict[ir.Value, int] = dict.fromkeys(body.outputs, len(body.nodes))
    position = {node: index for index, node in enumerate(body.nodes)}
    for index, node in enumerate(body.nodes):
        for value in _used(node):
            last_use[value] = max(index, last_use.get(value, 0))

    def grouped(nodes: Sequence[Node], depth: int) -> tuple[Node | Segment, ...]:
        items: list[Node | Segment] = []
        for module, run in groupby(nodes, lambda node: (*inside.get(node, ()), *[None] * (depth + 1))[depth]):
            members = list(run)
            if module is None:
                items += members
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

    return grouped(body.nodes, 0)


def _used(node: Node) -> list[ir.Value]:
    used = [value for value in node.inputs if value is not None]
    return used + [value for inner in node.bodies() for value in inner.captured]
