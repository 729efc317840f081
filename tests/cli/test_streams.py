"""Every command under encodings that lack characters, and standard streams as files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from jaxport.cli import main
from tests.cli.test_command import COMMANDS

SOURCE = """
import jax, jax.numpy as jnp

def größe(x):
    return jnp.tanh(x) * jnp.array([1.0, 2, 3, 4])

def failing(x):
    raise ValueError("ein Fehler → ≥ größer")
"""
WORDS = {
    "export": ["user_names:größe", "-i", "B,4", "-o", "out.onnx", "--explain", "--verify", "--per-block"],
    "inspect": ["modell.onnx"],
    "verify": ["modell.onnx", "user_names:größe", "-i", "B,4"],
    "import": ["modell.onnx", "-o", "out"],
    "run": ["modell.onnx", "--random"],
    "optimize": ["modell.onnx", "-o", "out.onnx"],
    "diff": ["modell.onnx", "modell.onnx"],
    "extract": ["modell.onnx", "--to", "größe", "-o", "out.onnx"],
    "tree": ["modell.onnx"],
    "view": ["modell.onnx", "-o", "größe.html"],
    "query": ["modell.onnx", "//*"],
    "account": ["modell.onnx"],
    "sub": ["modell.onnx", "//Tanh", "jax.nn.relu", "-o", "out.onnx"],
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "user_names.py").write_text(SOURCE, encoding="utf-8")
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        modell (float[B, 4] x) => (float[B, 4] y) <float[4] w = {1, 2, 3, 4}> { a = Tanh(x) y = Mul(a, w) }"""
    )
    loaded = ir.from_proto(model)
    loaded.graph.outputs[0].name = "größe"
    loaded.graph.name = "größe → 小"
    ir.save(loaded, tmp_path / "modell.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("user_names", None)


def started(
    *words: str, encoding: str, monkeypatch: pytest.MonkeyPatch, given: bytes = b""
) -> tuple[int, bytes, bytes]:
    """Run a command with streams of an encoding; return its status and what it wrote to them."""
    out, err = io.BytesIO(), io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding, write_through=True))
        patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding=encoding, write_through=True))
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as stop:
            main(words)
        return int(stop.value.code or 0), out.getvalue(), err.getvalue()


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_spells_what_the_stream_cannot_show(command: str, encoding: str, monkeypatch: pytest.MonkeyPatch):
    status, out, err = started(command, *WORDS[command], encoding=encoding, monkeypatch=monkeypatch)
    assert (status, err) == (0, b"")
    assert out.decode(encoding)
    if command == "inspect":
        assert ("gr\\xf6\\xdfe" if encoding == "ascii" else "größe") in out.decode(encoding)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_ascii(command: str, monkeypatch: pytest.MonkeyPatch):
    status, out, _ = started(*command.split(), "--help", encoding="ascii", monkeypatch=monkeypatch)
    assert status == 0
    assert out.decode("ascii")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_an_error_is_spelled_too(encoding: str, monkeypatch: pytest.MonkeyPatch):
    words = ("export", "user_names:failing", "-i", "B,4", "-o", "out.onnx")
    status, out, err = started(*words, encoding=encoding, monkeypatch=monkeypatch)
    assert (status, out) == (1, b"")
    assert "-> >= " in err.decode(encoding)


