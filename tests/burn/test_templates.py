"""The crate that is written around a model: it builds without a warning, its test passes, its program runs a file."""

from __future__ import annotations

import os
import string
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jaxport.codegen.rust.text import LAYOUT
from tests.burn.crates import BUILD, TEMPLATES, cargo, read_tensors, write_tensors

pytestmark = pytest.mark.burn

MODEL = """use std::path::PathBuf;

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::store::{ModuleSnapshot, SafetensorsStore, SafetensorsStoreError};

#[derive(Module, Debug)]
pub struct Model {
    dense: Linear,
}

impl Model {
    pub fn new(device: &Device) -> Self {
        Self { dense: LinearConfig::new(2, 3).init(device) }
    }

    pub fn load(path: impl Into<PathBuf>, device: &Device) -> Result<Self, SafetensorsStoreError> {
        let mut model = Self::new(device);
        model.load_from(&mut SafetensorsStore::from_file(path))?;
        Ok(model)
    }

    pub fn forward(&self, x: Tensor<2>) -> (Tensor<2>, Tensor<1>) {
        let y = self.dense.forward(x);
        (y.clone(), y.sum())
    }
}
"""
RUN = """/// Reads the weights.
pub fn load(path: impl Into<PathBuf>, device: &Device) -> Result<Model, SafetensorsStoreError> {
    Model::load(path, device)
}

/// Runs the model on inputs by name.
pub fn run(model: &Model, inputs: &Tensors, device: &Device) -> Result<Tensors, TensorsError> {
    let (y, total) = model.forward(inputs.float("x", device)?);
    let mut outputs = Tensors::default();
    outputs.insert("y", y);
    outputs.insert_scalar("total", total);
    Ok(outputs)
}"""
USES = """use std::path::PathBuf;

use burn::prelude::*;
use burn::store::SafetensorsStoreError;

pub mod model;
pub mod tensors;

use model::Model;
use tensors::{Tensors, TensorsError};"""
FILLED = {
    "name": "two-numbers", "crate": "two_numbers", "root": "Model", "title": "Two numbers", "version": "1.0", "origin": "`two.onnx`",
    "description": "Two numbers", "modules": USES, "run": RUN, "tolerance": "1e-5", "outputs": "(y, total)", "arguments": "x",
    "generated": "",
}  # fmt: skip
FILES = {"Cargo.toml": "Cargo.toml", "lib.rs": "src/lib.rs", "main.rs": "src/main.rs", "tensors.rs": "src/tensors.rs"}


@pytest.fixture(scope="module")
def crate() -> Path:
    folder = BUILD / "template"
    for template, path in {**FILES, "outputs.rs": "tests/outputs.rs", "README.md": "README.md"}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        text = (TEMPLATES / template).read_text()
        (folder / path).write_text(text if template == "tensors.rs" else string.Template(text).substitute(FILLED))
    (folder / "src/model.rs").write_text(MODEL)
    (folder / "rustfmt.toml").write_text("".join(f'{option} = "{value}"\n' for option, value in LAYOUT.items()))
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    inputs, bias = np.array([[1, 2], [3, 4]], np.float32), np.ones(3, np.float32)
    outputs = inputs @ weight + bias
    write_tensors(folder / "model.safetensors", {"dense.weight": weight, "dense.bias": bias})
    write_tensors(folder / "tests/inputs.safetensors", {"x": inputs})
    write_tensors(folder / "tests/outputs.safetensors", {"y": outputs, "total": outputs.sum()})
    return folder


def run(crate: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run cargo with the dependencies that the other tests have compiled."""
    environment = {
        "CARGO_TARGET_DIR": str(BUILD / "target"),
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "CARGO_INCREMENTAL": "0",
        **os.environ,
    }
    return subprocess.run(
        [cargo(), *arguments], check=False, cwd=crate, capture_output=True, text=True, env=environment
    )


def test_its_test_passes(crate: Path) -> None:
    done = run(crate, "test")
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    assert "warning" not in done.stderr
    assert "outputs_are_those_stored ... ok" in done.stdout


def test_its_program_runs(crate: Path) -> None:
    done = run(crate, "run", "--", "tests/inputs.safetensors", "out.safetensors")
    assert done.returncode == 0, done.stderr[-4000:]
    stored = read_tensors(crate / "tests/outputs.safetensors")
    for name, array in read_tensors(crate / "out.safetensors").items():
        assert array.shape == stored[name].shape
        np.testing.assert_allclose(array, stored[name], rtol=1e-6)
    new = crate / "new"
    new.touch()
    assert (
        crate / "out.safetensors"
    ).stat().st_mode == new.stat().st_mode  # others may read what they may read of new files
    assert "tests/none.safetensors: No such file" in run(crate, "run", "--", "tests/none.safetensors", "out").stderr
    assert "expected: input.safetensors" in run(crate, "run").stderr


def test_another_output_is_told(crate: Path) -> None:
    stored = read_tensors(crate / "tests/outputs.safetensors")
    write_tensors(crate / "tests/outputs.safetensors", {**stored, "total": stored["total"] + 1})
    done = run(crate, "test")
    write_tensors(crate / "tests/outputs.safetensors", stored)
    assert "`total` has" in done.stdout


def test_layout_and_lints(crate: Path) -> None:
    assert run(crate, "fmt", "--check").stdout == ""
    done = run(crate, "clippy", "--all-targets", "--", "-D", "warnings")
    assert done.returncode == 0, done.stderr[-4000:]
