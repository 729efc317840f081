"""Files are whole after every failure: killed saves, full disks, readers at the same time; others' files stay."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import jaxport
from jaxport import files, saving
from jaxport.importer import from_onnx
from tests.files.killed import KINDS
from tests.importer.models import model

RESERVED = ".jaxport-"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_point_leaves_the_old_or_the_new_pair(kind: str, tmp_path: Path):
    command = [sys.executable, "-W", "ignore", "-m", "tests.files.killed", kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    points, old, new = map(int, re.findall(r" (\d+)", done.stdout))
    assert old + new == points > 15
    assert min(old, new) > 5


def model_of(number: float, size: int = 5000) -> ir.Model:
    made = ir.from_proto(model("g (float[5000] x) => (float[5000] y) <float[1] w = {0}> { y = Add(x, w) }"))
    made.graph.initializers["w"].const_value = ir.Tensor(np.full(size, number, np.float32), name="w")
    return made


SAVERS: dict[str, tuple[str, Callable[[Path, float], Any]]] = {
    "onnx": ("m.onnx", lambda path, number: saving.save(model_of(number), path)),
    "onnx with data": ("m.onnx", lambda path, number: saving.save(model_of(number), path, True)),
    "program": ("m.onnx", lambda path, number: from_onnx(model_of(number)).save(path)),
    "mox": ("m.json", lambda path, number: jaxport.mox.save(mox_of(number), path)),
    "params": ("p.safetensors", lambda path, number: jaxport.mox.save_params({"w": np.full(5000, number)}, path)),
    "source": ("model.py", lambda path, number: from_onnx(model_of(number)).to_source(path.parent, framework="jax")),
}


def mox_of(number: float) -> Any:
    weight = np.full((3, 500), number, np.float32)
    return jaxport.make_mox(lambda x: x @ weight)(np.ones(3, np.float32))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def small_files() -> Iterator[None]:
    """Lets no file grow beyond 4 kB, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, previous)


@pytest.mark.parametrize("kind", SAVERS)
def test_a_full_disk_leaves_what_was_there(kind: str, tmp_path: Path, request: pytest.FixtureRequest):
    name, save = SAVERS[kind]
    save(tmp_path / name, 1.0)
    before = contents(tmp_path)
    request.getfixturevalue("small_files")
    with pytest.raises(jaxport.SaveError) as caught:
        save(tmp_path / name, 2.0)
    assert contents(tmp_path) == before
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("failing", ["mkdtemp", "replace"])
def test_a_disk_that_may_only_be_read(kind: str, failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name, save = SAVERS[kind]
    save(tmp_path / name, 1.0)
    before = contents(tmp_path)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(f"tempfile.{failing}" if failing == "mkdtemp" else f"os.{failing}", refuse)
    with pytest.raises(jaxport.SaveError, match="Read-only file system"):
        save(tmp_path / name, 2.0)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", SAVERS)
def test_permissions_are_kept(kind: str, tmp_path: Path):
    name, save = SAVERS[kind]
    save(tmp_path / name, 1.0)
    os.chmod(tmp_path / name, 0o600)
    save(tmp_path / name, 2.0)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("kind", SAVERS)
def test_new_files_have_the_permissions_of_the_process(kind: str, tmp_path: Path):
    name, save = SAVERS[kind]
    mask = os.umask(0o027)
    try:
        save(tmp_path / name, 1.0)
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}


@pytest.mark.parametrize("framework", ["jax", "nnx", "burn"])
def test_printed_weights_can_be_read_by_others(framework: str, tmp_path: Path):
    weights = np.arange(1024, dtype=np.float32).reshape(32, 32)
    source = jaxport.to_source(lambda x: x @ weights, [(2, 32)], framework=framework)
    mask = os.umask(0o022)
    try:
        source.save(tmp_path)
    finally:
        os.umask(mask)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saving.save(model_of(1.0), tmp_path / "m.onnx")
    before = contents(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # of root, who may everything, too
    with pytest.raises(jaxport.SaveError, match="Permission denied"):
        saving.save(model_of(2.0), tmp_path / "m.onnx")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("what", ["pipe", "folder", "link to a device"])
def test_only_regular_files_are_replaced(kind: str, what: str, tmp_path: Path):
    name, save = SAVERS[kind]
    target = tmp_path / name
    match what:
        case "pipe":
            os.mkfifo(target)
        case "folder":
            target.mkdir()
        case _:
            target.symlink_to("/dev/null")
    with pytest.raises(jaxport.SaveError, match=r"not a regular file|Is a directory"):
        save(target, 1.0)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", ["a\0b", "a\udce4\ud800"])
@pytest.mark.parametrize("kind", SAVERS)
def test_a_path_that_is_no_path(kind: str, name: str, tmp_path: Path):
    own, save = SAVERS[kind]
    with pytest.raises(jaxport.InvalidArgument, match="is not a path"):
        save(tmp_path / name / own, 1.0)
    for load in (from_onnx, jaxport.mox.load, jaxport.mox.load_params):
        with pytest.raises(jaxport.InvalidArgument, match=r"is not a path"):
            load(f"{name}.json")


def test_files_of_others_stay(tmp_path: Path):
    kept = ["m.onnx.data", "m.onnx.backup.data", "other.onnx.0123456789abcdef.data", "m.json.0123456789abcdef.data"]
    for name in kept:
        (tmp_path / name).write_text("theirs")
    (tmp_path / f"{RESERVED}notes").mkdir()
    (tmp_path / f"{RESERVED}notes" / "todo").write_text("theirs")
    saving.save(model_of(1.0), tmp_path / "m.onnx", True)
    saving.save(model_of(2.0), tmp_path / "m.onnx", True)
    names = {path.name for path in tmp_path.iterdir()}
    assert {*kept, f"{RESERVED}notes", "m.onnx"} < names
    assert len(names) == len(kept) + 3
    assert all((tmp_path / name).read_text() == "theirs" for name in kept)
    saving.save(model_of(3.0), tmp_path / "m.onnx", False)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, f"{RESERVED}notes", "m.onnx"}


