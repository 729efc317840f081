"""`make test-runtimes`: every program for every target, in the runtimes of other environments; writes `docs/runtimes.md`.

    python -m tests.runtimes NAME=PROGRAM …

NAME is a release of ONNX Runtime, "openvino" or "genai", and PROGRAM the interpreter of an environment that has it; or NAME
is "node", "web" or "webgpu", and PROGRAM is Node, or the browser. The recorded faults of a runtime (`faults.py`) have to fail in it:
if one does not, so does the run. Where PROGRAM is empty, it says that the runtime was left out, and
the page stays as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxport.export.delivery.targets import DEFAULT, TARGETS
from jaxport.onnx_facts.kernels import RELEASES
from tests.runtimes import faults, generation, javascript, page
from tests.runtimes.faults import FAULTS
from tests.runtimes.page import Found
from tests.runtimes.programs import programs
from tests.runtimes.writing import write

RUNNING = Path(__file__).with_name("running.py")
#: The targets whose models a runtime has to run; the newest ONNX Runtime runs them all. An old one also has to run the models
#: of the default target that do not require a newer one.
OWN = {
    "1.19": ("portable", "edge"),
    "1.20": ("portable", "web"),
    "node": ("portable", "web"),
    "web": ("web",),
    "webgpu": ("webgpu",),
    "openvino": ("openvino",),
}
#: The targets that any function may be exported for.
GENERAL = tuple(name for name, target in TARGETS.items() if not target.decoder)


def main(arguments: list[str]) -> int:
    """Run everything; the status is 1 where a model fails that should run."""
    runtimes = dict(argument.split("=", 1) for argument in arguments)
    left_out = [name for name, program in runtimes.items() if not program]
    sys.stdout.writelines(f"{runtime}: not here, left out\n" for runtime in left_out)
    given = {name: program for name, program in runtimes.items() if program}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = [*programs()]
        refused = write(folder, chosen, GENERAL)
        models = json.loads((folder / "models.json").read_text())
        sys.stdout.writelines(f"refused  {model}: {why}\n" for model, why in refused.items())
        general = [
            told(ran(folder, models, runtime, program)) for runtime, program in given.items() if runtime != "genai"
        ]
        faulty = [told(found) for found in with_faults(folder / "faults", given)]
        generated = told(generation.results(folder, given["genai"])) if "genai" in given else None
        drawn = told(javascript.digits(folder, given["web"])) if "web" in given else None
        ruled = [
            told(of_rules(folder / f"rules-{each}", each, given[each])) for each in ("web", "webgpu") if each in given
        ]
        written = told(javascript.text(folder, given["web"])) if "web" in given else None
    others = [found for found in (generated, drawn, written, *ruled) if found is not None]
    failed = any(why for found in (*general, *faulty, *others) for why in found.results.values())
    if not failed and not left_out and generated is not None and drawn is not None:
        page.PAGE.write_text(page.page(general, generated, drawn, refused, GENERAL, len(chosen), faulty))
    return int(failed)


def told(found: Found) -> Found:
    """Print what a runtime made of its models."""
    wrong = {model: why for model, why in found.results.items() if why}
    sys.stdout.write(f"{found.name}: {len(found.results) - len(wrong)} of {len(found.results)}\n")
    sys.stdout.writelines(f"  {model}: {why}\n" for model, why in wrong.items())
    sys.stdout.flush()
    return found


def is_own(what: Mapping[str, Any], runtime: str) -> bool:
    """Whether a runtime has to run a model."""
    if runtime in RELEASES and what["target"] == DEFAULT.name:
        releases = list(RELEASES)
        return what["runtime"] is not None and releases.index(what["runtime"]) <= releases.index(runtime)
    return what["target"] in OWN.get(runtime, GENERAL)


def ran(folder: Path, models: Mapping[str, Any], runtime: str, program: str) -> Found:
    """What another runtime makes of the models that are its own."""
    kept = {model: what for model, what in models.items() if is_own(what, runtime)}
    (folder / "models.json").write_text(json.dumps(kept))
    if runtime in ("node", "web", "webgpu"):
        return javascript.results(folder, runtime, program)
    return python_results(folder, runtime, program)


def of_rules(folder: Path, runtime: str, program: str) -> Found:
    """What a runtime of JavaScript makes of the cases of all rules, exported for the target of its name."""
    folder.mkdir()
    written = ["-p", "tests.runtimes.rule_cases", "--for-target", runtime, "--into", str(folder)]
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "", "tests/export/rules", *written], check=True)
    found = javascript.results(folder, runtime, program)
    tests = json.loads((folder / "models.json").read_text())
    return Found(f"{found.name}, the cases of the rules", {tests[n]["test"]: why for n, why in found.results.items()})


def python_results(folder: Path, runtime: str, program: str) -> Found:
    """What the runtime of another environment of Python makes of the models of a folder."""
    kind, name = ("openvino", "OpenVINO") if runtime == "openvino" else ("onnxruntime", "ONNX Runtime")
    answer = answered([program, str(RUNNING), str(folder), kind])
    return Found(f"{name} {answer['version'].partition('-')[0]}", answer["results"])


def with_faults(folder: Path, given: Mapping[str, str]) -> Iterator[Found]:
    """What is wrong with the recorded faults of each runtime: that it computes one of the files rightly."""
    for runtime, program in given.items():
        own = [fault for fault in FAULTS if fault.runtime == runtime]
        if own:
            folder.mkdir(exist_ok=True)
            faults.write(folder, own)
            made = javascript.results if runtime == "webgpu" else python_results
            found = made(folder, runtime, program)
            mended = {name: "" if why else "it is computed rightly" for name, why in found.results.items()}
            yield Found(f"{found.name}, its faults", mended)


def answered(command: Iterable[str]) -> dict[str, Any]:
    """The JSON that a program of another environment prints."""
    return json.loads(subprocess.run([*command], check=True, stdout=subprocess.PIPE, env={"PATH": ""}).stdout)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
