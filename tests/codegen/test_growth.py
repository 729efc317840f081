"""Printing and explaining take time in proportion to the nodes of a file."""

from __future__ import annotations

import ast
import time
from unittest import mock

import onnx
import pytest

import jaxport
from jaxport.codegen.python.shared_functions import _Search, outlined

ENDS = "g (float[4] x0) => (float[4] y) <float[4] c = {1, 2, 3, 4}>"


def chain(count: int) -> str:
    """Nodes one after the other, all of which read one weight."""
    return " ".join([f"x{n + 1} = Add(x{n}, c)" for n in range(count)] + [f"y = Neg(x{count})"])


def wide(count: int) -> str:
    """Nodes side by side, whose results are added."""
    return " ".join(
        [f"x{n + 1} = Tanh(x0)" for n in range(count)] + [f"y = Sum({', '.join(f'x{n + 1}' for n in range(count))})"]
    )


def test_few_repetitions_are_compared() -> None:
    """Of a chain in which three statements repeat, the lengths that could not save more lines are left out."""
    lines = ["x = jnp.sin(x)" if n % 3 else "x = jnp.dot(x, self.a[...]) + x" for n in range(300)]
    (method,) = ast.parse("def f(self, x):\n    " + "\n    ".join([*lines, "return x"])).body
    assert isinstance(method, ast.FunctionDef)
    with mock.patch.object(_Search, "_alike", autospec=True, side_effect=_Search._alike) as compared:
        made = outlined(method, ["x"])
    assert compared.call_count < 10
    assert len(made.method.body) < 10


@pytest.mark.slow
@pytest.mark.parametrize("graph", [chain, wide])
def test_time_is_linear(graph) -> None:
    """Five times the nodes take about five times the CPU time; what is quadratic takes up to 25 times."""
    seconds = []
    for count in (200, 1000, 5000):  # the first warms up
        text = f'<ir_version: 8, opset_import: ["": 17]> {ENDS} {{ {graph(count)} }}'
        program = jaxport.from_onnx(onnx.parser.parse_model(text))
        start = time.process_time()
        program.to_source(framework="nnx")
        str(program.explain())
        seconds.append(time.process_time() - start)
    assert seconds[2] < 10 * seconds[1]
