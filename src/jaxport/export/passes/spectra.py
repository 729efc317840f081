"""Compute whole spectra where half is asked for, for OpenVINO: 2026.4 gives half a spectrum a wrong shape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, dims_of, integer, is_op, operand, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse


def spectra(model: ir.Model) -> str:
    """Replace each `DFT` of real numbers with `onesided=1` by a whole one and a `Slice` of it.

    Args:
      model: changed in place.
    """
    return fuse(model, _find, Anchor(at=("DFT",)))


def _find(node: ir.Node) -> Fusion | str | None:
    if not is_op(node, "DFT") or not integer(node, "onesided", 0):
        return None
    half, signal, axis_operand = node.outputs[0], source(node), operand(node, 2)
    axes = None if axis_operand is None else constant_of(axis_operand)
    sizes, lengths = dims_of(half), dims_of(signal)
    if sizes is None or lengths is None or (axis_operand is not None and axes is None):
        return "the shape or the axis of half a spectrum is unknown"
    axis = (integer(node, "axis", 1) if axes is None else int(axes)) % len(lengths)
    if not isinstance(sizes[axis], int):
        return "the length of half a spectrum is unknown"
    count = sizes[axis]

    def build(builder: Builder) -> ir.Value:
        attributes = {name: attribute.value for name, attribute in node.attributes.items() if name != "onesided"}
        dims = [*sizes[:axis], lengths[axis], *sizes[axis + 1 :]]
        whole = builder.emit("DFT", [signal, *node.inputs[1:]], dims, half.dtype, **attributes)
        bounds = [builder.constant(np.array([number]), "bound") for number in (0, count, axis)]
        return builder.emit("Slice", [whole, *bounds], sizes, half.dtype)

    return Fusion("whole DFT", half, [signal], build)
