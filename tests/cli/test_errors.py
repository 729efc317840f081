"""Errors of the command: the user's own, those of files, in the words of the command's options."""

from __future__ import annotations

import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import jaxport
from jaxport.cli.app import options_of
from jaxport.cli.terminal.failures import in_options
from tests.cli.running import run

SOURCE = """
import sys
import jax, jax.numpy as jnp
from flax import nnx

class Perceptron(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layer = nnx.Linear(4, 2, rngs=rngs)
    def __call__(self, x):
        return self.layer(x)

def raising():
    raise ValueError("the checkpoint is gone")

def leaving():
    sys.exit(3)

def product(x, *, flag=False):
    return x @ jnp.ones((5, 3))

def mismatched(x):
    return x @ jnp.ones((7, 3))

def deciding(x):
    return x if x.sum() > 0 else -x

def branching(x, *, flag=False):
    return x if flag else -x

def stateful():
    return nnx.BatchNorm(4, rngs=nnx.Rngs(0))

def checked(x):
    jax.debug.callback(lambda v: v, x)
    return x
"""
COMMANDS = {
    "inspect": ["inspect", "FILE"],
    "verify": ["verify", "FILE", "user_code:product", "-i", "B,5"],
    "import": ["import", "FILE", "-o", "out"],
    "run": ["run", "FILE", "--random"],
    "optimize": ["optimize", "FILE", "-o", "out.onnx"],
    "diff": ["diff", "FILE", "FILE"],
    "extract": ["extract", "FILE", "--to", "y", "-o", "out.onnx"],
    "tree": ["tree", "FILE"],
    "view": ["view", "FILE", "-o", "out.html"],
    "query": ["query", "FILE", "//Conv"],
    "account": ["account", "FILE"],
    "sub": ["sub", "FILE", "//Relu", "jax.nn.gelu", "-o", "out.onnx"],
}


@pytest.fixture(autouse=True)
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "user_code.py").write_text(SOURCE)
    (tmp_path / "broken_code.py").write_text("x = 1\ny = = 2\n")
    (tmp_path / "failing_code.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "script_code.py").write_text("import sys\nsys.exit(0)\n")
    jaxport.to_onnx(jnp.tanh, [("B", 5)]).save(tmp_path / "good.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("user_code", "broken_code", "failing_code", "script_code"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("words", "status", "texts"),
    [
        (["export", "user_code:Perceptron"], 2, ["needs the argument `rngs`", "return Perceptron(rngs=nnx.Rngs(0))"]),
        (["export", "user_code:Perceptron()"], 2, ["needs the argument `rngs`"]),
        (["export", "user_code:raising"], 2, ["ValueError: the checkpoint is gone", "user_code.py:13 in raising"]),
        (["export", "user_code:leaving"], 2, ["it ends the process (`sys.exit(3)`)", "__main__"]),
        (["export", "broken_code:f"], 2, ["broken_code.py:2", "SyntaxError: invalid syntax"]),
        (["export", "failing_code:f"], 2, ["failing_code.py:2", "ZeroDivisionError: division by zero"]),
        (["export", "script_code:f"], 2, ["it ends the process (`sys.exit(0)`)"]),
        (["export", "user_code:product", "-i", "B,4"], 1, ["user_code.py:19 in product", "fix the function"]),
        (
            ["verify", "good.onnx", "user_code:product", "-i", "B,4"],
            1,
            ["user_code.py:19 in product", "fix the function"],
        ),
        (["tree", "user_code:product", "-i", "B,4"], 1, ["user_code.py:19 in product", "fix the function"]),
        (["query", "user_code:product", "//Conv", "-i", "B,4"], 1, ["user_code.py:19 in product"]),
        (["account", "user_code:product", "-i", "B,4"], 1, ["user_code.py:19 in product"]),
        (
            ["sub", "good.onnx", "//Tanh", "user_code:mismatched", "-o", "o.onnx"],
            2,
            ["`user_code.mismatched`, called with"],
        ),
    ],
)
def test_an_error_of_the_user_is_told_without_a_traceback(words, status, texts, capsys: pytest.CaptureFixture[str]):
    output = ["-o", "m.onnx"] if words[0] == "export" else []
    assert run(*words, *output) == status
    shown = capsys.readouterr()
    for text in texts:
        assert text in shown.err
    assert "Traceback" not in shown.out + shown.err
    assert len(shown.err.splitlines()) < 12


def test_the_traceback_is_shown_to_those_who_ask(capsys: pytest.CaptureFixture[str]):
    assert run("export", "user_code:raising", "-o", "m.onnx", "--verbose") == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("folder.onnx", "it is a folder"),
        ("text.onnx", "it is truncated"),
        ("empty.onnx", "it has no graph"),
    ],
)
def test_each_command_says_the_same_of_a_file_that_is_none(command, file, why, capsys: pytest.CaptureFixture[str]):
    Path("folder.onnx").mkdir()
    Path("text.onnx").write_text("no model at all\n" * 10)
    Path("empty.onnx").touch()
    assert run(*(file if word == "FILE" else word for word in COMMANDS[command])) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"jaxport.InvalidArgument: `{file}` is not an ONNX file\n  why:     {why}")
    assert "give the path of an ONNX file" in error
    assert run(*("missing.onnx" if word == "FILE" else word for word in COMMANDS[command])) == 2
    assert capsys.readouterr().err.startswith("jaxport.InvalidArgument: there is no file `missing.onnx`\n")


