"""Blocks that ONNX's quantization operators compute."""

from __future__ import annotations

import numpy as np

from jaxport.export.emit.registry import rule


@rule(block="jaxport.mox.dequantize_linear")
def dequantize_linear(op, q, scale, zero_point=None, *, block, jaxpr):
    results = [(op.out.dtype, op.out.shape)]
    size = block.config.get("block", 0)
    if op.opset < (21 if size or q.dtype.name == "int4" else 19 if q.dtype.name.startswith("float8") else 13):
        op.decline(f"DequantizeLinear has no blocks or {q.dtype.name} in opset {op.opset}")
    options = _axis(op, q, scale, block) | ({"block_size": size} if size else {})
    operands = [q, scale] if zero_point is None else [q, scale, zero_point]
    return op.emit("DequantizeLinear", *operands, results=results, **options)


@rule(block="jaxport.mox.quantize_linear")
def quantize_linear(op, x, scale, *, block, jaxpr):
    zero = op.const(np.zeros(scale.shape, np.int8))
    results = [(op.out.dtype, op.out.shape)]
    return op.emit("QuantizeLinear", x, scale, zero, results=results, **_axis(op, x, scale, block))


def _axis(op, x, scale, block):
    if block.batched:
        op.decline("under `vmap` the axis is another one")
    return {"axis": block.config["axis"] % len(x.shape)} if scale.shape else {}
