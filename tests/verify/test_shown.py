"""What the package returns is shown as text everywhere: printed, at a prompt, in a notebook, under streams that lack characters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax, jax.numpy as jnp
import jaxport
from flax import nnx

class Größe(nnx.Module):
    def __init__(self, rngs):
        self.schicht = nnx.Linear(3, 4, rngs=rngs)
    def __call__(self, x):
        return jax.nn.gelu(self.schicht(x))

exported = jaxport.to_onnx(Größe(nnx.Rngs(0)), [("B", 3)])
mox = jaxport.make_mox(exported.fn)(jnp.zeros((2, 3)))
program = jaxport.from_onnx(exported.model)
results = {
    "exported": exported,
    "report": exported.verify(sizes=[{"B": 2}]),
    "explanation": exported.explain(),
    "requirements": exported.requirements,
    "mox": mox,
    "fold": mox.fold(1),
    "account": jaxport.mox.account(mox),
    "matches": mox.select("//dot_general"),
    "program": program,
    "phases": program.explain(),
    "phase": program.explain()["folded"],
    "source": program.to_source(),
}
"""
#: Each of which has a table, or a tree, at a prompt and in a notebook.
TABLES = ("report", "explanation", "requirements", "account", "phases", "phase")


@pytest.fixture(scope="module")
def results() -> dict[str, object]:
    made: dict[str, object] = {}
    exec(PROGRAM, made)
    return made["results"]  # type: ignore[return-value]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_everything_is_printed_under_streams_that_lack_characters(encoding: str):
    program = f"{PROGRAM}\nfor name, value in results.items():\n    print(name, value, repr(value), f'{{value}}')\n"
    variables = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    text = done.stdout.decode(encoding)
    assert "ONNX Runtime >= " in text
    assert ("Größe" if encoding == "cp1252" else r"Gr\xf6\xdfe") in text
    assert "|- " in text or "`- " in text


@pytest.mark.parametrize("name", TABLES)
def test_a_prompt_and_a_notebook_show_the_table(name: str, results: dict[str, object]):
    value = results[name]
    assert repr(value) == str(value) == value.text()  # type: ignore[attr-defined]
    page = value._repr_html_()  # type: ignore[attr-defined]
    assert page.startswith("<pre>")
    assert "<lambda" not in page
