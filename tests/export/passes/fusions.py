"""What the tests of fusions share."""

from __future__ import annotations

import collections

import jaxport


def operators(exported: jaxport.Exported) -> dict[str, int]:
    """How many nodes there are of each operator, in the graph, its subgraphs and its functions."""
    graphs = [exported.model.graph, *(function.graph for function in exported.model.functions.values())]
    return dict(collections.Counter(node.op_type for graph in graphs for node in graph.all_nodes()))


def report(exported: jaxport.Exported, name: str) -> str:
    """What a pass said."""
    return next(one.text for one in exported.pass_reports if one.name == name)
