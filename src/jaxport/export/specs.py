"""What the user says of the inputs: specifications to abstract values, symbolic dims included.

A tuple of only integers and strings is a shape of the default float; anything else is a pytree of such tuples,
`jax.ShapeDtypeStruct` (whose dims may be names or expressions too) and arrays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from jaxport.errors import InvalidArgument
from jaxport.export import dims


def is_shape(spec: Any) -> bool:
    """Whether a specification is a bare shape: a plain tuple, not a named one, which is a pytree.

    >>> is_shape(("B", 3)), is_shape(((2, 3), (2,)))
    (True, False)
    """
    return type(spec) is tuple and all(isinstance(d, (int, str, np.integer)) or _is_symbolic(d) for d in spec)


def _is_symbolic(dim: Any) -> bool:
    return not isinstance(dim, (int, str, np.integer)) and hasattr(dim, "scope")


def _is_spec(spec: Any) -> bool:
    return is_shape(spec) or isinstance(spec, jax.ShapeDtypeStruct)


class SpecReader:
    """Turns specifications into abstract values whose symbolic dims share one scope.

    Args:
      default_dtype: the dtype of a bare shape.
      constraints: what is known of the symbols, as `jax.export.symbolic_shape` takes it (`"T >= 2"`).

    >>> reader = SpecReader(np.float32)
    >>> reader.read(("B", "2*B", 3), "x")
    ShapeDtypeStruct(shape=(B, 2*B, 3), dtype=float32)
    """

    def __init__(self, default_dtype: Any, constraints: Sequence[str] = ()):
        self.default_dtype = np.dtype(default_dtype)
        self.constraints = tuple(constraints)
        self.scope: Any = None

    def adopt_scope(self, specs: Any) -> None:
        """Use the scope of symbolic dims that the user made with `jax.export.symbolic_shape`, where there are any."""
        for leaf in jax.tree.leaves(specs, is_leaf=_is_spec):
            for dim in leaf if isinstance(leaf, tuple) else getattr(leaf, "shape", ()):
                if _is_symbolic(dim):
                    if self.scope is not None and self.scope is not dim.scope:
                        raise InvalidArgument(
                            f"the dimension `{dim}` belongs to another symbolic scope than those before it",
                            why="JAX cannot compare dimensions of different scopes",
                            instead="make all symbolic dimensions in one call of `jax.export.symbolic_shape`",
                        )
                    self.scope = dim.scope

    def read(self, spec: Any, where: str) -> Any:
        """The pytree of abstract values that a specification stands for.

        Raises:
          InvalidArgument: a dim is no name, expression or size, or a leaf is no specification.
        """
        return jax.tree.map(lambda leaf: self._leaf(leaf, where), spec, is_leaf=_is_spec)

    def _leaf(self, leaf: Any, where: str) -> jax.ShapeDtypeStruct:
        if is_shape(leaf):
            return jax.ShapeDtypeStruct(self._shape(leaf, where), self.default_dtype)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(self._shape(leaf.shape, where), leaf.dtype)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            dtype = leaf.dtype if isinstance(leaf, jax.Array) else jax.dtypes.canonicalize_dtype(leaf.dtype)
            return jax.ShapeDtypeStruct(tuple(leaf.shape), dtype)
        if isinstance(leaf, (bool, int, float, complex)):
            return jax.ShapeDtypeStruct((), jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))
        raise InvalidArgument(
            f"{leaf!r} does not say a shape",
            where=where,
            instead='give a tuple of sizes and names like ("B", 3), a jax.ShapeDtypeStruct, or an array',
        )

    def _shape(self, shape: Sequence[Any], where: str) -> tuple[dims.Dim, ...]:
        return tuple(self._dim(d, where) for d in shape)

    def _dim(self, dim: Any, where: str) -> dims.Dim:
        if isinstance(dim, (int, np.integer)):
            if dim < 0:
                raise InvalidArgument(f"the size {dim} is negative", where=where, instead='name it: ("B", 3)')
            return int(dim)
        if not isinstance(dim, str):
            return dim
        text = dim.strip()
        if re.fullmatch(r"\d+", text):
            return int(text)
        if self.scope is None:
            self.scope = self._new_scope()
        try:
            (result,) = export.symbolic_shape(text, scope=self.scope)
        except Exception as error:  # JAX raises several kinds for a malformed expression
            raise InvalidArgument(
                f"{dim!r} is no dimension",
                where=where,
                why=str(error).splitlines()[0],
                instead="use a name, a size, or an expression of names such as 2*B + 1",
            ) from error
        return result

    def _new_scope(self) -> Any:
        try:
            return export.SymbolicScope(self.constraints)
        except ValueError as error:
            raise InvalidArgument(
                f"the constraints {', '.join(map(repr, self.constraints))} cannot be read",
                where="`constraints`",
                why=str(error).splitlines()[0],
                instead='write each like "T >= 2"',
            ) from error


def sizes_of(shapes: Mapping[str, Sequence[dims.Dim]], arrays: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that concrete inputs give to the symbols of their declared shapes.

    Args:
      shapes: the declared shape of each input.
      arrays: anything with a `shape`, by the same names.

    Raises:
      InvalidArgument: a shape does not fit, or two axes give one name different sizes.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for name, shape in shapes.items():
        actual = tuple(arrays[name].shape)
        if len(actual) != len(shape):
            raise InvalidArgument(
                f"the input `{name}` has shape {actual}",
                why=f"it was exported as ({', '.join(str(d) for d in shape)})",
                instead=f"pass an array of rank {len(shape)}",
            )
        for axis, (dim, size) in enumerate(zip(shape, actual, strict=True)):
            form = None if dims.is_static(dim) else dims.solve_linear(dim)
            if form is None:
                continue
            symbol, scale, offset = form
            value, here = (size - offset) // scale, f"axis {axis} of `{name}`"
            if symbol in sizes and sizes[symbol] != value:
                raise InvalidArgument(
                    f"the dimension `{symbol}` is {sizes[symbol]} in {origin[symbol]} and {value} in {here}",
                    instead="pass arrays whose sizes agree",
                )
            sizes[symbol], origin[symbol] = value, here
    for name, shape in shapes.items():
        expected = tuple(dims.evaluate(d, sizes) if dims.symbols(str(d)) <= sizes.keys() else None for d in shape)
        if any(e is not None and e != a for e, a in zip(expected, arrays[name].shape, strict=True)):
            raise InvalidArgument(
                f"the input `{name}` has shape {tuple(arrays[name].shape)}",
                why=f"it was exported as ({', '.join(str(d) for d in shape)})",
                instead="pass an array of that shape",
            )
    return sizes
