"""What is shown while work goes on: in a terminal alone, and nothing of it stays."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import pytest
from rich.console import Console

import jaxport
from jaxport.phases import phase


def shown(work, *, terminal: bool = True) -> str:
    """Return what is written while `work` runs, without the codes that move the cursor and choose colours."""
    written = io.StringIO()
    with jaxport.progress(Console(file=written, force_terminal=terminal, width=80)):
        work()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())


def exported(folder: Path) -> None:
    model = jaxport.to_onnx(jnp.tanh, [("B", 3)])
    model.verify()
    model.save(folder / "model.onnx")
    jaxport.from_onnx(folder / "model.onnx").to_source(folder / "source", framework="nnx")


def test_each_phase_of_the_work_is_a_line(tmp_path):
    text = shown(lambda: exported(tmp_path))
    titles = (
        "Exporting tanh",
        "Tracing",
        "Writing operators",
        "Optimizing",
        "Comparing",
        "Saving",
        "Importing",
        "Printing",
    )
    assert [title for title in (*titles, "Recording") if title not in text] == []


def test_nothing_is_written_where_there_is_no_terminal(tmp_path):
    assert shown(lambda: exported(tmp_path), terminal=False) == ""


def test_a_phase_of_known_length_says_how_far_it_is():
    def work():
        with phase("Counting", 2) as advance:
            advance(1)
            time.sleep(0.3)  # the terminal is written to ten times a second

    assert re.search(r"Counting .* 50%", shown(work))


def test_nobody_looks_unless_asked(capfd):
    with phase("Counting", 2) as advance:
        advance(1)
    assert capfd.readouterr() == ("", "")


def test_lines_go_after_a_failure():
    def fail():
        with phase("Failing"), phase("Inside"):
            raise ValueError

    def work():
        with pytest.raises(ValueError):
            fail()
        with phase("Afterwards"):
            pass

    assert re.sub(r"\s*\x1b?\S*Failing.*?(?=Afterwards)", "", shown(work), flags=re.DOTALL).startswith("Afterwards")


def test_the_command_shows_lines_in_a_terminal_and_keeps_its_output_clean(tmp_path):
    """The lines go to the standard error: what is piped into a file is the same as without a terminal."""
    (tmp_path / "own.py").write_text("import jax.numpy as jnp\ndef double(x):\n    return x * jnp.float32(2)\n")
    command = [sys.executable, "-m", "jaxport", "export", "own:double", "--input", "B", "-o", "model.onnx"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    ours, terminal = pty.openpty()
    received: list[bytes] = []
    reader = threading.Thread(target=drain, args=(ours, received))  # or the command would wait for room
    reader.start()
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=terminal, text=True, check=True)
    os.close(terminal)
    reader.join()
    assert b"Exporting" in b"".join(received)
    assert done.stdout == plain.stdout
    assert plain.stderr == ""


def drain(terminal: int, received: list[bytes]) -> None:
    """Read what is written to a terminal until its other end is closed."""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 4096):
            received.append(part)
    os.close(terminal)
