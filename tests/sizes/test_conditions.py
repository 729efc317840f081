"""Decisions on sizes: what is decided is what trying sizes says, and all that JAX decides is decided."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
import pytest

from jaxport.jaxprs.dims import evaluate, known
from jaxport.sizes.conditions import SizeComparison
from jaxport.sizes.integers import TooMany, has_solution
from jaxport.sizes.sums import SizeSum

COMPARE = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
FORMS = [
    "({a} + {b})", "({a} - {b})", "({a}) * {k}", "floordiv({a}, {k})", "floordiv({a}, {k})", "mod({a}, {k})", "min({a}, {b})",
    "max({a}, {b})",
]  # fmt: skip
PRODUCTS = ["({a}) * ({b})", "floordiv({a}, {b} + 1)", "mod({a}, {b} + 1)"]


def expression(draw: random.Random, names: Sequence[str], depth: int, forms: Sequence[str]) -> str:
    """An expression of sizes."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice([*names, *names, str(draw.randint(0, 9))])
    a, b = (expression(draw, names, depth - 1, forms) for _ in range(2))
    return draw.choice(forms).format(a=a, b=b, k=draw.randint(1, 6))


def comparisons(seed: int, count: int, forms: Sequence[str] = FORMS) -> Iterator[SizeComparison]:
    """Generated comparisons of one or two sizes."""
    draw = random.Random(seed)
    for _ in range(count):
        names = draw.choice([["n"], ["n"], ["n", "m"]])
        left, right = (expression(draw, names, draw.randint(0, 3), forms) for _ in range(2))
        yield SizeComparison(left, draw.choice([*COMPARE]), right)


def holds(asked: SizeComparison, sizes: Mapping[str, int]) -> bool:
    return COMPARE[asked.symbol](evaluate(asked.left, sizes), evaluate(asked.right, sizes))


def tried(asked: SizeComparison) -> list[dict[str, int]]:
    names = sorted(asked.names)
    sizes = itertools.product(range(1, 61 if len(names) < 2 else 25), repeat=len(names))
    return [dict(zip(names, values, strict=True)) for values in sizes]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_decided_is_what_trying_says(seed: int):
    kinds = dict.fromkeys(("always", "never", "sometimes"), 0)
    for asked in comparisons(seed, 60):
        truth = [holds(asked, sizes) for sizes in tried(asked)]
        always, never = asked.always(), asked.never()
        kinds["always" if always else "never" if never else "sometimes"] += 1
        assert all(truth) or not always, asked
        assert not (never and any(truth)), asked
        further = [
            *np.random.default_rng(0).integers(1, 3000, (2000, 2)).tolist(),
            *itertools.product(range(1, 400), (1, 2)),
        ]
        more = {holds(asked, {"n": n, "m": m}) for n, m in further} | {*truth}
        assert always or never or more == {True, False}, f"{asked} is decided by no question"
        found = asked.condition()
        if found is not None:
            told = [all(holds(one, sizes) for one in found) for sizes in tried(asked)]
            assert told == truth, f"{asked} where {[*map(str, found)]}"
    assert min(kinds.values()) > 5


def test_what_is_decided_of_products_is_right():
    decided = 0
    for asked in comparisons(7, 150, [*FORMS, *PRODUCTS]):
        try:
            truth = [holds(asked, sizes) for sizes in tried(asked)]
        except ZeroDivisionError:
            continue
        always, never = asked.always(), asked.never()
        decided += always + never
        assert all(truth) or not always, asked
        assert not (never and any(truth)), asked
    assert decided > 30


def test_all_that_jax_decides_is_decided():
    agreed = 0
    for asked in comparisons(11, 150):
        n, m = jax.export.symbolic_shape("n, m")
        sides = [evaluate(side, {"n": n, "m": m}) for side in (asked.left, asked.right)]
        if asked.symbol in ("==", "!="):
            continue  # JAX compares these as texts
        for one in (asked, asked.opposite):
            if known(lambda one=one, sides=sides: bool(COMPARE[one.symbol](*sides))):
                agreed += 1
                assert one.always(), one
    assert agreed > 30


