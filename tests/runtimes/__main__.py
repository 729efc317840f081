"""`make test-runtimes`: every program for every target, in the runtimes of other environments; prints a matrix.

    python -m tests.runtimes NAME=PROGRAM …

NAME is a release of ONNX Runtime, "openvino" or "genai", and PROGRAM the interpreter of an environment that has it; or NAME
is "node" or "web", and PROGRAM is Node, or the browser. Where PROGRAM is empty, it says that the runtime was left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxport.export.targets import TARGETS
from tests.runtimes import generation, javascript
from tests.runtimes.programs import programs
from tests.runtimes.writing import write

RUNNING = Path(__file__).with_name("running.py")
#: The targets whose models a runtime has to run; the newest ONNX Runtime runs them all.
OWN = {
    "1.17": ("portable",),
    "1.20": ("portable", "web"),
    "node": ("portable", "web"),
    "web": ("portable", "web"),
    "openvino": ("openvino",),
}
#: The targets that any function may be exported for.
GENERAL = tuple(name for name, target in TARGETS.items() if not target.decoder)


def main(arguments: list[str]) -> int:
    """Run everything; the status is 1 where a model fails that should run."""
    runtimes = dict(argument.split("=", 1) for argument in arguments)
    failed = 0
    for runtime in (name for name, program in runtimes.items() if not program):
        sys.stdout.write(f"{runtime}: not here, left out\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        general = {name: program for name, program in runtimes.items() if program and name != "genai"}
        if general:
            refused = write(folder, programs(), GENERAL)
            models = json.loads((folder / "models.json").read_text())
            sys.stdout.writelines(f"refused  {model}: {why}\n" for model, why in refused.items())
            for runtime, program in general.items():
                failed += told(runtime, ran(folder, models, runtime, program))
        if runtimes.get("genai"):
            failed += told("genai", generation.results(folder, runtimes["genai"]))
        if runtimes.get("web"):
            failed += told("digits in the browser", javascript.digits(folder, runtimes["web"]))
    return int(failed > 0)


def told(runtime: str, found: dict[str, str]) -> int:
    """Print what a runtime made of its models; returns how many fail that should run."""
    wrong = {model: why for model, why in found.items() if why}
    sys.stdout.write(f"{runtime}: {len(found) - len(wrong)} of {len(found)}\n")
    sys.stdout.writelines(f"  {model}: {why}\n" for model, why in wrong.items())
    return len(wrong)


def ran(folder: Path, models: Mapping[str, Any], runtime: str, program: str) -> dict[str, str]:
    """What another runtime makes of the models that are its own."""
    own = OWN.get(runtime, GENERAL)
    kept = {model: what for model, what in models.items() if model.rpartition("-")[2] in own}
    (folder / "models.json").write_text(json.dumps(kept))
    if runtime in ("node", "web"):
        return javascript.results(folder, runtime, program)
    kind = "openvino" if runtime == "openvino" else "onnxruntime"
    return answered([program, str(RUNNING), str(folder), kind])


def answered(command: Iterable[str]) -> dict[str, str]:
    """The JSON that a program of another environment prints."""
    return json.loads(subprocess.run([*command], check=True, stdout=subprocess.PIPE, env={"PATH": ""}).stdout)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
