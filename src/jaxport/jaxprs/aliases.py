"""The types of values that the whole package handles, each under one name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import jax
import jax.export
import numpy as np
from jax.core import ShapedArray

if TYPE_CHECKING:
    from jax._src.export.shape_poly import _DimExpr as SymbolicDim  # noqa: TID251  no public name
    from jax.extend.core import Effect, Literal, Var

    _Atom: TypeAlias = Literal | Var
else:
    Effect = object  # whose place changes between releases
    (_symbol,) = jax.export.symbolic_shape("n")
    SymbolicDim = type(_symbol)  # whose name is not public

Module: TypeAlias = object
"""An object of a framework that is called and may hold weights; frameworks share no class for it."""

Array = jax.Array | np.ndarray
"""An array of JAX, a tracer, or an array of NumPy."""

Dim: TypeAlias = int | SymbolicDim
"""The size of an axis: an integer, or an expression in the symbols of `jax.export`."""

Shape = tuple[Dim, ...]
"""The sizes of all axes."""

PythonFunction = Callable[..., Any]
"""A function or another callable whose signature is its author's choice."""

Parameters = Mapping[str, Any]
"""The parameters of an equation by name, or the keyword arguments of a call: each has a type of its own."""

Aval: TypeAlias = ShapedArray
"""The type of a value of a program; a token, which few programs have, has another one, without shape and dtype."""


def aval_of(atom: _Atom) -> Aval:
    """Return the type of a value, of which JAX says no more than that it is an `AbstractValue`."""
    return cast(Aval, atom.aval)


class TreeDef(Protocol):
    """The structure of a pytree: what is used of `jax.tree_util.PyTreeDef`, which type checkers take for a variable."""

    num_leaves: int

    def children(self) -> list[TreeDef]:
        """Return the structures of the children."""
        ...

    def node_data(self) -> tuple[type, Any] | None:
        """Return the class of the container and what it says of itself; None for a leaf."""
        ...

    def unflatten(self, leaves: Iterable[object], /) -> Any:
        """Return the pytree with these leaves."""
        ...
