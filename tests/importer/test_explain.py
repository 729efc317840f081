"""`program.explain()`: what it says after each phase."""

from __future__ import annotations

import numpy as np
import pytest

from jaxport.importer import from_onnx
from tests.importer.models import model, program

GRAPH = """g (float[n, 2] x) => (float[m] y) <float[2] w = {1, 2}, float two = {2}> { a = Mul(x, w) dead = Neg(a) s = Size(a)
    o = Constant<value_ints = [0]>() f = Unsqueeze(s, o) p = Pow(a, two) y = Reshape(p, f) }"""


def rows(explanation, phase: str) -> dict[str, tuple[str, ...]]:
    return {row[0].strip(): row[1:] for row in explanation[phase].rows}


def test_the_phases():
    explanation = program(GRAPH).explain()
    assert [phase.name for phase in explanation.phases] == ["loaded", "resolved", "folded", "finalized"]
    assert explanation["loaded"].title == "7 nodes"
    assert explanation["resolved"].title == "6 operations; 1 node that no output needs is dropped"
    assert rows(explanation, "resolved")["Unsqueeze"] == ("shapes.unsqueeze", "13")
    assert explanation["folded"].title == "3 of 6 operations are known before the program runs"
    assert rows(explanation, "folded")["Size"] == ("", "s: known int64 = 2*n", "from the shape of its input")
    assert rows(explanation, "folded")["Pow"] == ("", "p: float32[n, 2]", "")
    assert rows(explanation, "finalized")["Reshape"] == ("jnp.reshape",)
    assert explanation["finalized"].note.splitlines() == ["  parameter w: float32[2]", "  constant  two: float32[]"]
    assert str(explanation).count("\n\n") == 3
    with pytest.raises(KeyError, match="unknown"):
        explanation["unknown"]


def test_branches_and_functions_are_below_their_node():
    made = model(
        """g (bool c, float[2] x) => (float[2] y) { a = d.Twice(x)
        y = If(c) <then_branch = t () => (float[2] p) { p = Neg(a) }, else_branch = e () => (float[2] q) { q = Softsign(a) }> }""",
        functions='<domain: "d", opset_import: ["": 18]> Twice (x) => (y) { y = Add(x, x) }',
        domains=', "d": 1',
    )
    operations = [row[0] for row in from_onnx(made).explain()["resolved"].rows]
    assert operations[:5] == ["d.Twice", "  Add", "If", "  Neg", "  Softsign"]
    served = rows(from_onnx(made).explain(), "resolved")
    assert served["d.Twice"] == ("the model's own definition", "")
    assert "float32[2]" in rows(from_onnx(made).explain(), "folded")["Neg"][1]


def test_it_says_where_a_program_cannot_be_traced():
    stopped = program("g (float[2] x) => (int64[1, n] y) { a = Neg(x) y = NonZero(a) }").explain()
    assert [phase.name for phase in stopped.phases] == ["loaded", "resolved", "folded"]
    assert [row[0] for row in stopped["folded"].rows] == ["Neg"]
    assert "then it stops, and calls run operator by operator:\n`X` of an operation has to be known" in str(stopped)
    assert "the NonZero that makes `y`" in str(stopped)


def test_values_that_decide_shapes():
    graph = "g (float[n] x, int64[2] shape) => (float[a, b] y) { y = Reshape(x, shape) }"
    explanation = program(graph).explain({"shape": np.array([-1, 1])})
    assert rows(explanation, "folded")["Reshape"] == ("", "y: float32[n, 1]", "")


def test_long_values_are_cut():
    explanation = program(
        "g (float[1] x) => (int64[100] y) { s = Constant<value_ints = [100]>() y = ConstantOfShape(s) }"
    ).explain()
    assert all(len(row[2]) < 120 for row in explanation["folded"].rows)
