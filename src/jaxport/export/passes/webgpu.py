"""What WebGPU of onnxruntime-web needs to be written otherwise, as of 1.30.

1. `resized_last`: it resizes linearly as if the axes were the last two, whichever they are.
2. `without_or`: it has no Or, but And and Not.
3. `padded_channels`: it convolves 6 channels (9, 15, 18, …) to a multiple of 4 wrongly, but 3 alone. Zeros fill
   them up to a multiple of 4.

What else it computes wrongly is refused: see `wrong`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Editor, constant_of, dims_of, integer, integers, nodes_of, operand, source, substitute

INT64 = ir.DataType.INT64


def resized_last(model: ir.Model) -> str:
    """Move the axes of a linear Resize to the end, between two Transposes."""
    editor, count = Editor(model), 0
    for node in nodes_of(model, "Resize"):
        x, result = source(node), node.outputs[0]
        before, after, mode = dims_of(x), dims_of(result), node.attributes.get("mode")
        if before is None or after is None or mode is None or mode.as_string() != "linear":
            continue
        axes = integers(node, "axes") or list(range(len(before)))
        numbers = [constant_of(operand(node, index)) for index in (2, 3)]
        place = 1 if numbers[0] is None or numbers[0].size == 0 else 0
        given = numbers[place]
        if given is None or len(given) != len(axes):
            continue
        by_axis = {axis % len(before): number for axis, number in zip(axes, given.tolist(), strict=True)}
        resized = [axis for axis, number in by_axis.items() if number != (before[axis] if place else 1)]
        kept = [axis for axis in range(len(before)) if axis not in resized]
        order = [*kept, *sorted(resized)]
        if order == sorted(order):
            continue
        graph, dims = node.graph, [before[axis] for axis in order]
        turned = editor.insert(graph, "Transpose", [x], before=node, like=x, shape=dims, perm=order)
        # Of all axes: the runtime moves a Transpose across a Resize of some axes, and fails.
        if place == 0 or all(isinstance(before[axis], int) for axis in kept):
            whole = [by_axis.get(axis, before[axis] if place else 1) for axis in order]
            sizes = editor.constant(graph, np.array(whole, given.dtype), "sizes")
        else:
            first = editor.insert(
                graph, "Shape", [turned], before=node, like=result, shape=[len(kept)], dtype=INT64, end=len(kept)
            )
            last = editor.constant(graph, np.array([by_axis[axis] for axis in order[len(kept) :]], np.int64), "sizes")
            sizes = editor.insert(
                graph, "Concat", [first, last], before=node, like=result, shape=[len(order)], dtype=INT64, axis=0
            )
        attributes: dict[str, Any] = {key: attribute for key, attribute in node.attributes.items() if key != "axes"}
        operands = [turned, None, None, sizes] if place else [turned, None, sizes]
        after_turned = [after[axis] for axis in order]
        moved = editor.insert(graph, "Resize", operands, before=node, like=result, shape=after_turned, **attributes)
        back = [order.index(axis) for axis in range(len(order))]
        substitute(
            result, editor.insert(node.graph, "Transpose", [moved], before=node, like=result, shape=after, perm=back)
        )
        count += 1
    return f"{count} Resize along the last axes" if count else "nothing to do"


def without_or(model: ir.Model) -> str:
    """Write `a or b` as `not (not a and not b)`."""
    editor, found = Editor(model), nodes_of(model, "Or")
    for node in found:
        result = node.outputs[0]
        parts = [
            editor.insert(
                node.graph, "Not", [source(node, i)], before=node, like=result, shape=dims_of(source(node, i))
            )
            for i in range(2)
        ]
        both = editor.insert(node.graph, "And", parts, before=node, like=result, shape=dims_of(result))
        substitute(result, editor.insert(node.graph, "Not", [both], before=node, like=result, shape=dims_of(result)))
    return f"{len(found)} Or written as And" if found else "nothing to do"


def padded_channels(model: ir.Model) -> str:
    """Append channels of zeros to the operands of a Conv that needs them."""
    editor, count = Editor(model), 0
    for node in nodes_of(model, "Conv"):
        x, kernel = (source(node, index) for index in range(2))
        dims, sizes = dims_of(x), dims_of(kernel)
        channels, results = (sizes[1], sizes[0]) if sizes and dims else (0, 0)
        if not isinstance(channels, int) or not isinstance(results, int) or integer(node, "group", 1) != 1:
            continue
        if channels <= 3 or channels % 3 or channels % 4 == 0 or results % 4:
            continue
        more = -channels % 4
        for index, (value, shape) in enumerate(((x, dims), (kernel, sizes))):
            assert shape is not None
            array, pads = constant_of(value), [(0, more) if axis == 1 else (0, 0) for axis in range(len(shape))]
            if array is not None:
                node.replace_input_with(index, editor.constant(node.graph, np.pad(array, pads), value.name or "kernel"))
                continue
            numbers = np.array(pads, np.int64).T.ravel()
            longer = [channels + more if axis == 1 else dim for axis, dim in enumerate(shape)]
            operands = [value, editor.constant(node.graph, numbers, "pads")]
            node.replace_input_with(
                index, editor.insert(node.graph, "Pad", operands, before=node, like=value, shape=longer)
            )
        count += 1
    return f"{count} Conv with more channels" if count else "nothing to do"


def wrong(node: ir.Node) -> str:
    """Return what WebGPU computes wrongly of a node, or fails at; an empty text for nothing."""
    if node.op_type == "Expand" and dims_of(x := source(node)) == [] and x.dtype is ir.DataType.UINT8:
        return "Expand of a number of uint8"
    if node.op_type not in ("Conv", "ConvTranspose") or node.domain:
        return ""
    sizes, group = dims_of(operand(node, 1)), integer(node, "group", 1)
    if sizes is None or len(sizes) > 5:
        return f"{node.op_type} over more than three axes"
    transposed = node.op_type == "ConvTranspose"
    first, second = sizes[:2]
    if group == 1 or not (isinstance(first, int) and isinstance(second, int)):
        return ""
    given, made = (first // group, second) if transposed else (second, first // group)
    if transposed and made == 1 and given > 1:
        return "ConvTranspose with groups of several channels that give one"
    if not transposed and made > 4 and made % 4:
        return f"Conv with groups that give {made} channels, neither at most 4 nor a multiple of 4"
    return ""
