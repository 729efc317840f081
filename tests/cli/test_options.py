"""Options that would have no effect, and numbers that none takes, are refused by name: of every command."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import typer

import jaxport
from jaxport.cli.app import app
from tests.cli.running import run

COMMANDS: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})


def kinds(annotation: object) -> set[object]:
    """The types in an annotation, however deep."""
    inner = typing.get_args(annotation)
    return (
        {annotation}
        if not inner
        else set().union(*map(kinds, inner[:1] if hasattr(annotation, "__metadata__") else inner))
    )


def numbers() -> Iterator[tuple[str, str, str]]:
    for registered in app.registered_commands:
        name, types = str(registered.name), inspect.signature(registered.callback).parameters
        for option in COMMANDS[name].params:
            found = kinds(types[option.name].annotation) if option.name in types else set()
            if option.opts[0].startswith("-") and {int, float} & found:
                yield name, option.opts[0], "float" if float in found else "integer"


NUMBERS = [*numbers()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doubling.py").write_text("def double(x):\n    return x + x\n")
    jaxport.to_onnx(lambda x: x + x, [jnp.ones((2, 3))]).save("m.onnx")


def line(name: str, *more: str) -> list[str]:
    """A command line with all that a command cannot do without."""
    words = [name]
    for option in COMMANDS[name].params:
        if option.required:
            words += [option.opts[0], "made"] if option.opts[0].startswith("-") else ["m.onnx"]
    return [*words, *more]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(*words) == 2
    return capsys.readouterr().err


def test_all_numbers_are_found():
    assert {"--rtol", "--seed", "--unroll-scans", "--opset", "--repeat"} <= {option for _, option, _ in NUMBERS}


@pytest.mark.parametrize(("name", "option", "kind"), NUMBERS)
def test_numbers_below_zero_are_refused(name, option, kind, capsys):
    for value in ("-4", "nan", "inf") if kind == "float" else ("-4",):
        shown = refused(capsys, *line(name, option, value))
        assert option in shown
        assert value in shown or "greater than" in shown or "from 1 on" in shown
    assert option in refused(capsys, *line(name, option, "nonsense"))
    assert not Path("made").exists()


EXPORT = ["export", "doubling:double", "-i", "B,3", "-o", "made.onnx"]
IMPORT = ["import", "m.onnx", "-o", "made"]
WITHOUT = [
    [*EXPORT, "--size", "B=2"],
    [*EXPORT, "--rtol", "1"],
    [*EXPORT, "--atol", "1"],
    [*EXPORT, "--avoid", "x=0"],
    [*IMPORT, "--size", "B=2"],
    [*IMPORT, "--rtol", "1"],
    [*IMPORT, "--atol", "1"],
]


@pytest.mark.parametrize("words", WITHOUT)
def test_options_of_a_comparison_need_one(words, capsys):
    shown = refused(capsys, *words)
    assert f"`{words[-2]}` is given without `--verify`" in shown
    assert not Path(words[5 if words[0] == "export" else 3]).exists()


def test_options_that_the_other_source_does_not_take(capsys):
    words = ["import", "doubling:double", "-o", "made", "--torch", "--strict"]
    assert "`--strict` is given with `--torch`" in refused(capsys, *words)


def test_with_the_comparison_they_are_taken():
    assert run(*EXPORT, "--verify", "--size", "B=2", "--rtol", "1e-3") == 0
    assert run(*IMPORT, "--verify", "--rtol", "1e-3") == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--weights", "lyers.*"],
        ["--function", "flax.nnx.Conv"],
        ["--constraint", "T >= 2"],
        ["--unroll-scans", "-4"],
        ["--static", "depth=3"],
        ["--input-param", "train:bool"],
        ["--nchw-input", "7"],
        ["--output-name", ""],
    ],
)
def test_what_selects_nothing_is_refused(words, capsys):
    assert run(*EXPORT, *words) in (1, 2)
    assert capsys.readouterr().err
    assert not Path("made.onnx").exists()
