"""Files with hostile names as crates: they compile without a warning, and compute what they did."""

from __future__ import annotations

import numpy as np
import pytest

import jaxport
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.importer.interface import in_model_order
from tests.burn.crates import RunError, build, case_of
from tests.codegen.test_rust_names import HOSTILE, hostile_model

pytestmark = pytest.mark.burn


def test_hostile_names_compile_and_compute() -> None:
    x = np.ones((2, 2), np.float32)
    cases, expected = {}, {}
    for number, name in enumerate(HOSTILE):
        program = in_model_order(jaxport.from_onnx(hostile_model(name)))
        crate = to_crate(record_fused(program))
        key = f"{number}"
        cases[key] = case_of(crate, f"names_{number}")
        expected[key] = (program.input_names[0], np.asarray(program(x)))
    built = build(cases, "names")
    assert built.errors == {}
    assert built.warnings == {}
    for key, (input_name, wanted) in expected.items():
        outputs = built.run(key, {input_name: x})
        assert not isinstance(outputs, RunError), outputs
        np.testing.assert_array_equal(*outputs.values(), wanted)
