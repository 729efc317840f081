from __future__ import annotations

import subprocess
import sys

import pytest

import jaxport
from tests.cli.running import run


def test_the_version(capsys: pytest.CaptureFixture[str]):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"jaxport {jaxport.__version__}\n"


COMMANDS = "export inspect verify import run optimize diff extract tree view query sub account".split()


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_whole_on_80_columns(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(*command.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert f"Usage: jaxport {command}" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "..." not in shown.replace("[ARGS]...", ""), "a text is cut off"


def test_completion_can_be_installed(capsys: pytest.CaptureFixture[str]):
    assert run("--help") == 0
    assert "--install-completion" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["exprot"], "No such command 'exprot'"),
        (["export"], "Missing argument 'MODULE:ATTRIBUTE'"),
        (["export", "math:hypot"], "Missing option '--output'"),
        (["export", "math:hypot", "-o", "m.onnx", "--state", "lose"], "'lose' is not one of"),
        (
            ["export", "math:hypot", "-o", "m.onnx", "--opset", "new"],
            "Invalid value for '--opset': it takes a whole number",
        ),
        (["export", "math:hypot", "-o", "m.onnx", "--rtol", "x"], "Invalid value for '--rtol': it takes a number"),
        (["run", "m.onnx", "--repeat", "0"], "Invalid value for '--repeat': it takes a number from 1 on"),
        (
            ["export", "math:hypot", "-o", "m.onnx", "--target", "webb"],
            "Invalid value for '--target': 'webb' is not one of",
        ),
        (["export", "math.py:hypot", "-o", "m.onnx"], "name the module: `math:hypot`"),
        (["export", "./models/nets.py:net", "-o", "m.onnx"], "name the module: `models.nets:net`"),
        (
            ["export", "math:hypot", "-o", "m.onnx", "--precision", "int8"],
            "`jaxport.to_onnx` takes them as `calibration`",
        ),
        (
            ["export", "math:hypot", "-o", "m.onnx", "-i", "B,T*"],
            "`T*` is neither a size nor an expression of dims: it ends too early",
        ),
        (
            ["export", "math:hypot", "-o", "m.onnx", "-i", "B,(T,3)"],
            "`(T,3)` is neither a size nor an expression of dims",
        ),
        (["export", "math:hypot", "-o", "m.onnx", "-i", "B,,"], 'jaxport.InvalidArgument: "B,," is not a valid input'),
        (["export", "math:nothing", "-o", "m.onnx", "-i", "B"], "`math` has no attribute `nothing`"),
        (["export", "math:hypot", "-o", "m.onnx", "-i", "B", "--static", "x"], '"x" is not a keyword argument'),
        (["export", "math:hypot", "-o", "m.onnx", "--input-param", "B,3"], '"B,3" has no name'),
        (["verify", "m.onnx"], "Missing argument 'MODULE:ATTRIBUTE'"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert text in shown.err
    assert "Traceback" not in shown.out + shown.err


def test_the_package_is_the_command_too():
    done = subprocess.run([sys.executable, "-m", "jaxport", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"jaxport {jaxport.__version__}\n"
