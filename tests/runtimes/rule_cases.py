"""The cases of the rules' tests for a target: `check` writes them into a folder instead of running them here.

    python -m pytest tests/export/rules -p tests.runtimes.rule_cases --for-target web --into FOLDER

What the target refuses is refused there as for users; whatever is written has to load and to give what JAX does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxport
from jaxport.export.delivery.targets import TARGETS
from jaxport.testing import checking

#: Half a unit of the widest tolerance of the tests, relative to the largest element; that of float16.
LIMIT, HALF = 1e-3, 1e-2
#: The dtypes that tensors have in JavaScript.
DTYPES = frozenset("float16 float32 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool".split())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--for-target", help="the target to export the cases of `check` for")
    parser.addoption("--into", type=Path, help="the folder that they are written into")


class Written(Exception):
    """A case is in the folder: nothing more of its test is run."""


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """End the tests that wrote their case; the others are not about one."""
    outcome = yield
    if outcome.excinfo is not None and not issubclass(outcome.excinfo[0], pytest.skip.Exception):
        outcome.force_result(True)


@pytest.fixture(autouse=True)
def _written(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, target = request.config.getoption("--into"), request.config.getoption("--for-target")
    models = folder / "models.json"

    def run(case: Any, variant: Any, seed: str = "") -> Any:
        name = f"case{len(list(folder.glob('*.onnx')))}"
        try:
            options = {**variant.options, "target": target}
            exported = jaxport.to_onnx(case.fn, list(variant.specs), **options)
        except (jaxport.Unsupported, jaxport.InvalidArgument) as error:
            with (folder / "refused.txt").open("a") as refused:
                refused.write(f"{request.node.nodeid}: {error.headline}\n")
            raise Written from None
        ports = [*exported.inputs, *exported.outputs]
        if exported.x64 or any(np.dtype(port.model_dtype).name not in DTYPES for port in ports):
            raise Written
        args, kwargs = case._arguments(exported, variant, variant.sizes[0])
        inputs = {**exported.defaults, **exported.flatten(args, kwargs)}
        expected = case._in_jax(exported, args, kwargs)
        outputs = [port.to_model(value, False) for port, value in zip(exported.outputs, expected, strict=True)]
        arrays = (*inputs.values(), *outputs)
        # The API of JavaScript takes no empty tensor; a derivative to no purpose is of float0; WGSL promises numbers only.
        numbers = not TARGETS[target].gpu or all(
            np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"
        )
        if numbers and all(np.size(array) and array.dtype.name in DTYPES for array in arrays):
            np.savez(folder / f"{name}-inputs.npz", **inputs)
            np.savez(folder / f"{name}-outputs.npz", *outputs)
            exported.save(folder / f"{name}.onnx")
            known = json.loads(models.read_text()) if models.exists() else {}
            limits = {
                "limit": HALF if any(array.dtype == np.float16 for array in arrays) else LIMIT,
                "absolute": case.atol or 0,
            }
            what = {"cases": [name], **limits, "target": target, "test": request.node.nodeid}
            models.write_text(json.dumps({**known, name: what}))
        raise Written

    monkeypatch.setattr(checking._Case, "run", run)
