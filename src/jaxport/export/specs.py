"""Read the user's input specifications into abstract values, with symbolic dims.

A tuple of only integers and strings is a shape of the default float if it is a whole argument; anything else is a
pytree of `jax.ShapeDtypeStruct` (whose dims may be names or expressions too), arrays and scalar types. In a pytree of
only shapes, or if a tuple names a dim, the tuples are shapes too; in a pytree of arrays, tuples of integers and `()`
are parts of the pytree, as they are for JAX.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export
from jax.typing import DTypeLike

from jaxport.blocks.callables.naming import signature_of
from jaxport.blocks.callables.places import Types
from jaxport.blocks.marking.window import loaded_frameworks
from jaxport.errors import InvalidArgument
from jaxport.export import ports
from jaxport.jaxprs import Array, Dim, Parameters, PythonFunction, dims
from jaxport.jaxprs.dim_text import FUNCTIONS, symbols
from jaxport.sizes.sums import only_name

BATCH = "batch"
"""The name of a first dim that is None: such dims are one, as in Keras."""

_DTYPE = re.compile(r"bool|(b?float|bfloat|u?int|complex)\d+(_\w+)?")
"""What is meant as a dtype, not as the name of a dim."""


def is_shape(spec: object) -> bool:
    """Whether a specification is a bare shape: a plain tuple, not a named tuple, which is a pytree.

    A tuple of nothing but None is one only if it is a whole argument.

    >>> is_shape(("B", 3)), is_shape((None, 3)), is_shape(((2, 3), (2,))), is_shape((None, None))
    (True, True, False, False)
    """
    return type(spec) is tuple and all(map(_is_dim, spec)) and (not spec or any(d is not None for d in spec))


def _is_dim(dim: object) -> bool:
    return dim is None or isinstance(dim, (int, str, np.integer)) or _is_symbolic(dim)


def _is_open(spec: object) -> bool:
    """Whether a specification is a tuple of nothing but None."""
    return type(spec) is tuple and len(spec) > 0 and all(dim is None for dim in spec)


def _is_symbolic(dim: object) -> bool:
    return not isinstance(dim, (int, str, np.integer)) and hasattr(dim, "scope")


def _is_spec(spec: object) -> bool:
    return is_shape(spec) or isinstance(spec, jax.ShapeDtypeStruct)


def flatten(spec: object) -> tuple[list[Any], Any]:
    """Return the leaf specifications of one argument, and their pytree.

    Args:
      spec: the specification of one argument. A shape denotes an array if it is the whole argument, and in a pytree of
        shapes; in a pytree of arrays, integers in a tuple are leaves, and `()` is an empty node.

    >>> flatten({"x": ("B", 3), "scale": ()})[0]
    [(), ('B', 3)]
    >>> flatten({"count": np.zeros(3), "empty": (), "axes": (0, 1)})[0]
    [0, 1, array([0., 0., 0.])]
    """
    if _is_open(spec):
        return [spec], jax.tree.structure(0)
    leaves, tree = jax.tree.flatten(spec, is_leaf=_is_spec)
    if is_shape(spec) or _describes(leaves):
        return leaves, tree
    return jax.tree.flatten(spec)


def _describes(leaves: Sequence[Any]) -> bool:
    """Whether the tuples among the leaves of a pytree are shapes: one names a dim, or no leaf is an array."""
    shapes = [leaf for leaf in leaves if is_shape(leaf)]
    if any(not isinstance(dim, (int, np.integer)) for shape in shapes for dim in shape):
        return True
    return any(shapes) and len(shapes) == len(leaves)


def _is_scalar_type(spec: object) -> bool:
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

    def __init__(self, default_dtype: DTypeLike, constraints: Sequence[str] | None = ()):
        self.default_dtype = np.dtype(default_dtype)
        self.constraints = _listed(constraints)
        self.scope: Any = None
        self._names: set[str] = set()

    def adopt_scope(self, specs: Iterable[object]) -> None:
        """Note the names in use, and use the scope of the dims that `jax.export.symbolic_shape` made, if there are any.

        Args:
          specs: the specification of each argument.
        """
        for leaf in (leaf for spec in specs for leaf in flatten(spec)[0]):
            # A scalar type has no shape, but NumPy's have an attribute of that name.
            for dim in (
                leaf if isinstance(leaf, tuple) else () if isinstance(leaf, type) else getattr(leaf, "shape", ())
            ):
                self._names |= {*re.findall(r"[A-Za-z_]\w*", str(dim))}
                if _is_symbolic(dim):
                    if self.scope is not None and self.scope is not dim.scope:
                        raise InvalidArgument(
                            f"the dimension `{dim}` belongs to a different symbolic scope than the others",
                            why="JAX cannot compare dimensions of different scopes",
                            instead="create all symbolic dimensions in one call of `jax.export.symbolic_shape`",
                        )
                    self.scope = dim.scope

    def check_constraints(self, sizes: Sequence[str]) -> None:
        """Refuse constraints on names that no size has, as it was declared or read: an equality may replace one.

        Raises:
          InvalidArgument: there is one.
        """
        known = self._names.union(*map(symbols, sizes))
        for constraint in self.constraints:
            unknown = [name for name in re.findall(r"[A-Za-z_]\w*", constraint) if name not in known | FUNCTIONS]
            if unknown:
                raise InvalidArgument(
                    f"the constraint {constraint!r} is on `{unknown[0]}`, which no input has",
                    where="`constraints`",
                    why="the sizes are named "
                    + (", ".join(f"`{name}`" for name in sorted(known - FUNCTIONS)) or "nothing"),
                    instead="name the size in `inputs`, or leave the constraint out",
                )

    def read(self, spec: object, where: str, dtype: np.dtype | None = None) -> Any:
        """Return the pytree of abstract values that the specification of an argument describes, in its dtypes.

        Args:
          spec: the specification.
          where: which argument it is of, for errors.
          dtype: the dtype of bare shapes, if not the default one.

        Raises:
          InvalidArgument: a dim is not a name, expression or size, or a leaf is not a specification.
        """
        pair = _pair_of_shape_and_dtype(spec)
        if pair is not None and isinstance(pair[1], str):
            raise InvalidArgument(f"{spec!r} is not a shape", where=where, instead=f"write `{_notation(*pair)}`")
        leaves, tree = flatten(spec)
        return jax.tree.unflatten(tree, [self._leaf(leaf, where, dtype or self.default_dtype) for leaf in leaves])

    def _leaf(self, leaf: Any, where: str, dtype: np.dtype) -> jax.ShapeDtypeStruct:
        if is_shape(leaf) or _is_open(leaf):
            return jax.ShapeDtypeStruct(self._shape(leaf, where), dtype)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(self._shape(leaf.shape, where), leaf.dtype)
        if _is_scalar_type(leaf):
            python = leaf in (bool, int, float, complex)
            own = narrowed(leaf) if python else np.dtype(leaf)
            return jax.ShapeDtypeStruct((), self.default_dtype if leaf is float else own)
        if not isinstance(leaf, type) and hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return jax.ShapeDtypeStruct(self._shape(leaf.shape, where), leaf.dtype)
        if isinstance(leaf, (bool, int, float, complex)):
            return jax.ShapeDtypeStruct((), narrowed(np.asarray(leaf).dtype))
        raise InvalidArgument(
            f"{leaf!r} is not a shape specification",
            where=where,
            instead='give a tuple of sizes and names like ("B", 3), a jax.ShapeDtypeStruct, an array, or `bool`',
        )

    def _shape(self, shape: Sequence[Dim], where: str) -> tuple[Dim, ...]:
        named = next((d for d in shape if isinstance(d, str) and _DTYPE.fullmatch(d.strip())), None)
        if named is not None:
            others = tuple(d for d in shape if d is not named)
            raise InvalidArgument(
                f"the dim {named!r} is the name of a dtype", where=where, instead=f"write `{_notation(others, named)}`"
            )
        return tuple(self._dim(self._named(axis) if d is None else d, where) for axis, d in enumerate(shape))

    def _named(self, axis: int) -> str:
        """Return a name for a dim that is None."""
        if axis == 0:
            return BATCH
        name = next(name for index in itertools.count(1) if (name := f"size_{index}") not in self._names)
        self._names.add(name)
        return name

    def _dim(self, dim: Dim | str, where: str) -> Dim:
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
            sizes = export.symbolic_shape(text, scope=self.scope)
        except Exception as error:  # JAX raises several kinds for a malformed expression
            raise InvalidArgument(
                f"{dim!r} is not a dimension",
                where=where,
                why=str(error).splitlines()[0],
                instead="use a name, a size, or an expression of names such as 2*B + 1",
            ) from error
        if len(sizes) != 1:
            listed = ", ".join(str(size) if isinstance(size, int) else f'"{size}"' for size in sizes)
            raise InvalidArgument(f"{dim!r} is {len(sizes)} sizes", where=where, instead=f"list them: ({listed})")
        return sizes[0]

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


def _listed(constraints: Sequence[str] | None) -> tuple[str, ...]:
    """Return constraints as a tuple; a single text, or what is no sequence, is refused."""
    if constraints is None:
        return ()
    if isinstance(constraints, str) or not isinstance(constraints, Iterable):
        raise InvalidArgument(
            f"the constraints {constraints!r} are no sequence of texts",
            where="`constraints`",
            why=f"they are a value of type `{type(constraints).__name__}`",
            instead='write a list, such as constraints=["T >= 2"]',
        )
    return tuple(constraints)


@dataclass(frozen=True)
class Inputs:
    """The specifications of all inputs.

    Attributes:
      args, kwargs: abstract values, in the dtypes that JAX computes in.
      declared: the dtype that the user gave for each of their leaves, which the model's input has.
      flags: the positions of the leaves that are Python's `bool`: the function is traced for both values of each.
      instead: what an argument that was read as a pytree of scalars may have been meant as, if there is one.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    declared: tuple[Any, ...]
    flags: frozenset[int] = frozenset()
    instead: str = ""


