"""The models of a folder in Node and in a browser: hands the tensors over as JSON, and compares what comes back."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from examples.web import digits as page, text as rhymes
from tests.runtimes import running
from tests.runtimes.page import Found

SCRIPTS = Path(__file__).with_name("javascript")
#: The builds of onnxruntime-web, some kernels of which are in one of them only, with what computes in them; WebGPU computes on a
#: graphics processor in software.
BUNDLES = {
    "web": (("ort.wasm.bundle.min.mjs", "wasm"), ("ort.webgpu.bundle.min.mjs", "wasm")),
    "webgpu": (("ort.webgpu.bundle.min.mjs", "webgpu"),),
}

#: What WebGPU says of float16 on a device that has none, such as that in software.
LACKING = "but the device does not support it"


def results(folder: Path, runtime: str, program: str) -> Found:
    """What "node", "web" or "webgpu" makes of the models of a folder.

    Args:
      folder: what `writing.write` wrote.
      runtime: which.
      program: Node for "node", the browser for the others.
    """
    models = json.loads((folder / "models.json").read_text())
    for case in {case for model in models.values() for case in model["cases"]}:
        with np.load(folder / f"{case}-inputs.npz") as stored:
            inputs = [encoded(name, stored[name]) for name in stored.files]
        (folder / f"{case}-inputs.json").write_text(json.dumps(inputs))
    found: dict[str, str] = {}
    script = SCRIPTS / ("node.mjs" if runtime == "node" else "web.mjs")
    builds = [(program, [])] if runtime == "node" else [("node", [program, *each]) for each in BUNDLES[runtime]]
    for node, more in builds:
        command = [node, str(script), str(folder), *more]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        for model, problem in compared(folder, models, map(json.loads, answer.stdout.splitlines())).items():
            found[model] = found.get(model) or (problem and " ".join([*more[1:], problem]))
    packages = json.loads((SCRIPTS / "package-lock.json").read_text())["packages"]
    name = f"onnxruntime-{'node' if runtime == 'node' else 'web'}"
    package = f"{name} {packages[f'node_modules/{name}']['version']}"
    how = "both builds, wasm" if runtime == "web" else "WebGPU"
    return Found(package if runtime == "node" else f"{package} ({how}) in {version(program)}", found)


def version(browser: str) -> str:
    """A browser's name and version.

    >>> import sys
    >>> version(sys.executable).partition(" ")[0]
    'Python'
    """
    said = subprocess.run([browser, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return " ".join(said.split()[:2])


def digits(folder: Path, program: str) -> Found:
    """What the page of the examples makes of digits that are drawn on it, which is a folder beside the models."""
    place = folder / "digits"
    place.mkdir()
    page.write(place)
    found: dict[str, str] = {}
    for provider in ("wasm", "webgpu"):
        command = ["node", str(SCRIPTS / "digits.mjs"), str(place), program, provider]
        answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for digit, read in answer.items():
            wrong = "" if digit == read else f"by {provider} it reads {read}"
            found[f"a drawn {digit}"] = found.get(f"a drawn {digit}") or wrong
    return Found(version(program), found)


def text(folder: Path, program: str) -> Found:
    """Whether the page of the examples that writes text goes on as JAX does, by the CPU and by WebGPU."""
    place, prompt = folder / "text", "row, row"
    place.mkdir()
    expected = rhymes.continued(rhymes.write(place), prompt)
    found: dict[str, str] = {}
    for provider in ("wasm", "webgpu"):
        command = ["node", str(SCRIPTS / "text.mjs"), str(place), program, provider, prompt]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[provider] = "" if answer == expected else f"it writes {answer!r}, not {expected!r}"
    return Found(f"{version(program)}, the page that writes text", found)


def compared(folder: Path, models: Mapping[str, Any], answers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What is wrong with each model that the device can run, given what was answered."""
    found: dict[str, str] = {}
    cases: dict[str, set[str]] = {}
    absent: set[str] = set()
    for answer in answers:
        name = answer["model"]
        if LACKING in answer.get("error", ""):
            absent.add(name)
            continue
        if "error" in answer:
            found[name] = answer["error"]
            continue
        outputs = [decoded(tensor) for tensor in answer["outputs"]]
        limits = models[name]["limit"], models[name].get("absolute", 0.0)
        problem = running.problem(lambda _, given=outputs: given, folder, answer["case"], *limits)
        found[name] = found.get(name) or problem
        cases.setdefault(name, set()).add(answer["case"])
    for name, model in models.items():
        if name in absent:
            continue
        missing = set(model["cases"]) - cases.get(name, set())
        if missing and not found.get(name):
            found[name] = f"nothing was answered for {', '.join(sorted(missing))}"
    return found


def encoded(name: str, array: np.ndarray) -> dict[str, Any]:
    """An array as JSON takes it.

    >>> encoded("x", np.ones(1, bool))
    {'name': 'x', 'dtype': 'bool', 'shape': [1], 'data': 'AQ=='}
    """
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def decoded(tensor: Mapping[str, Any]) -> np.ndarray:
    """The array of such JSON."""
    return np.frombuffer(base64.b64decode(tensor["data"]), tensor["dtype"]).reshape(tensor["shape"])
