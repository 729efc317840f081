"""The programs of `tests/programs` as crates for Burn: what prints compiles, and computes what the exported file does at two sizes."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import pytest

import jaxport
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.errors import InvalidArgument, ModelError, Unsupported
from jaxport.importer.interface import in_model_order
from tests.burn.crates import Built, Case, RunError, build, case_of, selected
from tests.programs import checker

pytestmark = pytest.mark.burn

FILES = ("equinox", "functions", "linen", "nnx", "reported", "training")
LIMIT = 1e-4
"""Relative to the largest element: programs compute decompositions and sums in another order."""


class Program(NamedTuple):
    """A program as a crate.

    Attributes:
      case: its sources; None if it is refused.
      why: why it is refused.
      samples: its inputs and what the exported file computes of them, at each size.
    """

    case: Case | None
    why: str = ""
    samples: tuple[tuple[dict[str, np.ndarray], dict[str, np.ndarray]], ...] = ()


def programs() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the tests that export one program, by name."""
    for file in FILES:
        module = importlib.import_module(f"tests.programs.test_{file}")
        for name, test in vars(module).items():
            if name.startswith("test_") and getattr(test, "__name__", "") == "<lambda>":
                yield f"{file}.{name.removeprefix('test_')}", test


TESTS = dict(programs())


@cache
def printed(name: str) -> Program:
    """Print a program for Burn."""
    calls: list[tuple[tuple, dict[str, Any]]] = []
    with mock.patch.object(checker, "verified", lambda *args, **options: calls.append((args, options))):
        TESTS[name]()
    ((fn, *specs), options) = calls[0]
    sizes = options.pop("sizes", checker.SIZES)
    inputs = options.pop("inputs", None)
    options = {key: value for key, value in options.items() if key not in ("tolerance", "finite", "jitted")}
    exported = jaxport.to_onnx(fn, list(specs), **options)
    program = in_model_order(jaxport.from_onnx(exported.model))
    try:
        try:
            crate = to_crate(record_fused(program))
        except ModelError:  # random bits are computed with integers of 64 bits, as the message says
            with jax.enable_x64(True):
                crate = to_crate(record_fused(program))
    except (Unsupported, InvalidArgument) as error:
        return Program(None, str(error))
    names = {symbol for port in exported.inputs for dim in port.shape for symbol in checker._names(dim)}
    samples = []
    for given in sizes if names else sizes[:1]:
        args, kwargs = (inputs, {}) if inputs is not None else checker._sampled(exported, given)
        arrays = exported.flatten(tuple(args), dict(kwargs))
        samples.append((arrays, dict(zip(program.output_names, exported.run(arrays), strict=True))))
    return Program(case_of(crate, f"programs_{name.replace('.', '_')}"), "", tuple(samples))


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """The programs of the tests that were selected, in one binary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = {name: case for name in selected(request, "name") if (case := printed(name).case) is not None}
    return build(cases, "programs")


@pytest.mark.parametrize("name", TESTS)
def test_a_program_computes_the_same_in_rust(name: str, compiled: Built) -> None:
    program = printed(name)
    assert program.case is not None, program.why
    assert name not in compiled.errors, compiled.errors[name][0]
    assert name not in compiled.warnings, compiled.warnings[name][0]
    for inputs, wanted in program.samples:
        outputs = compiled.run(name, inputs)
        assert not isinstance(outputs, RunError), outputs
        for key, expected in wanted.items():
            expected = np.asarray(expected)
            assert outputs[key].shape == expected.shape
            if expected.dtype.kind != "f":
                np.testing.assert_array_equal(outputs[key], expected)
                continue
            largest = np.max(np.abs(expected), initial=0, where=np.isfinite(expected))
            np.testing.assert_allclose(
                outputs[key].astype(np.float64), expected, rtol=0, atol=LIMIT * max(1.0, float(largest))
            )