def read_inputs(
    inputs: Sequence[object],
    input_params: Parameters | None = None,
    constraints: Sequence[str] | None = (),
    double_precision: bool = False,
    fn: PythonFunction | None = None,
) -> Inputs:
    """Read the specifications of positional and keyword arguments; their symbolic dims share a scope.

    Args:
      inputs, input_params, constraints, double_precision: as `to_onnx` takes them.
      fn: the function. A bare shape of an input of an imported model has the dtype that the model declares.

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
    dtypes = _declared_dtypes(fn)
    positional = [*dtypes.values()]
    args = tuple(
        reader.read(spec, f"`inputs[{i}]` of `to_onnx`", positional[i] if i < len(positional) else None)
        for i, spec in enumerate(inputs)
    )
    kwargs = {
        key: reader.read(spec, f"`input_params[{key!r}]` of `to_onnx`", dtypes.get(key)) for key, spec in params.items()
    }
    leaves, tree = jax.tree.flatten((args, kwargs))
    reader.check_constraints([str(dim) for leaf in leaves for dim in leaf.shape])
    structs = [jax.ShapeDtypeStruct(leaf.shape, narrowed(leaf.dtype)) for leaf in leaves]
    flags = jax.tree.leaves((tuple(map(_flags, inputs)), {key: _flags(spec) for key, spec in params.items()}))
    args, kwargs = jax.tree.unflatten(tree, structs)
    return Inputs(
        args,
        kwargs,
        tuple(leaf.dtype for leaf in leaves),
        frozenset(index for index, is_flag in enumerate(flags) if is_flag),
        next((text for spec in (*inputs, *params.values()) if (text := _misread(spec))), ""),
    )


def _declared_dtypes(fn: PythonFunction | None) -> dict[str, np.dtype | None]:
    """Return the dtype of each argument of a callable, as its signature tells: that of an imported model does."""
    signature = None if fn is None else signature_of(fn, Types(loaded_frameworks()))
    parameters = {} if signature is None else signature.parameters
    dtypes = {name: parameter.annotation for name, parameter in parameters.items()}
    return {name: dtype if isinstance(dtype, np.dtype) else None for name, dtype in dtypes.items()}


def _pair_of_shape_and_dtype(spec: object) -> tuple[Sequence[Dim], Any] | None:
    """Return the parts of `((B, 3), "float32")` or `((B, 3), jnp.float32)`; None if it is neither."""
    if type(spec) is not tuple or len(spec) != 2 or not (is_shape(spec[0]) or _is_open(spec[0])):
        return None
    is_dtype = isinstance(spec[1], str) and _DTYPE.fullmatch(spec[1])
    return spec if is_dtype or (_is_scalar_type(spec[1]) and spec[1] is not bool) else None


def _misread(spec: Any) -> str:
    """Return what a specification that is read as a pytree of scalars may have been meant as; empty if it is none.

    >>> _misread([3]), _misread(((2, 3), np.int32))
    ('(3,)', 'jax.ShapeDtypeStruct((2, 3), "int32")')
    """
    pair = _pair_of_shape_and_dtype(spec)
    if pair is not None:
        return _notation(*pair)
    is_listed = type(spec) is list and bool(spec) and all(map(_is_dim, spec))
    return repr(tuple(spec)) if is_listed else ""


def _notation(shape: Sequence[Dim], dtype: Any) -> str:
    """Return the notation of a shape with a dtype; open sizes have names, since newer releases of JAX refuse None in
    it.
    """
    named = tuple((BATCH if axis == 0 else f"size_{axis}") if d is None else d for axis, d in enumerate(shape))
    return f'jax.ShapeDtypeStruct({named!r}, "{dtype if isinstance(dtype, str) else np.dtype(dtype).name}")'


def _flags(spec: object) -> Any:
    """Return which leaves of a specification are Python's `bool`, as a pytree of booleans."""
    leaves, tree = flatten(spec)
    return jax.tree.unflatten(tree, [leaf is bool for leaf in leaves])


