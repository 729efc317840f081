"""The harness itself: what compiles runs, what does not is told by its own name and holds nothing else up."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.burn.crates import Case, RunError, build, read_tensors, unformatted, write_tensors

pytestmark = pytest.mark.burn

MODEL = """use burn::prelude::*;

#[derive(Module, Debug)]
pub struct Model {}

impl Model {
    pub fn forward(&self, x: Tensor<1>) -> Tensor<1> {
        BODY
    }
}
"""
GLUE = """use std::convert::Infallible;
use std::path::PathBuf;

use burn::tensor::Device;

use crate::tensors::{Tensors, TensorsError};
use model::Model;

pub fn load(_: impl Into<PathBuf>, _: &Device) -> Result<Model, Infallible> {
    Ok(Model {})
}

pub fn run(model: &Model, inputs: &Tensors, device: &Device) -> Result<Tensors, TensorsError> {
    let mut outputs = Tensors::default();
    outputs.insert("y", model.forward(inputs.float("x", device)?));
    Ok(outputs)
}
"""


def case(body: str) -> Case:
    return Case(MODEL.replace("BODY", body), GLUE)


def test_cases() -> None:
    cases = {
        "Double it!": case("x * 2.0"),
        "not a type": case("x.relu()"),
        "moved": case("x.clone() + x + x"),
        "unused": case("let y = 1;\n        x"),
        "panics": case('panic!("of its own: {}", x.dims()[0])'),
        "aborts": case("let _ = x;\n        std::process::exit(3)"),
    }
    built = build(cases, "harness")
    assert sorted(built.errors) == ["moved", "not a type"]
    assert "private" in built.errors["not a type"][0]
    assert "moved" in built.errors["moved"][0]
    assert sorted(built.warnings) == ["unused"]
    x = np.arange(3, dtype=np.float32)
    ran = dict(zip(cases, built.run_all([(name, {"x": x}) for name in cases]), strict=True))
    np.testing.assert_array_equal(ran["Double it!"]["y"], 2 * x)
    np.testing.assert_array_equal(ran["unused"]["y"], x)
    assert ran["moved"] == RunError("did not compile")
    assert ran["panics"] == RunError("panic: of its own: 3")
    assert ran["aborts"].message.startswith("the process ended with 3")
    assert built.run("Double it!", {}) == RunError("error: there is no `x` among []")
    assert built.run("Double it!", {"x": np.ones((2, 2), np.float32)}).message.endswith(
        "`x` shall have 1 axes, but has 2"
    )
    assert built.run("Double it!", {"x": np.ones(2, np.int32)}).message.endswith(
        "`x` shall be floating-point, but is I32"
    )


def test_lints_and_layout() -> None:
    cases = {"plain": case("x"), "needless": case("let y = x;\n        y"), "layout": case("x  * 2.0")}
    assert sorted(build(cases, "harness_lints", lint=True).warnings) == ["needless"]
    assert unformatted(cases) == ["layout"]


def test_files(tmp_path) -> None:
    arrays = {
        "half": np.array([1.5], ml_dtypes.bfloat16),
        "none": np.zeros((0, 3), np.uint16),
        "flag": np.array(True),
        "big": np.array([[2**40]]),
    }
    write_tensors(tmp_path / "file", arrays)
    for name, array in read_tensors(tmp_path / "file").items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])