def test_leftovers_are_removed_unless_their_process_lives(tmp_path: Path):
    for name in ("dead", "alive"):
        (tmp_path / f"{RESERVED}{name}").mkdir()
        (tmp_path / f"{RESERVED}{name}" / "main").write_text("half")
    lock = files._hold(tmp_path / f"{RESERVED}alive")
    assert lock is not None
    saving.save(model_of(1.0), tmp_path / "m.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", f"{RESERVED}alive"}
    os.close(lock)
    saving.save(model_of(1.0), tmp_path / "m.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx"}


def test_the_same_model_has_the_same_files(tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name, save in SAVERS.values():
            save(tmp_path / folder / name, 1.0)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_readers_see_the_old_or_the_new_pair(tmp_path: Path):
    path, stop, saved = tmp_path / "m.onnx", threading.Event(), []
    saving.save(model_of(0.0), path, True)

    def write() -> None:
        while not stop.is_set():
            saving.save(model_of(float(len(saved))), path, True)
            saved.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    try:
        while writer.is_alive() and (reads < 60 or len(saved) < 60):
            (array,) = from_onnx(path).params.values()
            assert len(set(np.asarray(array).tolist())) == 1
            reads += 1
    finally:
        stop.set()
        writer.join()
    assert len(saved) >= 60


def test_two_savers_at_once_leave_one_pair(tmp_path: Path):
    path = tmp_path / "m.onnx"

    def write(number: float) -> None:
        for _ in range(10):
            saving.save(model_of(number), path, True)

    threads = [threading.Thread(target=write, args=(float(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (array,) = from_onnx(path).params.values()
    assert len(set(np.asarray(array).tolist())) == 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["../w.safetensors", "/etc/w.safetensors", "", ".", "a\0b", 3])
def test_weights_of_a_mox_lie_beside_it(name: Any, tmp_path: Path):
    import json

    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "m.json"
    jaxport.mox.save(mox_of(1.0), path)
    (weights,) = path.parent.glob("*.safetensors")
    weights.rename(tmp_path / "w.safetensors")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "weights_file": name}))
    with pytest.raises(jaxport.ModelError, match="are outside the folder"):
        jaxport.mox.load(path)
    weights.symlink_to(tmp_path / "w.safetensors")
    path.write_text(json.dumps(document))
    with pytest.raises(jaxport.ModelError, match="a link to another folder"):
        jaxport.mox.load(path)


def test_a_mox_of_an_earlier_version_is_read(tmp_path: Path):
    import json

    jaxport.mox.save(mox_of(1.0), tmp_path / "m.json")
    (weights,) = tmp_path.glob("*.safetensors")
    weights.rename(tmp_path / "m.safetensors")
    document = json.loads((tmp_path / "m.json").read_text())
    del document["weights_file"]
    (tmp_path / "m.json").write_text(json.dumps(document))
    np.testing.assert_array_equal(jaxport.mox.load(tmp_path / "m.json")(np.ones(3, np.float32)), np.full(500, 3))


@pytest.mark.parametrize("kind", SAVERS)
def test_only_a_data_file_that_its_digest_names_is_read_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    digest = files.hashlib.file_digest
    monkeypatch.setattr(files.hashlib, "file_digest", lambda file, name: hashed.append(file.name) or digest(file, name))
    name, save = SAVERS[kind]
    save(tmp_path / name, 1.0)
    assert len(hashed) == sum(
        bool(re.search(rf"\.[0-9a-f]{{{files.DIGITS}}}\.", path.name)) for path in tmp_path.iterdir()
    )
