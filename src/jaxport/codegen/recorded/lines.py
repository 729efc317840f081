"""Convolutions over one axis, which TensorFlow writes as those of images that are one pixel high.

`Squeeze(Conv(Unsqueeze(x)))` is a convolution of `x` with the kernel of one axis less; a Transpose on the way stays
one.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.graph.editing import dims_of, is_op, operand, permutation, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse


def convolved_lines(model: ir.Model) -> str:
    """Write convolutions of images of one row, or of one column, as those of lines."""
    return fuse(model, _line, Anchor(at=("Conv",)))


def _line(node: ir.Node) -> Fusion | None:
    x, kernel, bias, result = source(node), source(node, 1), operand(node, 2), node.outputs[0]
    dims, sizes, made = dims_of(x), dims_of(kernel), dims_of(result)
    if dims is None or sizes is None or made is None or len(dims) != 4 or len(sizes) != 4:
        return None
    axis = next((at for at in (2, 3) if (dims[at], sizes[at], made[at]) == (1, 1, 1) and sizes[5 - at] != 1), None)
    if axis is None:
        return None
    along = 3 - axis  # the place of the other axis among those of the image
    options = dict(node.attributes)
    for name in ("kernel_shape", "strides", "dilations"):
        if name in options:
            options[name] = ir.AttrInt64s(name, [options[name].as_ints()[along]])
    if "pads" in options:
        pads = options["pads"].as_ints()
        if pads[axis - 2] or pads[axis]:
            return None
        options["pads"] = ir.AttrInt64s("pads", [pads[along], pads[2 + along]])
    attributes = {name: attribute.value for name, attribute in options.items()}

    def without(builder: Builder, value: ir.Value, place: int) -> ir.Value:
        """Return a value without an axis of one element; before a Transpose, if there is one."""
        own, before = dims_of(value) or [], value.producer()
        if is_op(before, "Transpose") and before is not None:
            order = permutation(before)
            inner = without(builder, source(before), order[place])
            rest = [at for at in order if at != order[place]]
            return builder.transposed(inner, [at - (at > order[place]) for at in rest])
        wanted = [*own[:place], *own[place + 1 :]]
        if before is not None and is_op(before, "Unsqueeze") and dims_of(source(before)) == wanted:
            return builder.now(source(before))
        return builder.viewed(value, wanted)

    def build(builder: Builder) -> ir.Value:
        weight = builder.viewed(kernel, [*sizes[:axis], *sizes[axis + 1 :]])
        line = [*made[:axis], *made[axis + 1 :]]
        operands = [without(builder, x, axis), weight, *([bias] if bias is not None else [])]
        return builder.viewed(builder.emit("Conv", operands, line, **attributes), made)

    leaves = [x, kernel, *([bias] if bias is not None else [])]
    return Fusion("Conv of lines", result, leaves, build)
