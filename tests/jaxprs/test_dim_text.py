"""Texts of dimensions: JAX's own, PyTorch's, any identifier; hostile ones are refused at once."""

from __future__ import annotations

import time

import jax.export
import pytest
from jax.core import max_dim, min_dim

from jaxport.errors import InvalidArgument
from jaxport.jaxprs.dim_text import parse, symbols
from jaxport.jaxprs.dims import evaluate

A, B = jax.export.symbolic_shape("a, b")
OF_JAX = [
    A, 2 * A + 1, -3 * A * B + 4, A**2 * B, A // 2, A % 4, (A + 1) // (B + 2), max_dim(A, B),
    min_dim(A // 2, 3), 2 * (A // 3) ** 2 - 1, -(A // 2), A - B, max_dim(A - 3, 0) * B,
]  # fmt: skip


@pytest.mark.parametrize("dim", OF_JAX, ids=str)
def test_what_jax_prints_is_read(dim):
    assert evaluate(str(dim), {"a": A, "b": B}) == dim
    for a, b in ((1, 1), (7, 3), (12, 40)):
        assert evaluate(dim, {"a": a, "b": b}) == dim._evaluate({"a": a, "b": b})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*(N + 1)", 22),
        ("N*(N+1)", 110),
        ("(N//3)", 3),
        ("((N - 1)//2) + 1", 5),
        ("N % 4", 2),
        ("N**2", 100),
        ("-N + 30", 20),
        ("(N)", 10),
        ("2 - -N", 12),
        ("max(N, 3, 12)", 12),
        ("10 - 3 - 2", 5),
        ("100//N//2", 5),
        (" 7 ", 7),
    ],
)
def test_what_others_write_is_read(text, value):
    assert evaluate(text, {"N": 10}) == value
    (n,) = jax.export.symbolic_shape("n")
    made = evaluate(text, {"N": n})
    assert evaluate(made, {"n": 10}) == value


@pytest.mark.parametrize("name", ["mod", "floordiv", "max", "min", "lambda", "class", "_", "größe", "None", "s0_1"])
def test_any_identifier_is_a_name(name):
    assert symbols(f"2*{name} + mod(other, 3)") == {name, "other"}
    assert evaluate(f"{name}*{name}", {name: 3}) == 9


HOSTILE = {
    "a power": "a^99999999",
    "powers of powers": "((a^9)^9)^9",
    "a power of a sum": "(a + b + c)^40",
    "products of sums": "*".join(f"(a{i} + b{i})" for i in range(30)),
    "a number": "9" * 5000,
    "depth": "(" * 9000 + "a" + ")" * 9000,
    "signs": "-" * 9000 + "a",
    "length": "a + " * 20_000 + "a",
    "a call": "__import__('os')",
    "an attribute": "a.b",
    "a float": "1.5",
    "no operand": "a +",
    "two names": "batch size",
    "no parenthesis": "max(a, b",
    "one operand": "max(a)",
    "three operands": "mod(a, b, c)",
    "an unknown function": "abs(a)",
    "nothing": "",
    "a symbolic exponent": "2^a",
    "something else": "a ? b",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_or_hostile_text_is_refused(name):
    start = time.process_time()
    with pytest.raises(InvalidArgument):
        parse(HOSTILE[name])
    assert time.process_time() - start < 1
