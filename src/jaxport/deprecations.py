"""Names that will be removed: since when, and what to use instead. `docs/stability.md` has the policy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass


@dataclass(frozen=True)
class Deprecation:
    """A name that is deprecated.

    Attributes:
      since: the minor release that deprecated it, such as "0.3". It is removed two minor releases later at the
        earliest.
      instead: what to use instead.
    """

    since: str
    instead: str


DEPRECATED: dict[str, Deprecation] = {}
"""By public name, as in `tests/architecture/interface.txt`: `jaxport.to_onnx`; for an argument,
`jaxport.to_onnx(opset)`.

Names stay in the table after they were removed, so that the test of the policy knows them.
"""


def warn(name: str) -> None:
    """Warn the user of a name, if it is deprecated."""
    found = DEPRECATED.get(name)
    if found is not None:
        text = f"`{name}` is deprecated since jaxport {found.since}: use {found.instead}"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
