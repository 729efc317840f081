"""Runs a folder of models in the runtime of this environment; needs that and NumPy alone, and no package of ours.

Prints a line of JSON: the version of the runtime; and by model, "" where it gives what is expected, or what went wrong.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

Run = Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]


def in_onnxruntime(path: Path) -> Run:
    """A model loaded in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def in_openvino(path: Path) -> Run:
    """A model loaded in OpenVINO, which shall compute in float32."""
    import openvino

    model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda inputs: [np.asarray(value) for value in model(inputs).values()]


RUNTIMES = {"onnxruntime": in_onnxruntime, "openvino": in_openvino}


def problem(run: Run, folder: Path, case: str, relative: float, absolute: float = 0.0) -> str:
    """What is wrong with the outputs of a model, or nothing; `relative` is to the largest element of an output."""
    with np.load(folder / f"{case}-inputs.npz") as stored:
        inputs = {name: stored[name] for name in stored.files}
    with np.load(folder / f"{case}-outputs.npz") as stored:
        expected = [stored[name] for name in stored.files]
    run(inputs)  # the second call of a session uses memory in another way
    actual = run(inputs)
    if len(actual) != len(expected):
        return f"{len(actual)} outputs, not {len(expected)}"
    for wanted, found in zip(expected, actual):  # noqa: B905  the lengths are equal, and old Pythons run this too
        if wanted.shape != found.shape or wanted.dtype != found.dtype:
            return f"{found.dtype}{list(found.shape)}, not {wanted.dtype}{list(wanted.shape)}"
        largest = np.abs(np.nan_to_num(wanted.astype(np.float64))).max() if wanted.size else 0.0
        limit = max(relative * max(largest, 1e-6), absolute) if wanted.dtype.kind == "f" else 0.0
        if not np.allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=limit, equal_nan=True):
            error = np.abs(np.nan_to_num(found.astype(np.float64) - wanted.astype(np.float64))).max()
            return f"an element is off by {error:.2g}, where the largest is {largest:.2g}"
    return ""


def results(folder: Path, runtime: str) -> dict[str, str]:
    """What is wrong with each model of a folder."""
    found = {}
    for name, model in json.loads((folder / "models.json").read_text()).items():
        try:
            run = RUNTIMES[runtime](folder / f"{name}.onnx")
            problems = (
                problem(run, folder, case, model["limit"], model.get("absolute", 0.0)) for case in model["cases"]
            )
            found[name] = next(filter(None, problems), "")
        except Exception as error:  # noqa: BLE001  the runtimes raise errors of many kinds
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found


if __name__ == "__main__":
    version = importlib.import_module(sys.argv[2]).__version__
    sys.stdout.write(json.dumps({"version": version, "results": results(Path(sys.argv[1]), sys.argv[2])}))
