"""The page of printed models is what its script writes."""

from __future__ import annotations

import pytest

from scripts import printed_models


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    assert printed_models.TARGET.read_text(encoding="utf-8") == printed_models.page(), "run scripts/printed_models.py"
