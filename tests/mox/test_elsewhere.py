"""The table of equivalents in other libraries: each of its lines runs, on a model that has what the lines name."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxport
from tests.mox.test_interventions import Model, X

PAGE = Path(__file__).parents[2] / "docs" / "mox.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("## Equivalents in other libraries")[2].partition("\n## ")[0]
LINES = [row.rpartition("| `")[2].removesuffix("` |") for row in TABLE.splitlines() if re.match(r"\| \w", row)]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    model = Model(nnx.Rngs(0))
    mox = jaxport.make_mox(model)(X)
    values = jnp.stack([X, 2 * X])
    named = mox.sub("//Linear", jaxport.mox.lora(8, name="math"))
    file = tmp_path_factory.mktemp("adapter") / "math.safetensors"
    jaxport.mox.save_adapter(named, "math", file)
    own = {"model": model, "mox": mox, "x": X, "value": X, "values": values, "named": named, "file": file}
    functions = {"f": lambda match: lambda x: 2 * match(x), "hook": jnp.tanh, "loss": jnp.sum}
    layer = nnx.Linear(4, 4, rngs=nnx.Rngs(1))
    return {"jax": jax, "jaxport": jaxport, "nnx": nnx, "layer": layer, **vars(jaxport.mox), **own, **functions}


def test_all_lines_are_there():
    assert len(LINES) > 30
    assert len(set(LINES)) == len(LINES)


@pytest.mark.parametrize("line", LINES)
def test_a_line_runs(names, line):
    made = eval(line, dict(names))
    if isinstance(made, jaxport.mox.Mox):
        assert made(X).shape == X.shape
