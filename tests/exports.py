"""What tests of exports share: an export of positional specs, and what is in the model."""

from __future__ import annotations

import jaxport
from jaxport.testing import expect_graph


def export(fn, *specs, **options):
    return jaxport.to_onnx(fn, list(specs), **options)


def operators(exported, *, nested: bool = False) -> list[str]:
    """The operators of the graph in order; if `nested`, those of its subgraphs too."""
    graph = exported.model.graph
    return [node.op_type for node in (graph.all_nodes() if nested else graph)]


def weight_bytes(exported) -> int:
    return sum(value.const_value.nbytes for value in exported.model.graph.initializers.values())


def expect_exactly(fn, specs, paths) -> None:
    """Assert that the graph of a function consists of these paths and of nothing else."""
    expect_graph(jaxport.to_onnx(fn, specs), paths, exact=True)
