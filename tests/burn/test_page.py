"""The page about Rust, with what needs cargo: the crate's own test passes, and the model that is trained there comes back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.language_model import PROMPT, greedy
from tests.burn.crates import ROOT, WASM, cargo, cargo_environment, compiles_to_wasm
from tests.docs.test_pages import blocks_of, printed_by

pytestmark = pytest.mark.burn

PAGE = ROOT / "docs/rust.md"
EXAMPLES = {
    "train": ["run", "--features", "train"],
    "service": ["run"],
    "chat": ["run"],
    "web": ["build", "--target", WASM, "--no-default-features", "--features", "flex"],
}
"""How cargo is asked for an example of the page; in the profile in which the dependencies are compiled already."""
EMBEDDED = """#![cfg(feature = "embed")]
use burn::prelude::*;
use vision_transformer::model::VisionTransformer;

#[test]
fn weights_are_the_same_wherever_they_lie() {
    let device = Device::default();
    let images = Tensor::<4>::ones([1, 1, 8, 8], &device);
    let loaded = VisionTransformer::load("model.safetensors", &device).unwrap();
    let mut bytes = std::fs::read("model.safetensors").unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    bytes[..8].copy_from_slice(&(header + 1).to_le_bytes());
    bytes.insert(8 + header as usize, b' '); // numbers lie where they may not
    let moved = VisionTransformer::from_bytes(bytes, &device).unwrap();
    let expected = loaded.forward(images.clone()).into_data();
    for model in [VisionTransformer::embedded(&device).unwrap(), moved] {
        assert_eq!(model.forward(images.clone()).into_data(), expected);
    }
    let error = VisionTransformer::from_bytes(b"none".to_vec(), &device).unwrap_err();
    assert!(error.to_string().contains("SafeTensors error"), "{error}");
}
"""
"""A test of the page's crate: where weights come from."""


def test_the_page_runs_with_cargo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = cargo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    shutil.copytree(ROOT / "docs/files", tmp_path, dirs_exist_ok=True)
    environment = cargo_environment()

    def run(*command: str, folder: str = "digits") -> str:
        done = subprocess.run(command, check=False, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
        return done.stdout

    namespace: dict[str, object] = {"__name__": "page"}
    printed, said = "", {}
    for block in blocks_of(PAGE.read_text()):
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.code)
            if block.language == "toml":
                folder = Path(block.title).parts[0]
                manifest = Path(folder, "Cargo.toml")
                manifest.write_text(manifest.read_text() + block.code)
                example = Path(block.title).stem
                if example != "web" or compiles_to_wasm():
                    said[example] = run(program, *EXAMPLES[example], "--example", example, folder=folder)
        elif block.language == "python" or "with_params" in block.code:
            printed = printed_by(block, PAGE, namespace)
    assert printed.strip() == "True"
    assert said["service"] in PAGE.read_text()
    llama: Any = namespace["llama"]
    assert [*PROMPT, *map(int, said["chat"].split())] == greedy(llama, PROMPT, 8)
    Path("digits/tests/embedded.rs").write_text(EMBEDDED)
    run(program, "test", "--features", "embed")
    if "web" not in said or (node := shutil.which("node")) is None:
        pytest.skip("There is no wasm32 target of rustup, or no Node: the example for browsers was not run.")
    found = run(node, "web.mjs", f"{environment['CARGO_TARGET_DIR']}/{WASM}/debug/examples/web.wasm")
    stroke = np.zeros((1, 1, 8, 8), np.float32)
    stroke[..., 4] = 1
    model: Any = namespace["trained"]
    assert int(found) == np.argmax(model(stroke))
