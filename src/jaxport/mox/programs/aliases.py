"""The types of values that module expressions handle, each under one name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxport.mox.querying.match import Match
    from jaxport.mox.querying.selection import Selection

__all__ = ["Query"]

Query: TypeAlias = "str | type | Selection | Callable[[Match], object]"
"""An XPath expression or a path, the class of modules, a selection made before, or a predicate on matches."""
