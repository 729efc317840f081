"""`make test-runtimes`: every program for every target, in the runtimes of other environments; prints a matrix.

    python -m tests.runtimes NAME=PYTHON …

NAME is a release of ONNX Runtime, or "openvino"; PYTHON is the interpreter of an environment that has it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from jaxport.export.targets import TARGETS
from tests.runtimes.programs import programs
from tests.runtimes.writing import write

RUNNING = Path(__file__).with_name("running.py")
#: The targets whose models a runtime has to run; the newest ONNX Runtime runs them all.
OWN = {"1.17": ("portable",), "1.20": ("portable", "web"), "openvino": ("openvino",)}
#: What a runtime itself gets wrong: the model is right in ONNX Runtime.
KNOWN = {
    (
        "openvino",
        "mlp_grad-openvino",
    ): "OpenVINO 2026.4 multiplies with a transposed weight that another product has, too",
}


def main(arguments: list[str]) -> int:
    """Run everything; the status is 1 where a model fails that should run."""
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        refused = write(folder, programs(), TARGETS)
        for model, why in refused.items():
            sys.stdout.write(f"refused  {model}: {why}\n")
        for runtime, python in (argument.split("=", 1) for argument in arguments):
            found = ran(folder, runtime, python)
            wrong = {model: why for model, why in found.items() if why and (runtime, model) not in KNOWN}
            failed += len(wrong)
            sys.stdout.write(f"{runtime}: {len(found) - len(wrong)} of {len(found)} models\n")
            sys.stdout.writelines(f"  {model}: {why}\n" for model, why in wrong.items())
    return int(failed > 0)


def ran(folder: Path, runtime: str, python: str) -> dict[str, str]:
    """What the runtime of another environment makes of the models that are its own."""
    kind = "openvino" if runtime == "openvino" else "onnxruntime"
    command = [python, str(RUNNING), str(folder), kind]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={"PATH": ""})
    own = OWN.get(runtime, tuple(TARGETS))
    return {model: why for model, why in json.loads(answer.stdout).items() if model.rpartition("-")[2] in own}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
