"""Read the user's input specifications into abstract values, with symbolic dims.

A tuple of only integers and strings is a shape of the default float if it is a whole argument; anything else is a
pytree of `jax.ShapeDtypeStruct` (whose dims may be names or expressions too), arrays and scalar types. In a pytree of
only shapes, or if a tuple names a dim, the tuples are shapes too; in a pytree of arrays, tuples of integers and `()`
are parts of the pytree, as they are for JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax import export
from jax.typing import DTypeLike

from jaxport.errors import InvalidArgument
from jaxport.export.signature import ports
from jaxport.jaxprs import Array, Dim, Parameters, PyTree, dims


def is_shape(spec: PyTree) -> bool:
    """Whether a specification is a bare shape: a plain tuple, not a named tuple, which is a pytree.

    >>> is_shape(("B", 3)), is_shape(((2, 3), (2,)))
    (True, False)
    """
    return type(spec) is tuple and all(isinstance(d, (int, str, np.integer)) or _is_symbolic(d) for d in spec)


def _is_symbolic(dim: Dim) -> bool:
    return not isinstance(dim, (int, str, np.integer)) and hasattr(dim, "scope")


def _is_spec(spec: PyTree) -> bool:
    return is_shape(spec) or isinstance(spec, jax.ShapeDtypeStruct)


def flatten(spec: PyTree) -> tuple[list[PyTree], Any]:
    """Return the leaf specifications of one argument, and their pytree.

    Args:
      spec: the specification of one argument. A shape denotes an array if it is the whole argument, and in a pytree of
        shapes; in a pytree of arrays, integers in a tuple are leaves, and `()` is an empty node.

    >>> flatten({"x": ("B", 3), "scale": ()})[0]
    [(), ('B', 3)]
    >>> flatten({"count": np.zeros(3), "empty": (), "axes": (0, 1)})[0]
    [0, 1, array([0., 0., 0.])]
    """
    leaves, tree = jax.tree.flatten(spec, is_leaf=_is_spec)
    if is_shape(spec) or _describes(leaves):
        return leaves, tree
    return jax.tree.flatten(spec)


def _describes(leaves: Sequence[PyTree]) -> bool:
    """Whether the tuples among the leaves of a pytree are shapes: one names a dim, or no leaf is an array."""
    shapes = [leaf for leaf in leaves if is_shape(leaf)]
    if any(not isinstance(dim, (int, np.integer)) for shape in shapes for dim in shape):
        return True
    return any(shapes) and len(shapes) == len(leaves)


def _is_scalar_type(spec: PyTree) -> bool:
    """Whether a specification is a scalar type of Python, NumPy or JAX."""
    return isinstance(spec, np.dtype) or (isinstance(spec, type) and np.dtype(spec).kind != "O")


class SpecReader:
    """Turns specifications into abstract values whose symbolic dims share one scope.

    Args:
      default_dtype: the dtype of a bare shape.
      constraints: constraints on the symbols, as `jax.export.symbolic_shape` takes them (`"T >= 2"`).

    >>> reader = SpecReader(np.float32)
    >>> reader.read(("B", "2*B", 3), "x")
    ShapeDtypeStruct(shape=(B, 2*B, 3), dtype=float32)
    """

    def __init__(self, default_dtype: DTypeLike, constraints: Sequence[str] = ()):
        self.default_dtype = np.dtype(default_dtype)
        self.constraints = tuple(constraints)
        self.scope: Any = None

    def adopt_scope(self, specs: Iterable[PyTree]) -> None:
        """Use the scope of the symbolic dims that the user made with `jax.export.symbolic_shape`, if there are any.

        Args:
          specs: the specification of each argument.
        """
        for leaf in (leaf for spec in specs for leaf in flatten(spec)[0]):
            for dim in leaf if isinstance(leaf, tuple) else getattr(leaf, "shape", ()):
                if _is_symbolic(dim):
                    if self.scope is not None and self.scope is not dim.scope:
                        raise InvalidArgument(
                            f"the dimension `{dim}` belongs to a different symbolic scope than the others",
                            why="JAX cannot compare dimensions of different scopes",
                            instead="create all symbolic dimensions in one call of `jax.export.symbolic_shape`",
                        )
                    self.scope = dim.scope

    def read(self, spec: PyTree, where: str, dtype: DTypeLike | None = None) -> PyTree:
        """Return the pytree of abstract values that the specification of an argument describes, in its dtypes.

        `dtype` is that of an argument that is a bare shape, instead of the default.

        Raises:
          InvalidArgument: a dim is not a name, expression or size, or a leaf is not a specification.
        """
        leaves, tree = flatten(spec)
        if dtype is not None and is_shape(spec):
            return jax.ShapeDtypeStruct(self._shape(spec, where), np.dtype(dtype))
        return jax.tree.unflatten(tree, [self._leaf(leaf, where) for leaf in leaves])

    def _leaf(self, leaf: PyTree, where: str) -> jax.ShapeDtypeStruct:
        if is_shape(leaf):
            return jax.ShapeDtypeStruct(self._shape(leaf, where), self.default_dtype)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(self._shape(leaf.shape, where), leaf.dtype)
        if _is_scalar_type(leaf):
            python = leaf in (bool, int, float, complex)
            dtype = narrowed(leaf) if python else np.dtype(leaf)
            return jax.ShapeDtypeStruct((), self.default_dtype if leaf is float else dtype)
        if not isinstance(leaf, type) and hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype)
        if isinstance(leaf, (bool, int, float, complex)):
            return jax.ShapeDtypeStruct((), narrowed(np.asarray(leaf).dtype))
        raise InvalidArgument(
            f"{leaf!r} is not a shape specification",
            where=where,
            instead='give a tuple of sizes and names like ("B", 3), a jax.ShapeDtypeStruct, an array, or `bool`',
        )

    def _shape(self, shape: Sequence[Dim], where: str) -> tuple[dims.Dim, ...]:
        return tuple(self._dim(d, where) for d in shape)

    def _dim(self, dim: Dim, where: str) -> dims.Dim:
        if isinstance(dim, (int, np.integer)):
            if dim < 0:
                raise InvalidArgument(f"the size {dim} is negative", where=where, instead='name it: ("B", 3)')
            return int(dim)
        if not isinstance(dim, str):
            return dim
        text = dim.strip()
        if text.isdecimal():
            return int(text)
        if self.scope is None:
            self.scope = self._new_scope()
        try:
            (result,) = export.symbolic_shape(text, scope=self.scope)
        except Exception as error:  # JAX raises several kinds for a malformed expression
            raise InvalidArgument(
                f"{dim!r} is not a dimension",
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


@dataclass(frozen=True)
class Inputs:
    """The specifications of all inputs.

    Attributes:
      args, kwargs: abstract values, in the dtypes that JAX computes in.
      declared: the dtype that the user gave for each of their leaves, which the model's input has.
      flags: the positions of the leaves that are Python's `bool`: the function is traced for both values of each.
    """

    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]
    declared: tuple[Any, ...]
    flags: frozenset[int] = frozenset()


def read_inputs(
    inputs: Sequence[PyTree],
    input_params: Parameters | None = None,
    constraints: Sequence[str] = (),
    double_precision: bool = False,
    declared: Sequence[DTypeLike | None] = (),
) -> Inputs:
    """Read the specifications of positional and keyword arguments; their symbolic dims share a scope.

    `declared` has the dtypes of positional arguments that are bare shapes, if the callable says them.

    Raises:
      InvalidArgument: one of them is malformed.

    >>> read = read_inputs([jax.ShapeDtypeStruct(("B",), np.int64)], {"train": bool})
    >>> read.args[0].dtype, read.declared[0], read.flags
    (dtype('int32'), dtype('int64'), frozenset({1}))
    """
    if isinstance(inputs, (str, dict)) or not isinstance(inputs, Sequence):
        raise InvalidArgument(
            f"`inputs` is {inputs!r}", where="`to_onnx`", instead="give a list with one specification per argument"
        )
    params = dict(input_params or {})
    reader = SpecReader(np.float64 if double_precision else np.float32, constraints)
    reader.adopt_scope([*inputs, *params.values()])
    dtypes = [*declared, *[None] * len(inputs)]
    args = tuple(reader.read(spec, f"`inputs[{i}]` of `to_onnx`", dtypes[i]) for i, spec in enumerate(inputs))
    kwargs = {key: reader.read(spec, f"`input_params[{key!r}]` of `to_onnx`") for key, spec in params.items()}
    leaves, tree = jax.tree.flatten((args, kwargs))
    structs = [jax.ShapeDtypeStruct(leaf.shape, narrowed(leaf.dtype)) for leaf in leaves]
    flags = jax.tree.leaves((tuple(map(_flags, inputs)), {key: _flags(spec) for key, spec in params.items()}))
    args, kwargs = jax.tree.unflatten(tree, structs)
    return Inputs(
        args,
        kwargs,
        tuple(leaf.dtype for leaf in leaves),
        frozenset(index for index, is_flag in enumerate(flags) if is_flag),
    )


def declared_dtypes(fn: Callable[..., PyTree]) -> tuple[np.dtype | None, ...]:
    """Return the dtypes that a callable declares for its arguments, as an imported program does; () for others."""
    values = getattr(fn, "inputs", ())
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, ir.Value) for value in values):
        return ()
    kept = [value.dtype for value in values]
    unknown = (None, ir.DataType.UNDEFINED, ir.DataType.STRING)
    return tuple(None if dtype in unknown else np.dtype(dtype.numpy()) for dtype in kept)


def _flags(spec: PyTree) -> PyTree:
    """Return which leaves of a specification are Python's `bool`, as a pytree of booleans."""
    leaves, tree = flatten(spec)
    return jax.tree.unflatten(tree, [leaf is bool for leaf in leaves])


def narrowed(dtype: Any) -> Any:
    """Return the dtype that JAX computes in for an array of `dtype`: 32 bits for 64, unless enabled.

    >>> narrowed(np.int64), narrowed(np.uint8)
    (dtype('int32'), dtype('uint8'))
    """
    return dtype if ports.is_key(dtype) else np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def sizes_of(shapes: Mapping[str, Sequence[dims.Dim]], arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return the sizes that concrete inputs give to the symbols of their declared shapes.

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
