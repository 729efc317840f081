"""Context variables that have a value inside of a context only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Value = TypeVar("Value")


@contextmanager
def scoped(variable: ContextVar[Any], value: Value) -> Iterator[Value]:
    """Set a context variable inside.

    >>> level = ContextVar("level", default=0)
    >>> with scoped(level, 1):
    ...     level.get()
    1
    >>> level.get()
    0
    """
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
