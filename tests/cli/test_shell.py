"""The command as a shell meets it: what a start loads, the tab key, streams that are closed or full, interrupts."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxport.cli.terminal.completion import PRECISIONS, in_bash
from jaxport.export.precision.names import PRECISIONS as EXISTING
from tests.cli.running import run
from tests.cli.test_command import COMMANDS

# Before a command needs them: a second of JAX, a third of one of SymPy, which onnx_ir imports.
SLOW = ("jax", "jaxlib", "lxml", "ml_dtypes", "numpy", "onnx", "onnx_ir", "rich", "scipy", "sympy")
JAXPORT = [sys.executable, "-m", "jaxport"]
NETS = "import jax.numpy as jnp\n\ndef module(x):\n    return jnp.tanh(x)\n\nmodel = module\n"


def asked(*words: str) -> dict[str, str]:
    return {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_JAXPORT_COMPLETE": "complete_bash"}


STARTS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "help": (["--help"], {}, "Commands:"),
    "-h": (["-h"], {}, "Commands:"),
    "version": (["--version"], {}, "jaxport "),
    **{f"help {command}": (["help", command], {}, f"Usage: jaxport {command}") for command in COMMANDS},
    **{f"{command} -h": ([command, "-h"], {}, f"Usage: jaxport {command}") for command in COMMANDS},
    "a wrong command": (["exprot"], {}, ""),
    "script": (["--show-completion", "zsh"], {}, "compdef"),
    "TAB of a command": ([], asked("jaxport", "ex"), "export"),
    "TAB of an option": ([], asked("jaxport", "export", "nets", ":", "model", "--st"), "--state"),
    "TAB of a choice": ([], asked("jaxport", "export", "nets:model", "--state", "ref"), "refuse"),
    "TAB of a precision": ([], asked("jaxport", "export", "nets:model", "--precision", "int8-"), "int8-dynamic"),
    "TAB of a module": ([], asked("jaxport", "tree", "ne"), "nets:model"),
    "TAB of an attribute": ([], asked("jaxport", "tree", "nets", ":", "mod"), "model"),
    "TAB of a command to explain": ([], asked("jaxport", "help", "quer"), "query"),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_start_loads_nothing_slow(name: str, tmp_path: Path):
    words, variables, shown = STARTS[name]
    (tmp_path / "nets.py").write_text(NETS)
    slow = {*SLOW, *(["pydantic"] if variables else [])}  # what converts words, of which a shell asks for none
    program = (
        "import atexit, sys\n"
        f"atexit.register(lambda: sys.stderr.write('loaded: ' + ' '.join({slow!r} & {{*sys.modules}}) + '.'))\n"
        f"from jaxport.cli import main\nmain({words!r})"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr.endswith("loaded: ."), done.stderr
    assert shown in done.stdout


def test_the_names_of_precisions_are_those_that_exist():
    assert set(PRECISIONS) == set(EXISTING)


def typed_in_bash(keys: str, folder: Path) -> str:
    """What a real bash with the script of completion shows after keys are typed."""
    program = folder / "jaxport"
    program.write_text(f'#!/bin/sh\nexec {" ".join(JAXPORT)} "$@"\n')
    program.chmod(0o755)
    terminal, other_end = pty.openpty()
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "PS1": "$ ", "TERM": "dumb"}
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], cwd=folder, env=os.environ | variables, start_new_session=True,
        stdin=other_end, stdout=other_end, stderr=other_end,
    )  # fmt: skip
    os.close(other_end)
    shown = ""

    def until(text: str) -> None:
        nonlocal shown
        end = time.monotonic() + 20
        while text not in shown and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 4096).decode(errors="replace")
        assert text in shown, shown

    try:
        os.write(terminal, b'source <(jaxport --show-completion bash); echo re"a"dy\n')
        until("ready\r\n$ ")  # from its prompt on, bash reads keys itself
        os.write(terminal, keys.encode() + b'\x15echo do"n"e\n')  # the line is discarded, and was shown
        until("done")
    finally:
        bash.kill()
        bash.wait()
        os.close(terminal)
    return shown


@pytest.mark.parametrize(
    ("keys", "completed"),
    [
        ("jaxport expo\t", "jaxport export "),
        ("jaxport export nets:mode\t", "jaxport export nets:model"),
        ("jaxport export nets:mode\t-o m.onnx --nonf\t", "nets:model -o m.onnx --nonfinite "),
        ("jaxport tree ne\tu\t", "jaxport tree nets:module "),
    ],
)
def test_a_target_completes_in_bash_where_a_colon_parts_words(keys: str, completed: str, tmp_path: Path):
    (tmp_path / "nets.py").write_text(NETS)
    shown = typed_in_bash(keys, tmp_path).replace("\a", "")
    assert completed in shown, shown


def test_a_script_that_passes_one_line_is_answered_too(monkeypatch: pytest.MonkeyPatch):
    for name, value in {**asked("jaxport"), "COMP_WORDS": "jaxport ex", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    with in_bash():
        assert os.environ["COMP_WORDS"] == "jaxport ex"


def test_a_shell_without_completion_is_told_which_have_one(capsys: pytest.CaptureFixture[str]):
    assert run("--show-completion", "tcsh") == 2
    assert "name one of bash, zsh, fish, powershell, pwsh" in capsys.readouterr().err


def test_a_script_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("--install-completion", "bash") == 0
    assert "bash completion installed in" in capsys.readouterr().out
    assert "_JAXPORT_COMPLETE" in (tmp_path / ".bash_completions" / "jaxport.sh").read_text()


@pytest.mark.parametrize(("redirected", "why"), [(">&-", "it is closed"), ("> /dev/full", "No space left on device")])
@pytest.mark.parametrize(
    "words", ["--help", "--version", "inspect m.onnx", "inspect m.onnx --json", "sub m.onnx //Tanh jax.nn.relu -o -"]
)
def test_a_closed_or_full_output_is_an_error_of_one_line(words: str, redirected: str, why: str, tmp_path: Path):
    import jax.numpy as jnp

    import jaxport

    jaxport.to_onnx(jnp.tanh, [(3,)]).save(tmp_path / "m.onnx")
    command = f"{' '.join(JAXPORT)} {words} {redirected}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"jaxport: the standard output cannot be written: {why}\n")


def test_a_closed_input_and_a_closed_error_stream(tmp_path: Path):
    def status(words: str) -> tuple[int, str]:
        command = f"{' '.join(JAXPORT)} {words}"
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    assert status("inspect - <&-")[1].startswith("jaxport.InvalidArgument: the standard input is closed\n")
    assert status("inspect missing.onnx 2>&-") == (2, "")


def test_the_command_begins_before_anything_else_is_loaded():
    """Until `main` runs, Ctrl-C prints a traceback."""
    program = "import sys\nbefore = {*sys.modules}\nimport jaxport.cli\nprint(*sorted({*sys.modules} - before))"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert {*loaded} <= {"__future__", "jaxport", "jaxport.cli"}


def test_an_interrupt_while_modules_load_ends_without_a_traceback(tmp_path: Path):
    program = (
        "import builtins, os, signal\nfrom jaxport.cli import main\nreal = builtins.__import__\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "def interrupted(name, *rest, **named):\n"
        "    if name == 'jaxport.cli.app':\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest, **named)\n"
        "builtins.__import__ = interrupted\nmain(['inspect', 'm.onnx'])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
