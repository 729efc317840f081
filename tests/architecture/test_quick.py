"""`make quick` says what it did: red, green, or not finished."""

from __future__ import annotations

import pytest

from tests import quick


@pytest.mark.parametrize(
    ("architecture", "closest", "late", "more", "said"),
    [
        (0, 0, 0, 0, "green"),
        (0, quick.NO_TESTS, 0, 0, "green"),
        (1, 0, 0, 0, "red"),
        (0, 1, 0, 0, "red"),
        (0, 2, 5, 3, "red"),
        (0, 0, 432, 0, "not finished: 432 tests had no time"),
        (0, 0, 0, 7, "not finished: 7 more test files can see the change"),
        (0, 0, 2, 7, "not finished: 2 tests had no time, 7 more test files can see the change"),
    ],
)
def test_the_verdict(architecture: int, closest: int, late: int, more: int, said: str):
    assert quick.verdict(architecture, closest, late, more).startswith(said)


def test_the_closest_tests_come_first_and_the_architecture_is_apart():
    tests, more = quick.chosen(["src/jaxport/graph/fusions/softmax.py"])
    assert "tests/graph/test_softmax.py" in tests[:3]
    assert more > 0
    assert not set(tests) & set(quick.ALWAYS)
    assert all((quick.ROOT / file).is_file() for file in quick.ALWAYS)


def test_tests_without_time_are_counted(tmp_path):
    program = "print('12 more tests were chosen, for which no time was left')"
    assert quick.streamed([quick.sys.executable, "-c", program]) == (0, 12)