def narrowed(dtype: object) -> Any:
    """Return the dtype that JAX computes in for an array of `dtype`: 32 bits for 64, unless enabled.

    >>> narrowed(np.int64), narrowed(np.uint8)
    (dtype('int32'), dtype('uint8'))
    """
    return dtype if ports.is_key(dtype) else np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def sizes_of(shapes: Mapping[str, Sequence[Dim]], arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return the sizes that concrete inputs give to the symbols of their declared shapes.

    Args:
      shapes: the declared shape of each input.
      arrays: anything with a `shape`, by the same names.

    Raises:
      InvalidArgument: a shape does not fit, two axes give one name different sizes, or a constraint does not hold.
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
            form = only_name(str(dim))
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
        expected = tuple(dims.evaluate(d, sizes) if symbols(str(d)) <= sizes.keys() else None for d in shape)
        if any(e is not None and e != a for e, a in zip(expected, arrays[name].shape, strict=True)):
            raise InvalidArgument(
                f"the input `{name}` has shape {tuple(arrays[name].shape)}",
                why=f"it was exported as ({', '.join(str(d) for d in shape)})",
                instead="pass an array of that shape",
            )
    symbolic = [dim for shape in shapes.values() for dim in shape if export.is_symbolic_dim(dim)]
    for text in dims.constraints_of(symbolic[0]) if symbolic else ():
        if dims.is_broken(text, sizes):
            raise InvalidArgument(
                f"the sizes {', '.join(f'{name}={size}' for name, size in sizes.items())} break the constraint "
                f"`{text}`",
                why="the function was exported for sizes that it holds for",
                instead="pass arrays of such sizes",
            )
    return sizes
