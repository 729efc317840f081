"""What the installed ONNX Runtime answers to the questions of `ort_kernels.py`; needs that and NumPy alone.

Old releases want an old NumPy, which JAX does not run with: so the models are made elsewhere, and run here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def runs(path: Path, value: float) -> bool:
    """Whether the runtime loads and runs a model, all inputs of which have one value."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        session.run(None, {port.name: np.full(port.shape, value, np.float32) for port in session.get_inputs()})
    except Exception:  # noqa: BLE001  the runtime raises errors of many kinds, and each of them means no
        return False
    return True


def main() -> None:
    """Print the names of the models in a folder that run."""
    folder = Path(sys.argv[1])
    questions = json.loads((folder / "questions.json").read_text())
    sys.stdout.write(json.dumps([name for name, value in questions.items() if runs(folder / name, value)]))


if __name__ == "__main__":
    main()
