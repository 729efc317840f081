"""The official backend suite, case by case: as a program, and as printed source where jaxport cannot be imported."""

from __future__ import annotations

import pytest

from jaxport.importer import from_onnx
from scripts import operator_table
from tests.importer import backend, printed
from tests.importer.models import needs_newest_onnx

pytestmark = pytest.mark.sampled(4)

CASES = backend.cases()


@pytest.mark.parametrize("name", [pytest.param(name, marks=backend.marks(name)) for name in CASES])
def test_program(name: str) -> None:
    if name == "test_squeezenet":
        backend.needs_equal_channels()
    backend.run(CASES[name])


@pytest.mark.parametrize("name", [pytest.param(name, marks=backend.marks(name)) for name in CASES])
def test_source(name: str) -> None:
    printed.check(CASES[name])


@pytest.mark.parametrize("group", backend.EXCLUDED)
def test_exclusions_name_cases(group: str) -> None:
    assert [name for name in backend.EXCLUDED[group] if name not in CASES] == []


@needs_newest_onnx
def test_the_table_of_operators_is_up_to_date() -> None:
    assert operator_table.TARGET.read_text(encoding="utf-8") == operator_table.table(), "run scripts/operator_table.py"


def test_what_runs_eagerly_has_a_shape_that_depends_on_data() -> None:
    """A few cases that must run under `jax.jit`, so that a gap in folding shows."""
    for name in (
        "test_attention_4d_expanded",
        "test_rms_normalization_2d_axis0",
        "test_range_int32_type_negative_delta",
    ):
        assert backend.run(CASES[name]) == "jitted"


def test_every_case_compares_something() -> None:
    case = CASES["test_add"]
    model = case.model()
    inputs, expected = next(iter(case.data(model)))
    outputs = (from_onnx(model)(*inputs),)
    backend.compare(outputs, expected, case.test.rtol, case.test.atol)
    with pytest.raises(AssertionError):
        backend.compare((outputs[0] + 1,), expected, case.test.rtol, case.test.atol)
