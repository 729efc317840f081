"""What the processor at hand computes otherwise than others."""

from __future__ import annotations

import functools

import numpy as np
import onnx.parser
import onnxruntime
import pytest


@functools.cache
def _saturates() -> bool:
    """Whether ONNX Runtime adds pairs of products of uint8 and int8 in 16 bits, as it does without VNNI."""
    made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (uint8[1, 64] x, int8[64, 16] w) => (int32[1, 16] y) { y = MatMulInteger(x, w) }""")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.full((64, 16), 127, np.int8), "w"))
    del made.graph.input[1]
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found = np.asarray(session.run(None, {"x": np.full((1, 64), 255, np.uint8)})[0])
    return not np.array_equal(found, np.full((1, 16), 64 * 127 * 255))


def needs_exact_int8() -> None:
    """Skip a test whose int8 weights have all levels where ONNX Runtime's sums of products saturate."""
    if _saturates():
        pytest.skip("ONNX Runtime's sums of products of int8 saturate on this processor, which has no VNNI")