def test_a_model_goes_through_the_standard_streams(monkeypatch: pytest.MonkeyPatch):
    status, model, told = started(
        "export", "user_names:größe", "-i", "B,4", "-o", "-", encoding="utf-8", monkeypatch=monkeypatch
    )
    assert status == 0
    assert b"standard output" in told
    onnx.checker.check_model(onnx.load_model_from_string(model))
    for words in (
        ["inspect", "-"],
        ["run", "-", "--random"],
        ["tree", "-"],
        ["account", "-"],
        ["import", "-", "-o", "out"],
    ):
        status, out, err = started(*words, encoding="utf-8", monkeypatch=monkeypatch, given=model)
        assert (status, err) == (0, b""), words
        assert out
    for words in (
        ["optimize", "-", "-o", "-"],
        ["extract", "-", "--from", "x", "-o", "-"],
        ["sub", "-", "//Tanh", "jax.nn.relu", "-o", "-"],
    ):
        status, out, _ = started(*words, encoding="utf-8", monkeypatch=monkeypatch, given=model)
        assert status == 0, words
        onnx.checker.check_model(onnx.load_model_from_string(out))
    status, page, _ = started("view", "-", "-o", "-", encoding="utf-8", monkeypatch=monkeypatch, given=model)
    assert status == 0
    assert page.startswith(b"<!DOCTYPE html>")
    status, _, err = started("inspect", "-", encoding="utf-8", monkeypatch=monkeypatch, given=b"no model")
    assert status == 2
    assert b"`standard input` is not an ONNX file" in err
    status, told, _ = started("inspect", "-", encoding="utf-8", monkeypatch=monkeypatch, given=model)
    assert b"standard input (" in told
    assert b"/tmp" not in told
    words = ("import", "-", "-o", "printed", "--framework", "equinox")
    assert started(*words, encoding="utf-8", monkeypatch=monkeypatch, given=model)[0] == 0
    assert "jaxport-" not in Path("printed/model.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_result_is_json_if_asked_for(command: str, monkeypatch: pytest.MonkeyPatch):
    status, out, err = started(command, *WORDS[command], "--json", encoding="utf-8", monkeypatch=monkeypatch)
    assert (status, err) == (0, b"")
    assert json.loads(out) or command == "diff"


RESULTS = {
    "export": "out.onnx\n",
    "verify": "`modell.onnx` agrees in JAX and in ONNX Runtime\n",
    "import": f"{Path('out/model.py')}\n{Path('out/model.safetensors')}\n",
    "optimize": "out.onnx\n",
    "diff": "the files are the same\n",
    "extract": "out.onnx\n",
    "view": "größe.html\n",
    "sub": "out.onnx\n",
}
"""What `-q` leaves of what a command prints; all, where nothing stands here."""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_result_is_all_that_is_printed_if_asked_for(command: str, monkeypatch: pytest.MonkeyPatch):
    words = [word for word in WORDS[command] if word not in ("--explain", "--per-block")]
    status, out, err = started(command, *words, "-q", encoding="utf-8", monkeypatch=monkeypatch)
    assert (status, err) == (0, b"")
    assert out.decode() == RESULTS.get(command, out.decode() or "a result")


def test_a_file_on_the_standard_output_is_all_of_a_result(monkeypatch: pytest.MonkeyPatch):
    words = ("export", "user_names:größe", "-i", "B,4", "-o", "-", "-q")
    status, out, err = started(*words, encoding="utf-8", monkeypatch=monkeypatch)
    assert (status, err) == (0, b"")
    onnx.checker.check_model(onnx.load_from_string(out))


def test_phases_are_told_and_logged(monkeypatch: pytest.MonkeyPatch):
    words = ("export", "user_names:größe", "-i", "B,4", "-o", "out.onnx", "-v", "--log-file", "log.txt")
    status, _, err = started(*words, encoding="utf-8", monkeypatch=monkeypatch)
    assert status == 0
    log = Path("log.txt").read_text(encoding="utf-8")
    for phase in ("Tracing", "Writing operators", "Optimizing", "Exporting größe", "Saving"):
        assert f"{phase}: " in err.decode()
        assert f"{phase}: " in log
    assert "Importing" not in log  # what the summary looks up is not what the user asked for
    assert 'result: {"written": "out.onnx"' in log
    words = ("export", "user_names:failing", "-i", "B,4", "-o", "out.onnx", "--log-file", "log.txt")
    assert started(*words, encoding="utf-8", monkeypatch=monkeypatch)[0] == 1
    assert "Traceback" in Path("log.txt").read_text(encoding="utf-8")


def test_inputs_come_from_a_file_and_outputs_go_to_one(monkeypatch: pytest.MonkeyPatch):
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    np.savez("in.npz", x=x)
    words = ("run", "modell.onnx", "--inputs", "in.npz", "--save", "out.npz", "--threads", "1", "--repeat", "3")
    status, out, _ = started(*words, encoding="utf-8", monkeypatch=monkeypatch)
    assert status == 0
    assert "größe  float32[2, 4]  -0.761594, -1.22" in out.decode()
    assert "slowest" in out.decode()
    with np.load("out.npz") as saved:
        np.testing.assert_allclose(saved["größe"], np.tanh(x) * np.float32([1, 2, 3, 4]), rtol=1e-6)
    status, out, _ = started(*words, "--json", encoding="utf-8", monkeypatch=monkeypatch)
    assert json.loads(out)["outputs"]["größe"]["shape"] == [2, 4]
    np.save("one.npy", x)
    for file in ("one.npy", "missing.npz", "user_names.py"):
        status, _, err = started("run", "modell.onnx", "--inputs", file, encoding="utf-8", monkeypatch=monkeypatch)
        assert status == 2
        assert f"`{file}` cannot be read" in err.decode()
