"""Random programs on special values as crates for Burn: what prints compiles without a warning, and computes what JAX does.

`JAXPORT_FUZZ=seed:count` tries others than those of the test: `JAXPORT_FUZZ=7:1000 make test-burn ARGS=tests/burn/test_fuzz.py`.
Differences that stay are in `EXPLAINED`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import jax
import numpy as np
import pytest

import jaxport
from jaxport.errors import JaxportError, ModelError
from tests.burn.crates import Built, Case, RunError, build, case_of, crate_and_results, selected
from tests.burn.special_programs import SUMS, SpecialProgram, first_differences, special_program
from tests.burn.test_special import differs, shown

pytestmark = pytest.mark.burn

SEED, COUNT = map(int, os.environ.get("JAXPORT_FUZZ", "37:60").split(":"))


class Explained(NamedTuple):
    """A difference that stays.

    Attributes:
      program: a pattern in the program.
      told: a pattern in what is said of the elements that differ.
      why: the reason.
    """

    program: str
    told: str
    why: str


EXPLAINED = (
    Explained(
        r"(vjp|grad)\(.*", r"^(\[\d+\] nan for 0\.0(, )?)+$",
        "XLA selects by a mask instead of multiplying by it, so that NaN * 0 is 0 there",
    ),
    Explained(
        r"/", r"^(\[\d+\] 1\.0 for (inf|nan)(, )?)+$",
        "numbers below 1e-38 are zeros in what XLA compiles for processors, and Rust keeps them",
    ),
    Explained(
        r"(?s)(grad|vjp|jvp|linearize)\(.*tanh|tanh.*(grad|vjp|jvp|linearize)\(", r"^(?!.*(nan|inf)).*$",
        "where a tanh is near 1, its slope is what rounding left of 1 - 1, times what follows",
    ),
)  # fmt: skip
"""Differences that stay, and why they do."""


class Printed(NamedTuple):
    """A program as a crate, with what JAX computes of its inputs; without a crate, why it is refused."""

    program: SpecialProgram
    case: Case | None
    expected: dict[str, np.ndarray]
    inputs: dict[str, np.ndarray]
    why: str = ""


@cache
def printed(index: int) -> Printed:
    made = special_program(SEED, index)
    with jax.enable_x64(made.is_wide):
        try:
            exported = jaxport.to_onnx(made.function(), [*made.inputs])
        except JaxportError as error:
            return Printed(made, None, {}, {}, str(error))
    given = exported.flatten(made.inputs, {})
    try:
        crate, results = crate_and_results(exported.model, given, made.is_wide)
    except ModelError:
        raise
    except JaxportError as error:
        return Printed(made, None, {}, {}, str(error))
    return Printed(made, case_of(crate, f"fuzz_{index}"), results, given)


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """The programs of the tests that were selected, in one crate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = {str(index): printed(index).case for index in selected(request, "index")}
    return build({name: case for name, case in cases.items() if case is not None}, "fuzz")


@pytest.mark.parametrize("index", range(COUNT))
def test_a_program_of_special_values(index: int, compiled: Built) -> None:
    made, name = printed(index), str(index)
    if made.case is None:
        return
    assert name not in compiled.errors, compiled.errors[name][0]
    assert name not in compiled.warnings, compiled.warnings[name][0]
    outputs = compiled.run(name, made.inputs)
    assert not isinstance(outputs, RunError), f"{outputs}\n{made.program.text}"
    told = differences(made, outputs)
    assert not told, f"{told}\n{made.program.text}"


def differences(made: Printed, outputs: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return what differs without a reason, by the statement that is at fault."""
    statements, wrong, rounded = made.program.statements, {}, set()
    given = made.program.inputs[0].dtype
    given = np.dtype(np.float32) if given == np.float64 and "jnp.float32" in made.program.text else given
    for place, (key, expected) in enumerate(made.expected.items()):
        found = outputs[key]
        if found.dtype == expected.dtype == np.float64 != given:  # what was rounded to fewer digits before
            found, expected = found.astype(given), expected.astype(given)
        scale = 1.0 if SUMS.search(statements[place]) else 1e-2
        if differs(found, expected, scale):
            wrong[place] = shown(found, expected)
        elif found.tobytes() != expected.tobytes():
            rounded.add(place)
    told = first_differences(made.program, wrong, rounded)
    return {
        statements[place]: text
        for place, text in told.items()
        if not any(re.search(one.program, made.program.text) and re.search(one.told, text) for one in EXPLAINED)
    }
