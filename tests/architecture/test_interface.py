"""The public interface changes on purpose only."""

from __future__ import annotations

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
