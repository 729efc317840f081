"""Check symbolic sizes without raising errors.

For each symbolic size JAX raises a TypeError, and keeps it in a variable of the function that raised it. That is a
reference cycle, which holds every frame of the stack with its tracers until the next garbage collection: half of the
objects of a trace.
"""

from __future__ import annotations

from collections.abc import Callable

from jax._src import core as _core  # noqa: TID251 - the function is private
from jax.export import is_symbolic_dim

from jaxport.jaxprs.aliases import Dim, PyTree

__all__ = ["CHECKS_OF_SIZES"]


def _checked(check: Callable[[Dim], Dim]) -> Callable[[Dim], Dim]:
    """Return a check of sizes that returns symbolic ones as they are, as `check` does in the end.

    >>> _checked(int)(3.0)
    3
    """

    def checked(size: Dim) -> Dim:
        return size if is_symbolic_dim(size) else check(size)

    return checked


_NAME = "_canonicalize_dimension"

#: The functions of JAX that check the sizes of shapes: the owner, the name, and what wraps the function during a trace.
CHECKS_OF_SIZES: tuple[tuple[PyTree, str, Callable], ...] = ((_core, _NAME, _checked),) if hasattr(_core, _NAME) else ()
