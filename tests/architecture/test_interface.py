"""The public interface changes on purpose only."""

from __future__ import annotations

import inspect

import pytest

import jaxport
from scripts import public_interface


def test_the_interface_is_what_was_written_down():
    written = public_interface.TARGET.read_text(encoding="utf-8").splitlines()
    now = public_interface.interface().splitlines()
    gone, new = ([line for line in one if line not in other] for one, other in ((written, now), (now, written)))
    assert (gone, new) == ([], []), "run `python -m scripts.public_interface`, and say in CHANGELOG.md what changed"


def test_a_change_is_seen(monkeypatch):
    before = public_interface.interface()
    monkeypatch.setattr(jaxport, "to_onnx", lambda fn, inputs, *, sooner=False: None)
    assert "jaxport.to_onnx(fn, inputs, *, sooner=False)" in public_interface.interface()
    assert "sooner" not in before


def public_objects() -> list[tuple[str, object]]:
    """What `jaxport` offers its users."""
    return [(public, getattr(jaxport, public)) for public in jaxport.__all__]


def is_error(value: object) -> bool:
    """Users never make an error of the package: they catch it."""
    return inspect.isclass(value) and issubclass(value, jaxport.JaxportError)


def test_the_package_has_a_contract():
    assert {"to_onnx", "rule", "JaxportError"} <= {public for public, _ in public_objects()}


@pytest.mark.parametrize(("public", "value"), [pytest.param(*pair, id=pair[0]) for pair in public_objects()])
def test_a_public_name_is_documented_with_an_example(public: str, value: object):
    documentation = inspect.getdoc(value)
    assert documentation, f"`jaxport.{public}` has no docstring"
    assert ">>> " in documentation or is_error(value), f"the docstring of `jaxport.{public}` has no example"
