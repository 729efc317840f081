"""The environment has what its tests are about: a package that is missing would be skipped, not noticed."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.clients
REQUIRED = [
    line.strip()
    for line in (Path(__file__).parent / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize("required", REQUIRED)
def test_the_package_is_installed(required):
    name, _, version = required.partition("==")
    assert metadata.version(name) == version
