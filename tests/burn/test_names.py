"""Files with hostile names as crates: they compile without a warning, and compute what they did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import jaxport
from jaxport.codegen.burn.crate import names_in_use, to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.importer.interface import in_model_order
from tests.burn.crates import RunError, build, case_of, crate_and_results
from tests.codegen.test_rust_names import HOSTILE, hostile_model

pytestmark = pytest.mark.burn

TYPES = sorted(name for name in names_in_use() if name[0].isupper() and name not in HOSTILE)
"""What the crate itself has for types: in its own files, imported by them, or of the language."""


def test_hostile_names_compile_and_compute() -> None:
    x = np.ones((2, 2), np.float32)
    cases, expected = {}, {}
    for number, name in enumerate([*HOSTILE, *TYPES]):
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


EMPTY = {
    "a matrix": "(float[n, 2] x) => (float[n, m] y) { p = MatMul(x, w) y = Concat<axis = 1>(x, p) }",
    "a bias": "(float[n, 0] x) => (float[n, 0] y) { y = Add(x, w) }",
    "rows of a table": "(int64[n] x) => (float[a, 2] y) { i = Slice(x, zero, zero) y = Gather(w, i) }",
    "part of a list": "(float[n] x) => (float[m] y) { y = Concat<axis = 0>(x, w) }",
}
"""What reads a weight without elements, whose shape and type are those of the key in `WEIGHTS`."""
WEIGHTS = {"a matrix": (2, 0), "a bias": (0,), "rows of a table": (0, 2), "part of a list": (0,)}


def test_weights_without_elements_are_loaded() -> None:
    cases, expected, given = {}, {}, {}
    for name, text in EMPTY.items():
        for dtype in ("float32", "float64", "float16"):
            kind = {"float32": "float", "float64": "double"}.get(dtype, dtype)
            graph = text.replace("float[", f"{kind}[")
            model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {graph}')
            model.graph.initializer.append(numpy_helper.from_array(np.zeros(WEIGHTS[name], dtype), "w"))
            model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), "zero"))
            key = f"{name} of {dtype}"
            x = {
                "a bias": np.zeros((3, 0), dtype),
                "rows of a table": np.zeros(3, np.int32),
                "part of a list": np.ones(3, dtype),
            }
            given[key] = {"x": x.get(name, np.ones((3, 2), dtype))}
            crate, expected[key] = crate_and_results(ir.from_proto(model), given[key], dtype == "float64")
            cases[key] = case_of(crate, f"empty_{len(cases)}")
    built = build(cases, "empty")
    assert built.errors == {}
    for key, wanted in expected.items():
        outputs = built.run(key, given[key])
        assert not isinstance(outputs, RunError), (key, outputs)
        np.testing.assert_array_equal(*outputs.values(), *wanted.values())
