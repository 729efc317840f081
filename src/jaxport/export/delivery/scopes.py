"""The last check of every export: each value that a graph uses is one that it can see."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from jaxport.errors import ExportError
from jaxport.graph.editing import bodies, operator_name, roots


def check_scopes(model: ir.Model) -> None:
    """Check that each value a graph uses is its own, or one of the graphs around it, and made before it is used.

    Raises:
      ExportError: a pass or a rule has broken that: no runtime loads such a model.
    """
    problem = next(unseen(model), None)
    if problem is not None:
        raise ExportError(
            f"the graph is not valid: {problem}",
            why="a rule or a graph pass uses a value that is not available there; this is a bug in it, not in your "
            "model",
            instead="please report it with the model; `passes=()` exports the graph as the rules emitted it",
        )


def unseen(model: ir.Model) -> Iterator[str]:
    """Yield a description of each value that is used where it is not visible, and each name that two values have."""
    for root in roots(model):
        yield from _unseen(root, set(), {}, f"`{root.name or 'the graph'}`")


def _unseen(graph: ir.Graph, seen: set[ir.Value], names: dict[str, ir.Value], place: str) -> Iterator[str]:
    """Yield the problems of one graph, which sees the values `seen`, and those of the graphs in it."""
    own: list[ir.Value] = []

    def made(values: Iterator[ir.Value] | list[ir.Value]) -> Iterator[str]:
        for value in values:
            seen.add(value)
            own.append(value)
            if value.name and names.setdefault(value.name, value) is not value:
                yield f"two values are called `{value.name}` in {place}"

    # An initializer may also be an input: its default.
    yield from made(list(dict.fromkeys([*graph.inputs, *graph.initializers.values()])))
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in seen:
                yield (
                    f"`{node.name or operator_name(node)}` in {place} uses `{value.name}`, which is made elsewhere "
                    "or later"
                )
        for body in bodies(node):
            yield from _unseen(body, seen, names, f"`{body.name or 'a body'}` of `{node.name or node.op_type}`")
        yield from made([output for output in node.outputs if output.name])
    inside = set(own)
    for value in graph.outputs:
        if value not in inside:
            yield f"`{value.name}` is a result of {place}, which does not make it"
    seen.difference_update(own)
    for value in own:
        if value.name and names.get(value.name) is value:
            del names[value.name]
