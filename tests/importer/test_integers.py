"""Integer arithmetic at the edges: by zero, of the least number by -1, to negative powers, shifted by all bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxport.errors import ModelError
from jaxport.export import folding
from jaxport.export.value import Value
from tests.importer import integers
from tests.importer.models import program

ROOT = Path(__file__).parents[2]


def test_every_path_gives_the_same_and_none_ends_the_process() -> None:
    command = [sys.executable, "-m", integers.__name__, "int64", "uint8"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-2000:]}"
    assert "differs" not in done.stdout, done.stdout
    assert done.stdout.count("begins") > 150


@pytest.mark.parametrize("name", ["int8", "int64", "uint8"])
def test_the_export_folds_quotients_as_the_import_does(name: str) -> None:
    dtype = np.dtype(name)
    x, y = integers.edges(integers.OPERATIONS[0], dtype)
    expected = integers.wrapped([integers.quotient(int(a), int(b)) for a, b in zip(x, y, strict=True)], dtype)
    for first, second, wanted in zip(x, y, expected, strict=True):
        operands = [Value(dtype, (), constant=np.asarray(first)), Value(dtype, (), constant=np.asarray(second))]
        folded = folding.fold("Div", operands, {}, dtype)
        assert folded is not None
        assert folded.constant == wanted, (first, second)


@pytest.mark.parametrize(("kind", "dot"), [("int", ""), ("float", ".0")])
def test_a_range_without_end_is_refused(kind: str, dot: str) -> None:
    constant = f"Constant<value_{kind} = {{}}{dot}>()"
    numbers = f"s = {constant.format(0)} e = {constant.format(5)} d = {constant.format(0)}"
    endless = program(f"g () => (int32[n] y) {{ {numbers} r = Range(s, e, d) y = Cast<to = 6>(r) }}")
    with pytest.raises(ModelError, match="a range has steps of zero"):
        endless()
