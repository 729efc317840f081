"""Dimension expressions: evaluating them, solving them, and comparing them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from jax import export

from jaxport.jaxprs import dims
from jaxport.jaxprs.dim_text import symbols
from jaxport.sizes.sums import only_name

B, T = export.symbolic_shape("B, T")
EXPRESSIONS = {
    "2*B + 1": (2 * B + 1, lambda b, t: 2 * b + 1),
    "B*T": (B * T, lambda b, t: b * t),
    "B^2": (B * B, lambda b, t: b * b),
    "floor": ((B + 1) // 2, lambda b, t: (b + 1) // 2),
    "ceil": (-(-B // 2), lambda b, t: -(-b // 2)),
    "mod": (B % 3 + T, lambda b, t: b % 3 + t),
    "nested": ((B * T + 3) // 4 % 5, lambda b, t: (b * t + 3) // 4 % 5),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@given(b=st.integers(1, 50), t=st.integers(1, 50))
def test_evaluate_is_python_arithmetic(name, b, t):
    expression, expected = EXPRESSIONS[name]
    assert dims.evaluate(expression, {"B": b, "T": t}) == expected(b, t)


@pytest.mark.parametrize(
    ("dim", "solution"),
    [
        (B, ("B", 1, 0)),
        (2 * B, ("B", 2, 0)),
        (3 * T + 4, ("T", 3, 4)),
        (T - 1, ("T", 1, -1)),
        (B * T, None),
        (B // 2, None),
    ],
)
def test_sizes_of_one_name(dim, solution):
    assert only_name(str(dim)) == solution


def test_symbols():
    assert symbols(str(2 * B + T // 2)) == {"B", "T"}


def test_labels():
    assert [dims.label(d) for d in (3, B, 2 * B)] == [3, "B", "2*B"]


@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [(2, 3, True), (2, 2, False), (B, B + 1, True), (B, T, False), (B, 2 * B, False), (B, 1, False)],
)
def test_surely_differ(a, b, differ):
    assert dims.surely_differ(a, b) is differ


def test_an_undecided_comparison_is_not_known():
    assert dims.known(lambda: B >= 1)
    assert not dims.known(lambda: B >= 2)
