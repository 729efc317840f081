"""What the walk and the passes write in a newer version of an operator, in the version of the model's opset."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Editor, dims_of, integer, nodes_of, source, substitute

#: The opset from which Shape returns some of the sizes.
PARTS_OF_SHAPES = 15
END = np.iinfo(np.int64).max


def passes(opset: int) -> list[Callable[[ir.Model], str]]:
    """Return the last passes of a model of an opset."""
    return [sliced_shapes] if opset < PARTS_OF_SHAPES else []


def sliced_shapes(model: ir.Model) -> str:
    """Write a Shape of some axes as a Slice of the whole shape, which is an attribute of newer opsets."""
    parts = [node for node in nodes_of(model, "Shape") if node.attributes]
    editor = Editor(model)
    for node in parts:
        result = node.outputs[0]
        whole = editor.insert(node.graph, "Shape", [source(node)], before=node, like=result, shape=None)
        bounds = [integer(node, "start", 0), integer(node, "end", END)]
        operands = [whole, *(editor.constant(node.graph, np.array([bound]), "bound") for bound in bounds)]
        part = editor.insert(node.graph, "Slice", operands, before=node, like=result, shape=dims_of(result))
        substitute(result, part)
    return f"{len(parts)} Shape sliced"
