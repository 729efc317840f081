"""A generated table of operators at rare values of their attributes, in all versions and types, against other evaluators.

The rows, and how they are compared, are in `tests/importer/attributes.py`.
"""

from __future__ import annotations

import random
import re
import warnings

import pytest

from tests.importer.attributes import FINE, rows, seeds, verdict
from tests.importer.models import needs_newest_onnx

pytestmark = needs_newest_onnx

DIFFERENT: dict[str, str] = {}
"""Rows by their text, and why another value is right, or a refusal."""


def reason(row: str) -> str | None:
    return next((why for pattern, why in DIFFERENT.items() if re.search(pattern, row)), None)


def check(table) -> None:
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the evaluators say of infinities and overflows
        for row in table:
            what, made = verdict(row)
            if what not in FINE and reason(str(row)) is None:
                wrong.append(f"{row}: {what}: {' '.join(str(made).split())[:300]}")
    assert not wrong, "\n".join(wrong)


QUICK = "ReduceL1|ReduceL2|ReduceSumSquare|Shrink|ScatterND|LpPool|Hardmax|Gemm"


def test_a_sample_of_the_table() -> None:
    check(random.Random(0).sample(list(rows(f"^({QUICK})$")), 30))


@pytest.mark.slow
@pytest.mark.parametrize("operator", [name for _, name in seeds()])
def test_the_table(operator: str) -> None:
    check(rows(f"^{operator}$"))
