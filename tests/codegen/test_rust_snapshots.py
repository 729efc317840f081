"""Models for Burn as text: a change of the printer is seen in what it prints, without a toolchain."""

from __future__ import annotations

import pytest

from tests.codegen.rust_snapshots import FOLDER, MODELS, path_of, text_of


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_printed_as_before(name: str) -> None:
    assert text_of(name) == path_of(name).read_text(encoding="utf-8"), (
        "run `python -m tests.codegen.rust_snapshots`, and read the change"
    )


def test_there_are_no_others() -> None:
    assert {path.name for path in FOLDER.glob("*.rs")} == {path_of(name).name for name in MODELS}
