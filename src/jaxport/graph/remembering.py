"""What functions return for the values and nodes of a graph, remembered while nothing changes the graph.

Matchers ask the same of a value for each pattern, and for each value that is computed from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TypeVar

from jaxport.scoped import scoped

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

_memory: ContextVar[dict[object, dict] | None] = ContextVar("memory", default=None)
_MISSING = object()


def remembering() -> AbstractContextManager[dict]:
    """Remember what the `remembered` functions return; the graph must not change while this context is open."""
    return scoped(_memory, {})


def remembered(function: Callable[[Key], Result]) -> Callable[[Key], Result]:
    """Make a function of a value or a node compute each result once while a graph does not change.

    >>> calls = []
    >>> @remembered
    ... def doubled(x):
    ...     calls.append(x)
    ...     return 2 * x
    >>> doubled(1), doubled(1), len(calls)
    (2, 2, 2)
    >>> with remembering():
    ...     doubled(1), doubled(1), len(calls)
    (2, 2, 3)
    """

    @functools.wraps(function)
    def once(key: Key) -> Result:
        memory = _memory.get()
        if memory is None:
            return function(key)
        results = memory.get(function)
        if results is None:
            results = memory[function] = {}
        result = results.get(key, _MISSING)
        if result is _MISSING:
            result = results[key] = function(key)
        return result

    return once
