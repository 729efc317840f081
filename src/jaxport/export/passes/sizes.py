"""Shapes that are put together from sizes: those of a value that has the shape are read from it.

1. `Reshape(x, Concat(n, 8, h, w))`, where another value has the shape (n, 8, h, w): its `Shape`.
2. `Concat(Shape(x)[0:1], Shape(x)[1:2], …)`: `Shape(x)[0:2]`.

What computed the sizes, such as `h // 2`, is not needed any more. Last of all passes: what reads a value keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from jaxport.graph.editing import (
    Dim,
    Editor,
    begins_at,
    constant_of,
    dims_of,
    integer,
    is_op,
    nodes_of,
    source,
    sources,
)


@begins_at({"Concat"})
def sizes(model: ir.Model) -> str:
    """Read shapes from values that have them, in the graph, its subgraphs and its functions."""
    editor, read = Editor(model), 0
    for node in nodes_of(model, "Concat"):
        read += _whole(editor, node) or _runs(editor, node)
    return f"{read} shapes are read from values" if read else "nothing to do"


def _whole(editor: Editor, concat: ir.Node) -> bool:
    """Read the whole vector from a value; return whether there is one."""
    shape = _meaning(concat)
    known = None if shape is None else _value_of(shape, concat)
    if known is None:
        return False
    vector = concat.outputs[0]
    made = editor.insert(
        concat.graph, "Shape", [known], before=concat, like=vector, shape=[len(shape or ())], dtype=ir.DataType.INT64
    )
    vector.replace_all_uses_with(made)
    return True


def _meaning(concat: ir.Node) -> list[Dim] | None:
    """Return the elements of a vector that is the shape of what is made with it; None for other vectors."""
    uses = list(concat.outputs[0].uses())
    pieces = sources(concat)
    numbers = [constant_of(piece) for piece in pieces]
    if not uses or concat.outputs[0].is_graph_output() or any(n is not None and (n <= 0).any() for n in numbers):
        return None
    if sum(number is None for number in numbers) < 2:
        return None
    node, place = uses[0]
    filled = is_op(node, "Expand") and place == 1 and all(dim == 1 for dim in dims_of(source(node)) or ("unknown",))
    if not filled and not (is_op(node, "Reshape") and place == 1) and not is_op(node, "ConstantOfShape"):
        return None
    return dims_of(node.outputs[0])


def _value_of(shape: Sequence[Dim], before: ir.Node) -> ir.Value | None:
    """Return an input of this shape, or the last value that is computed before a node; None if there is none."""
    graph = before.graph
    if not isinstance(graph, ir.Graph) or not all(isinstance(dim, int | str) for dim in shape):
        return None
    found = None
    for value in graph.inputs:
        if dims_of(value) == shape:
            return value
    for node in graph:
        if node is before:
            return found
        found = next((value for value in node.outputs if dims_of(value) == shape and value.name), found)
    return None


def _runs(editor: Editor, concat: ir.Node) -> int:
    """Read sizes of one value that stand beside one another together; return how many runs there are."""
    pieces, made = sources(concat), 0
    runs: list[list[ir.Value]] = []
    for piece in pieces:
        if runs and _continues(runs[-1][-1], piece):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    for run in runs:
        if len(run) > 1:
            first, last = run[0].producer(), run[-1].producer()
            assert first is not None
            assert last is not None
            start, end = integer(first, "start", 0), integer(last, "end", 0)
            joined = editor.insert(
                concat.graph, "Shape", [source(first)], before=concat, like=run[0], shape=[end - start],
                dtype=ir.DataType.INT64, start=start, end=end,
            )  # fmt: skip
            run[:] = [joined]
            made += 1
    if made:
        merged = [value for run in runs for value in run]
        if len(merged) == 1:
            concat.outputs[0].replace_all_uses_with(merged[0], replace_graph_outputs=True)
        else:
            concat.resize_inputs(len(merged))
            for index, value in enumerate(merged):
                concat.replace_input_with(index, value)
    return made


def _continues(one: ir.Value, other: ir.Value) -> bool:
    """Whether two vectors are sizes of one value, the second one those that come next."""
    first, second = one.producer(), other.producer()
    if not is_op(first, "Shape") or not is_op(second, "Shape") or source(first) is not source(second):
        return False
    ends = [node.attributes.get("end") for node in (first, second)]
    starts = [integer(node, "start", 0) for node in (first, second)]
    return None not in ends and min(starts) >= 0 and integer(first, "end", 0) == starts[1]
