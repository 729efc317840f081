"""Printed source is formatted by the ruff that is installed with the package, whatever is on the PATH."""

from __future__ import annotations

import pytest

import jaxport
from jaxport.codegen.source import formatted
from tests.codegen.test_structured import blocks


def test_the_path_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    program = jaxport.from_onnx(blocks(2, "nodes"))
    code = program.to_source(framework="nnx").code
    monkeypatch.setenv("PATH", "")
    assert program.to_source(framework="nnx").code == code
    assert max(map(len, code.partition("class ")[2].splitlines())) <= 110  # a docstring is not wrapped


def test_ruff_that_was_removed_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError("ruff")

    monkeypatch.setattr("ruff.find_ruff_bin", missing)
    with pytest.raises(jaxport.JaxportError, match="source is formatted by ruff, which is not installed"):
        formatted("x = 1")
