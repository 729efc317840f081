"""Arguments of `to_onnx` that are one of a few names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from jaxport.blocks.tracing import State
from jaxport.errors import InvalidArgument

__all__ = ["Checks", "Fold", "Nonfinite", "Weights", "check_choices"]

Nonfinite = Literal["runtime", "exact", "ignore"]
Fold = Literal["constants", "weights"]
Checks = Literal["discard", "refuse"]
Weights = Literal["constants", "inputs"] | str | Sequence[str] | Callable[[str], object]
"""Which parameters become inputs: none, all, those of path patterns, or those of a predicate on paths."""
_KNOWN = {"state": State, "nonfinite": Nonfinite, "fold": Fold, "checks": Checks}


def check_choices(**values: str) -> None:
    """Check arguments by their names.

    Raises:
      InvalidArgument: a value is none of those that its argument takes.

    >>> check_choices(fold="all")
    Traceback (most recent call last):
    jaxport.InvalidArgument: fold='all' is unknown
      where:   `to_onnx(fold=...)`
      instead: "constants" or "weights"
    """
    for argument, value in values.items():
        known = get_args(_KNOWN[argument])
        if value not in known:
            names = [f'"{name}"' for name in known]
            raise InvalidArgument(
                f"{argument}={value!r} is unknown",
                where=f"`to_onnx({argument}=...)`",
                instead=f"{', '.join(names[:-1])} or {names[-1]}",
            )
