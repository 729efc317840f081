"""Running a model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.export.saving import to_proto


class Session:
    """A model loaded in ONNX Runtime's CPU provider.

    Args:
      model: the model.
    """

    def __init__(self, model: ir.Model):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """The outputs for these inputs, by name."""
        return self._session.run(None, {name: np.asarray(value) for name, value in inputs.items()})
