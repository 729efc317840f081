"""The page about Rust, with what needs cargo: the crate's own test passes, and the model that is trained there comes back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.burn.crates import ROOT, cargo, cargo_environment
from tests.docs.test_pages import blocks_of, printed_by

pytestmark = pytest.mark.burn

PAGE = ROOT / "docs/rust.md"


def test_the_page_runs_with_cargo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = cargo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    shutil.copytree(ROOT / "docs/files", tmp_path, dirs_exist_ok=True)
    environment = cargo_environment()

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [program, *arguments], check=False, cwd="digits", env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]

    namespace: dict[str, object] = {"__name__": "page"}
    printed = ""
    for block in blocks_of(PAGE.read_text()):
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.code)
            if block.language == "toml":
                manifest = Path("digits/Cargo.toml")
                manifest.write_text(manifest.read_text() + block.code)
                run("run", "--features", "train", "--example", "train")
        elif block.language == "python" or "with_params" in block.code:
            printed = printed_by(block, PAGE, namespace)
    assert printed.strip() == "True"
    run("test")
