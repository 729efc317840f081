"""Integer arithmetic at the edges: by zero, of the least number by -1, to negative powers, shifted by all bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxport.errors import ModelError
from jaxport.export.emit import folding
from jaxport.export.emit.value import Value
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
    with pytest.raises(ModelError, match="a range has a step of zero"):
        endless()


LEAST, MOST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((MOST - 2, MOST, 1), [MOST - 2, MOST - 1]), ((LEAST, MOST, MOST), [LEAST, -1, MOST - 1]), ((5, 0, LEAST), [5])],
)
def test_ranges_between_the_limits_of_integers(limits: tuple[int, int, int], expected: list[int]) -> None:
    s, e, d = limits
    constants = f"s = Constant<value_int = {s}>() e = Constant<value_int = {e}>() d = Constant<value_int = {d}>()"
    with jax.enable_x64(True):
        assert program(f"g () => (int64[n] y) {{ {constants} y = Range(s, e, d) }}")().tolist() == expected


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (f"g () => (int64[n] y) <int64 s = {{{LEAST}}}, int64 e = {{{MOST}}}, int64 d = {{1}}> {{ y = Range(s, e, d) }}", "a range of 18446744073709551615 numbers"),
        ("g (float[1, 1, 4] x) => (float[1, 1, n] y) <float[1, 1, 1] w = {1}> { y = Conv<strides = [0]>(x, w) }", "`strides` has steps of 0"),
        ("g (float[1, 1, 4] x) => (float[1, 1, n] y) { y = MaxPool<kernel_shape = [2], dilations = [-1]>(x) }", "`dilations` has steps of -1"),
    ],
)  # fmt: skip
def test_steps_and_ranges_without_meaning_are_refused(graph: str, message: str) -> None:
    made = program(graph)
    with jax.enable_x64(True), pytest.raises(ModelError, match=message):
        jax.jit(made)(*[np.ones((1, 1, 4), np.float32)] * len(made.inputs))


def test_a_slice_takes_any_step() -> None:
    steps = f"<int64[1] s = {{3}}, int64[1] e = {{{LEAST}}}, int64[1] a = {{0}}, int64[1] d = {{{LEAST}}}>"
    made = program(f"g (float[4] x) => (float[n] y) {steps} {{ y = Slice(x, s, e, a, d) }}")
    assert jax.jit(made)(np.arange(4, dtype=np.float32)).tolist() == [3]
