"""Sums of sizes: what they are is what Python computes, and which are never negative is what trying says."""

from __future__ import annotations

import itertools
import random

import pytest

from jaxport.jaxprs.dims import evaluate
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import SizeSum, ends, quotient, size_sum
from tests.sizes.test_conditions import FORMS, PRODUCTS, expression

NAMES, MOST = ("n", "m"), 13
SIZES = [dict(zip(NAMES, values, strict=True)) for values in itertools.product(range(1, MOST), repeat=2)]


def drawn(seed: int, count: int) -> list[str]:
    """Generated expressions that divide by zero for no sizes."""
    draw, made = random.Random(seed), []
    while len(made) < count:
        text = expression(draw, NAMES, draw.randint(0, 3), [*FORMS, *PRODUCTS])
        try:
            values(text)
        except ZeroDivisionError:
            continue
        made.append(text)
    return made


def values(text: str) -> list[int]:
    return [evaluate(text, sizes) for sizes in SIZES]


@pytest.mark.parametrize("seed", range(3))
def test_a_sum_is_what_its_expression_is(seed: int):
    for text in drawn(seed, 80):
        made = size_sum(text)
        assert values(str(made)) == values(text), text
        assert size_sum(str(made)) == made, text
        low, high = ends(made)
        assert low <= min(values(text)) <= max(values(text)) <= high, text


@pytest.mark.parametrize("seed", range(3))
def test_what_is_never_negative_is_what_trying_says(seed: int):
    told = 0
    for one, other in itertools.pairwise(drawn(seed + 10, 80)):
        difference = [a - b for a, b in zip(values(one), values(other), strict=True)]
        least = min(difference)
        told += is_at_least(size_sum(one), size_sum(other) + least)
        assert not is_at_least(size_sum(one), size_sum(other) + (least + 1)), (one, other)
    assert told > 25


def test_sums_of_names_are_decided_in_both_directions():
    for a, b, number in itertools.product(range(-3, 4), range(-3, 4), range(-7, 8)):
        made = SizeSum({key: factor for key, factor in (("n", a), ("m", b)) if factor}, number)
        assert is_at_least(made) is (min(a, b) >= 0 and a + b + number >= 0), made


def test_what_is_given_is_used():
    n, m, both = size_sum("n"), size_sum("m"), size_sum("total") - size_sum("n") - size_sum("m")
    assert is_at_least(size_sum("total"), n, [both])
    assert is_at_least(size_sum("2*total"), n * 2 + m, [both])
    assert not is_at_least(size_sum("total"), n + m + 1, [both])
    assert not is_at_least(n, m)


def test_what_bounds_alone_do_not_tell():
    distance = size_sum("max(2 - n, n - 2)")
    assert ends(distance)[0] == -1
    assert is_at_least(distance)
    assert not is_at_least(distance, 1)


@pytest.mark.parametrize("seed", range(2))
def test_quotient_and_rest_are_those_of_integers(seed: int):
    texts = drawn(seed + 20, 60)
    for text, divisor in zip(texts, ["2", "3", "n", "2*m", "n + 1", "n*m"] * 10, strict=True):
        one, other = size_sum(text), size_sum(divisor)
        assert values(str(quotient(one, other))) == [
            a // b for a, b in zip(values(text), values(divisor), strict=True)
        ], (text, divisor)
        whole, rest = one.split(other)
        assert whole * other + rest == one
