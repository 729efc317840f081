"""The page of printed models is what its script writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts import printed_models

RUSTFMT = shutil.which("rustfmt") or shutil.which("rustfmt", path=str(Path.home() / ".cargo/bin"))


@pytest.mark.slow
@pytest.mark.skipif(RUSTFMT is None, reason="the lines of Rust are those of rustfmt")
def test_the_page_is_up_to_date() -> None:
    assert printed_models.TARGET.read_text(encoding="utf-8") == printed_models.page(), "run scripts/printed_models.py"
