from __future__ import annotations

import pytest

from jaxport.cli import main


def run(*arguments: object) -> int:
    """The status with which the command ends."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code
