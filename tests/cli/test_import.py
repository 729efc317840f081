"""`jaxport import` and `jaxport run`, from the words of the command line to what they write and print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.running import run
from tests.importer.models import model

SCALED = "g (float[batch, 2] x) => (float[batch, 2] y) <float[2] w = {2, 3}> { y = Mul(x, w) }"
RESHAPED = "g (float[n] x, int64[2] shape) => (float[a, b] y) { y = Reshape(x, shape) }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, graph in (("scaled", SCALED), ("reshaped", RESHAPED)):
        onnx.save(model(graph), tmp_path / f"{name}.onnx")
    return tmp_path


def test_import_verifies_and_writes_source_and_weights(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run("import", "scaled.onnx", "-o", "out", "--framework", "jax", "--verify", "--size", "batch=3") == 0
    shown = capsys.readouterr().out
    assert "`g` agrees in JAX and in ONNX Runtime" in shown
    assert "batch=3" in shown
    assert re.search(r"out/model\.py\.[0-9a-f]{16}\.safetensors", shown.replace("\n", ""))
    spec = importlib.util.spec_from_file_location("printed_by_command", folder / "out" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    np.testing.assert_array_equal(module.model(module.load_params(), np.ones((1, 2), np.float32)), [[2, 3]])


def test_import_takes_values_for_shapes(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run("import", "reshaped.onnx", "-o", "out") == 1
    assert "`shape` of an operation has to be known" in capsys.readouterr().err
    assert run("import", "reshaped.onnx", "-o", "out", "--value", "shape=[1,-1]") == 0
    assert "x.reshape(1, -1)" in (folder / "out" / "model.py").read_text()


def test_import_writes_nothing_that_differs(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    from jaxport.importer.resolving import registry

    monkeypatch.setitem(
        registry._registry,
        ("", "Mul"),
        [registry.Operator("", "Mul", 7, lambda A, B: A * B + 1)],
    )
    assert run("import", "scaled.onnx", "-o", "out", "--verify") == 1
    streams = capsys.readouterr()
    assert "differs in JAX and in ONNX Runtime" in streams.out
    assert "`out` was not written" in streams.err
    assert not (folder / "out").exists()


def test_import_dumps_the_phases(folder: Path):
    assert run("import", "scaled.onnx", "-o", "out", "--dump") == 0
    phases = {path.name: path.read_text() for path in (folder / "out" / "phases").iterdir()}
    assert sorted(phases) == ["1-loaded.txt", "2-resolved.txt", "3-folded.txt", "4-finalized.txt"]
    assert "y: float32[batch, 2]" in phases["3-folded.txt"]


def test_import_keeps_guards_if_told_to(folder: Path):
    guarded = (
        "g (float[n, 4] x) => (float[n, 4] y) <float zero = {0}> { s = Sigmoid(x) n = IsNaN(s) y = Where(n, zero, s) }"
    )
    onnx.save(model(guarded), folder / "guarded.onnx")
    assert (
        run("import", "guarded.onnx", "-o", "plain")
        == run("import", "guarded.onnx", "-o", "kept", "--keep-guards")
        == 0
    )
    assert "isnan" not in (folder / "plain" / "model.py").read_text()
    assert "isnan" in (folder / "kept" / "model.py").read_text()


def test_import_prints_classes(folder: Path):
    assert run("import", "scaled.onnx", "-o", "classes", "--framework", "nnx") == 0
    assert sorted(path.name for path in (folder / "classes").iterdir()) == ["model.py", "model.safetensors"]
    assert "nnx.Module" in (folder / "classes" / "model.py").read_text()
    assert run("import", "scaled.onnx", "-o", "other", "--framework", "torch") != 0
    assert not (folder / "other").exists()


def test_run_compares_and_times(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run("run", "scaled.onnx", "--random", "--size", "batch=2", "--size", "batch=5", "--repeat", "1") == 0
    shown = capsys.readouterr().out
    assert "`g` agrees in JAX and in ONNX Runtime" in shown
    assert all(column in shown for column in ("batch=2", "batch=5", "compile", "ONNX Runtime", "ratio"))


def test_run_takes_arrays_from_files(folder: Path, capsys: pytest.CaptureFixture[str]):
    np.save(folder / "x.npy", np.ones((4, 2), np.float32))
    assert run("run", "scaled.onnx", "--value", "x=x.npy", "--repeat", "1") == 0
    assert "batch=4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scaled.onnx"], "the input `x` has no value"),
        (["missing.onnx", "--random"], "there is no file `missing.onnx`"),
        (["reshaped.onnx", "--random"], "the input `shape` cannot be sampled"),
        (["scaled.onnx", "--random", "--value", "z=[1]"], "`z` is not an input of the model"),
        (["scaled.onnx", "--random", "--value", "x"], '"x" is not a value'),
        (["scaled.onnx", "--random", "--value", "x=nope("], "neither a Python literal nor the path"),
        (["scaled.onnx", "--random", "--value", "x=[1]", "--value", "x=[1]"], "`x` is given twice"),
        (["scaled.onnx", "--random", "--value", "x=none.npy"], "`none.npy` cannot be read"),
        (["scaled.onnx", "--random", "--size", "T=2"], "the sizes T=2 are not those of the symbols"),
    ],
)
def test_what_run_refuses(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str):
    assert run("run", *arguments) == 2
    assert message in capsys.readouterr().err
