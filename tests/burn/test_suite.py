"""A part of ONNX's own cases as crates for Burn: each computes what the suite expects, or is refused with a reason."""

from __future__ import annotations

import pytest

from tests.burn import suite

pytestmark = pytest.mark.burn


def test_cases_compute_what_is_expected_or_are_refused() -> None:
    report = suite.check(suite.chosen(sample=150), "sampled")
    wrong = {name: result for name, result in report.results.items() if result.kind not in ("equal", "refused")}
    assert wrong == {}, report.text()
    assert report.counts()["equal"] >= 110, report.text()
