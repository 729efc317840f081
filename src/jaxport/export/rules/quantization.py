"""Blocks that ONNX's quantization operators compute."""

from __future__ import annotations

import numpy as np

from jaxport.export.registry import rule


@rule(block="jaxport.mox.dequantize_linear")
def dequantize_linear(op, q, scale, *, block, jaxpr):
    results = [(op.out.dtype, op.out.shape)]
    return op.emit("DequantizeLinear", q, scale, results=results, **_axis(op, q, scale, block))


@rule(block="jaxport.mox.quantize_linear")
def quantize_linear(op, x, scale, *, block, jaxpr):
    zero = op.const(np.zeros(scale.shape, np.int8))
    results = [(op.out.dtype, op.out.shape)]
    return op.emit("QuantizeLinear", x, scale, zero, results=results, **_axis(op, x, scale, block))


def _axis(op, x, scale, block):
    if block.batched:
        op.decline("under `vmap` the axis is another one")
    return {"axis": block.config["axis"] % len(x.shape)} if scale.shape else {}
