"""What Keras calls when a model is exported as ONNX: `jax2onnx.to_onnx`, with this package behind it.

It is a plugin of pytest too (`-p tests.clients.keras_exporter`), so that Keras's own tests run with it.
"""

from __future__ import annotations

import os
import sys
import types

os.environ.setdefault("KERAS_BACKEND", "jax")

import jaxport


def to_onnx(fn, inputs, *, input_names=None, opset=None, return_mode="file", output_path):
    assert return_mode == "file"
    exported = jaxport.to_onnx(fn, inputs, input_names=input_names, opset=opset)
    exported.save(output_path)
    return exported


sys.modules["jax2onnx"] = types.ModuleType("jax2onnx")
sys.modules["jax2onnx"].to_onnx = to_onnx
