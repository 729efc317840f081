"""What killed processes leave behind is removed, and what cannot be written leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx.parser
import pytest

import jaxport
from jaxport import files

MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
agraph (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }""")
KILLED = """
import os, pathlib, signal, sys
from jaxport import files

def write(file, *_):
    (file.parent / ".tmpAb12Cd").write_bytes(b"a writer's own file")
    (file.parent / "src").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)

folder = pathlib.Path(sys.argv[1])
files.publish(folder / "model.onnx", write) if sys.argv[2] == "file" else files.publish_all(folder, {"a": write})
"""


def working_folders(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".jaxport-")]


@pytest.mark.skipif(files.fcntl is None, reason="there are no locks that a killed process would lose")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_the_folder_of_a_killed_process_is_removed_by_the_next_save(what: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, what], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(working_folders(tmp_path)) == 1
    files.publish(tmp_path / "other.onnx", lambda file, _: file.write_text("x") and None)
    assert os.listdir(tmp_path) == ["other.onnx"]


def test_a_folder_of_the_user_stays(tmp_path: Path) -> None:
    (tmp_path / ".jaxport-mine").mkdir()
    (tmp_path / ".jaxport-mine/notes").write_text("x")
    files.publish(tmp_path / "other.onnx", lambda file, _: file.write_text("x") and None)
    assert (tmp_path / ".jaxport-mine/notes").exists()


@pytest.mark.parametrize("framework", ["jax", "nnx", "equinox", "burn"])
@pytest.mark.parametrize("fails", ["chmod", "replace"])
def test_a_full_disk_leaves_nothing(
    framework: str, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = jaxport.from_onnx(MODEL)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    source = program.to_source(framework=framework)
    (tmp_path / "old").mkdir()
    original = getattr(os, fails)
    monkeypatch.setattr(files.os, fails, full)
    for folder in ("new/folder", "old"):
        with pytest.raises(jaxport.JaxportError, match="No space left"):
            source.save(tmp_path / folder)
    monkeypatch.setattr(files.os, fails, original)
    assert os.listdir(tmp_path) == ["old"]
    assert os.listdir(tmp_path / "old") == []
    source.save(tmp_path / "new/folder")
    assert os.listdir(tmp_path / "new/folder")