@pytest.mark.parametrize(
    "words",
    [
        ["export", "user_code:raising", "-i", "B,4"],
        ["sub", "missing.onnx", "//Relu", "jax.nn.gelu"],
        ["view", "missing.onnx"],
        ["optimize", "missing.onnx"],
        ["extract", "missing.onnx", "--to", "y"],
        ["import", "missing.onnx"],
    ],
)
@pytest.mark.parametrize("output", ["nowhere/m.onnx", "good.onnx/m.onnx"])
def test_the_output_is_checked_before_the_work(words, output, capsys: pytest.CaptureFixture[str]):
    assert run(*words, "-o", output) == 2
    error = capsys.readouterr().err
    assert f"`{output}` cannot be written" in error
    assert "where:   `--output`" in error


def test_what_is_written_cannot_take_the_place_of_something_else(capsys: pytest.CaptureFixture[str]):
    Path("taken").mkdir()
    assert run("export", "user_code:branching", "-i", "B,4", "-o", "taken") == 2
    assert "it is a folder" in capsys.readouterr().err
    assert run("import", "good.onnx", "-o", "user_code.py") == 2
    assert "it is a file" in capsys.readouterr().err
    assert run("import", "good.onnx", "-o", "-") == 2
    assert "a folder is written, which the standard output cannot take" in capsys.readouterr().err
    assert run("run", "good.onnx", "--random", "--save", "-") == 2
    assert "outputs need a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "wanted", "unwanted"),
    [
        (["-i", "B,4", "--opset", "99"], "where:   `--opset`", "to_onnx"),
        (["-i", "B,4", "--target", "portable", "--opset", "23"], "`--opset --target`", "to_onnx"),
        (["-i", "B,4", "--output-name", "a", "--output-name", "b"], "where:   `--output-name`", "to_onnx"),
    ],
)
def test_errors_name_the_options_of_the_command(words, wanted, unwanted, capsys: pytest.CaptureFixture[str]):
    assert run("export", "user_code:branching", "-o", "m.onnx", *words) in (1, 2)
    error = capsys.readouterr().err
    assert wanted in error
    assert unwanted not in error


def test_values_state_and_queries_are_refused_in_the_words_of_options(capsys: pytest.CaptureFixture[str]):
    assert run("export", "user_code:deciding", "-i", "B,4", "-o", "m.onnx") == 1
    assert "(`--static`), or declare a flag as `bool` (`--input-param deterministic:bool`)" in capsys.readouterr().err
    assert run("export", "user_code:stateful", "-i", "B,4", "-o", "m.onnx") == 1
    assert "`--state outputs` or `--state discard`" in capsys.readouterr().err
    assert run("query", "good.onnx", "layers.9") == 1
    error = capsys.readouterr().err
    assert "`jaxport tree` shows what there is; `--no-strict` takes any path" in error
    assert run("query", "good.onnx", "layers.9", "--no-strict") == 0


def test_a_python_flag_can_be_an_input():
    assert (
        run("export", "user_code:branching", "-i", "B,4", "--input-param", "flag:bool", "-o", "m.onnx", "--verify") == 0
    )


@pytest.mark.parametrize(
    ("command", "text", "shown"),
    [
        ("export", 'pass `state="outputs"`', "pass `--state outputs`"),
        ("export", "`to_onnx(opset=..., target=...)`", "`--opset --target`"),
        ("export", 'such as `constraints=["T >= 4"]`', 'such as `--constraint "T >= 4"`'),
        ("export", "bake it in: `static_params={'train': …}`", "bake it in: `--static train=…`"),
        ("export", "`to_onnx(calibration=...)`", "`to_onnx(calibration=...)`"),  # there is no such option
        ("verify", 'give them: `verify(sizes=[{"B": 4}])`', "give them: `--size B=4`"),
        (
            "verify",
            "if such an error is expected here, say so: `verify(rtol=..., atol=...)`",
            "say so: `--rtol --atol`",
        ),
        ("import", '`inputs={"x": ("batch", 3)}`', '`--input "x:batch,3"`'),
        ("export", "`inputs[0]` of `to_onnx`", "`--input`"),
        ("export", "`input_params['mask']` of `to_onnx`", "`--input-param`"),
        ("import", "it decides sizes: `to_source(inputs={'sr': 16000})`", "it decides sizes: `--value sr=16000`"),
        ("run", "give it: `inputs={'sr': [1, 2]}`", "`--value sr=[1, 2]`"),
        ("inspect", 'pass `state="outputs"`', 'pass `state="outputs"`'),
        ("export", "the input `state` is missing", "the input `state` is missing"),
    ],
)
def test_arguments_of_the_api_become_options(command: str, text: str, shown: str):
    assert in_options(text, options_of([command])).endswith(shown)
