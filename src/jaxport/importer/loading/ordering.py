"""Topological order of nodes: ONNX requires it, and many files violate it."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import onnx_ir as ir

from jaxport.errors import AGAIN, ModelError
from jaxport.graph.editing import bodies
from jaxport.importer.resolving.graph import describe


def in_order(model: ir.Model, own: bool = True) -> ir.Model:
    """Return the model with the nodes of its graphs and functions in topological order; itself if they are.

    Args:
      model: the model.
      own: whether it may be modified; otherwise a copy is sorted.

    Raises:
      ModelError: the nodes form a cycle.

    >>> x, a = ir.val("x"), ir.val("a")
    >>> used, made = ir.node("Neg", [a]), ir.node("Relu", [x], outputs=[a])
    >>> graph = ir.Graph([x], used.outputs, nodes=[used, made])
    >>> [node.op_type for node in in_order(ir.Model(graph, ir_version=10)).graph]
    ['Relu', 'Neg']
    """
    if all(_is_sorted(graph, set()) for graph in _graphs(model)):
        return model
    model = model if own else ir.from_proto(ir.to_proto(model))  # `clone` requires them in order
    for graph in _graphs(model):
        try:
            graph.sort()
        except ValueError as error:
            raise _cyclic(graph) from error
    return model


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from (model.graph, *(function.graph for function in model.functions.values()))


def _is_sorted(graph: ir.Graph, made: set[ir.Value]) -> bool:
    """Whether each node follows the producers of its values; `made` are the values of outer graphs."""
    for node in graph:
        if any(value is not None and value.producer() is not None and value not in made for value in node.inputs):
            return False
        if not all(_is_sorted(inner, made) for inner in bodies(node)):
            return False
        made.update(node.outputs)
    return True


def _cyclic(graph: ir.Graph) -> ModelError:
    """Return the error for a graph with a cycle, which names its nodes."""
    sorter: TopologicalSorter[ir.Node] = TopologicalSorter()
    for node in graph.all_nodes():
        sorter.add(node, *(maker for value in node.inputs if value is not None and (maker := value.producer())))
        sorter.add(node, *(inner for body in bodies(node) for inner in body))
    try:
        sorter.prepare()
        nodes: list[ir.Node] = []
    except CycleError as error:
        nodes = error.args[1]
    names = [next((value.name or "" for value in node.outputs), "") for node in nodes]
    return ModelError(
        "the nodes form a cycle",
        where=describe(nodes[0]) if nodes else f"graph `{graph.name}`",
        why=f"each of these is used to compute the next: {', '.join(f'`{name}`' for name in names[:8])}",
        instead=AGAIN,
    )