@pytest.mark.parametrize("seed", range(3))
def test_integers_solve_what_trying_solves(seed: int):
    draw, ends = random.Random(seed), 6
    for _ in range(150):
        names = "xyz"[: draw.randint(1, 3)]
        drawn = lambda names=names: SizeSum(
            {name: factor for name in names if (factor := draw.randint(-5, 5))}, draw.randint(-12, 12)
        )
        zero, rest = ([drawn() for _ in range(draw.randint(0, most))] for most in (2, 4))
        box = [SizeSum({name: sign}, ends) for name in names for sign in (1, -1)]
        at = np.stack(np.meshgrid(*[np.arange(-ends, ends + 1)] * len(names)))
        values = lambda one, at=at, names=names: (
            one.number + sum(one.terms.get(name, 0) * x for name, x in zip(names, at, strict=True))
        )
        solved = np.logical_and.reduce(
            [np.full(at.shape[1:], True), *(values(one) == 0 for one in zero), *(values(one) >= 0 for one in rest)]
        )
        assert has_solution(zero, rest + box) == solved.any(), (zero, rest)


CONDITIONS = {
    "2*floordiv(height, 2) == height": "mod(height, 2) == 0",
    "8*floordiv(floordiv(floordiv(height, 2), 2), 2) == height": "mod(height, 8) == 0",
    "floordiv(n + 1, 2) + floordiv(n, 2) == n": "",
    "4*floordiv(h + 3, 4) == h + 3": "mod(h, 4) == 1",
    "min(8, past + seq) == past + seq": "past + seq <= 8",
    "min(40000, n) == n": "n <= 40000",
    "mod(max(n, 256) + max(256 - n, 0) - n, 256) == 0": None,
    "floordiv(floordiv(n - 127, 64) - 6, 3) + 2 == floordiv(n - 127, 192)": "",
    "floordiv(h - 2, 2) + 1 >= 1": "h >= 2",
    "-1*floordiv(n, 2) + 5000 >= 0": "n <= 10001",
    "2*floordiv(n, 2) + 3*floordiv(n, 3) == 2*n": "mod(n, 6) == 0",
    "8 == first + second": "first + second == 8",
    "max(n - 6000, 0) == 0": "n <= 6000",
    "mod(1 - n, 3) >= 2": "mod(n, 3) == 2",
    "n - 4095 >= 1": "n >= 4096",
    "(floordiv(h - 3, 4) + 1)*(floordiv(w - 3, 4) + 1) >= 0": "",
    "mod(3*b*n, b) == 0": "",
    "mod(a*b, c) == 0": None,
    "rows*columns == 24": "columns*rows == 24",
}


@pytest.mark.parametrize("asked", CONDITIONS)
def test_conditions_are_the_simplest(asked: str):
    found = SizeComparison.of(asked).condition()
    assert (None if found is None else " and ".join(map(str, found))) == CONDITIONS[asked]


def test_what_takes_too_long_is_not_decided():
    many = " + ".join(f"min(n{at}, {at})" for at in range(12))
    assert not SizeComparison.of(f"{many} >= 0").always()
    equations = [SizeSum({f"x{at}": 7 + at, f"x{at + 1}": -(11 + at)}, -3) for at in range(300)]
    with pytest.raises(TooMany):
        has_solution([], equations + [SizeSum({f"x{at}": 1}, at) for at in range(200)])


def test_sizes_for_which_conditions_hold_are_found():
    asked = [*map(SizeComparison.of, ["rows*columns == 24", "rows >= 5", "3*columns <= rows"])]
    assert SizeComparison.solution(asked, ["rows", "columns"]) == {"rows": 12, "columns": 2}
    assert SizeComparison.solution([SizeComparison.of("2*n == 2*m + 1")], ["n", "m"]) is None
