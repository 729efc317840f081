"""The rules that print JAX's primitives, and those that print recorded calls.

A rule takes the body that it prints into and its operands as `TypedValue`s; what JAX calls parameters are keywords. It
returns values, and refuses what Burn cannot say with `NotPrintable`. A rule of a call that returns `None` leaves the
call to its primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from jaxport.jaxprs import PythonFunction
from jaxport.jaxprs.aliases import Shape


class ResultType(Protocol):
    """What is known of a result before it is computed: its shape and its element type."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> np.dtype: ...


Outs = Sequence[ResultType]
"""The types of the results of an equation."""
WITHOUT_EFFECT = frozenset(
    (
        "accuracy sharding out_sharding precision weak_type indices_are_sorted unique_indices linear unroll is_stable"
    ).split()
)
"""Parameters of primitives that say nothing about their values; rules do not see them."""

PRIMITIVES: dict[str, PythonFunction] = {}
"""The rules of primitives by name: `rule(body, *values, outs, **params)`."""

CALLS: dict[str, PythonFunction] = {}
"""The rules of recorded calls by name: `rule(body, step, *args, **kwargs)`."""


def primitive(*names: str) -> Callable[[PythonFunction], PythonFunction]:
    """Register the rule of primitives."""

    def register(rule: PythonFunction) -> PythonFunction:
        PRIMITIVES.update(dict.fromkeys(names, rule))
        return rule

    return register


def call(*names: str) -> Callable[[PythonFunction], PythonFunction]:
    """Register the rule of recorded calls."""

    def register(rule: PythonFunction) -> PythonFunction:
        CALLS.update(dict.fromkeys(names, rule))
        return rule

    return register
