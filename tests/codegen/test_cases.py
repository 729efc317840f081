"""ONNX's own cases of single operators, printed as modules of both frameworks and run where jaxport cannot be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from jaxport.errors import InvalidArgument
from jaxport.importer import from_onnx
from tests.codegen.structured import load
from tests.importer import backend
from tests.importer.printed import source_of

CASES = {name: case for name, case in backend.cases().items() if case.kind == "node" and not backend.reasons(name)}


def check_case(case: backend.Case, framework: str, folder: Path) -> None:
    """Prints a case's program for the sizes of its inputs, runs that, and compares every output.

    A sequence or an optional input is no argument of a module: that is refused by its name.
    """
    model = case.model()
    program = from_onnx(model)
    with jax.enable_x64(True):
        for inputs, expected in case.data(model):
            try:
                source, arguments = source_of(program, inputs, framework)
            except InvalidArgument as error:
                assert "is not an array" in str(error), error  # noqa: PT017  the reason is what is checked
                assert any(not hasattr(value, "dtype") for value in inputs)
                return
            source.save(folder)
            made: Any = load(folder).load()
            results = backend.call_jitted(made, *arguments.values())
            case.compare(results, expected)


@pytest.mark.sampled(25)
@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("name", CASES)
def test_a_case(name: str, framework: str, tmp_path: Path) -> None:
    check_case(CASES[name], framework, tmp_path)
