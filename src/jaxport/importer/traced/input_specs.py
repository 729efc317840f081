"""The inputs of a program as JAX takes them while it traces: the sizes that the model declares, or that a user
gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, TypeGuard

import jax
import jax.export
import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument, check_inputs_exist
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.names import identifier, unique, unique_identifiers
from jaxport.importer.traced.assumptions import LARGE_SIZE, Assumptions
from jaxport.importer.traced.read_sizes import InputSpec, ReadSizes
from jaxport.importer.traced.zero_sizes import with_zero
from jaxport.importer.values.dtypes import canonical
from jaxport.importer.values.host import HostValue, is_dim
from jaxport.jaxprs import Dim
from jaxport.jaxprs.dim_text import FUNCTIONS, symbols
from jaxport.jaxprs.dims import constraints_of, evaluate, static

LONGEST_EXPRESSION = 200

_MULTIPLE = re.compile(r"\d+\*(?P<name>[A-Za-z_]\w*)(?: [+-] \d+)?")
"""A size from which another one can be read that no axis has."""

GivenSize: TypeAlias = Dim | str | None
"""A size as a user writes it: a number, a name, an expression; None for what the model declares."""


def input_specs(
    program: ImportedProgram,
    assumed: Assumptions = Assumptions(),  # noqa: B008  it is frozen
    inputs: Mapping[str, InputSpec] | None = None,
    known: Collection[str] = (),
    read: Mapping[str, int] = MappingProxyType({}),
    empty: Collection[str] = (),
) -> dict[str, InputSpec]:
    """Return a `jax.ShapeDtypeStruct` for each input of the model that is not known, with the model's own names for
    open sizes.

    Args:
      program: the imported model.
      assumed: what is assumed of the sizes.
      inputs: specs of some inputs, as `read_specs` returns them. Where the model gives a size of theirs a name, that
        stands for the size in other inputs, too.
      known: the names of inputs whose values are known.
      read: the inputs that stand as `ReadSizes`, since their elements are sizes; each with the smallest one.
      empty: the sizes that may be 0, as the model has them.

    Raises:
      InvalidArgument: the model does not declare the rank or type of an input.

    >>> import onnx.parser
    >>> from jaxport.importer.program import from_onnx
    >>> input_specs(
    ...     from_onnx(
    ...         onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[batch, 2] x) => (float[batch, 2] y) { y = Relu(x) }''')
    ...     )
    ... )
    {'x': ShapeDtypeStruct(shape=(batch, 2), dtype=float32)}
    """
    given = dict(inputs or {})
    open_inputs = [value for value in program.inputs if value.name not in known]
    texts = {
        (value, axis): size.value or f"{value.name}_{axis}"
        for value in open_inputs
        for axis, size in enumerate(() if value.name in given else _declared_sizes(value))
        if not isinstance(size, int)
    }
    elements = _elements([value for value in open_inputs if value.name in read], texts.values())
    bound = _bound(program, given)
    # A size with the name of an input would take it away from the argument of printed source.
    named = {name for text in assumed.constraints for side in re.split("[<>=]=", text) for name in symbols(side)}
    scope = jax.export.SymbolicScope(assumed.constraints)
    taken = {value.name or "" for value in program.inputs} - named
    every = [*texts.values(), *(text for along in elements.values() for text in along)]
    symbol = lambda name: assumed.symbol(name, scope)
    names = _Names(every, taken, bound, symbol, empty, lambda name: with_zero(name, assumed, scope))

    def spec(value: ir.Value) -> InputSpec:
        if value.name in given:
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(tuple(map(names.of_user, leaf.shape)), leaf.dtype), given[value.name]
            )
        sizes = enumerate(_declared_sizes(value))
        shape = tuple(size if isinstance(size, int) else names.size(texts[value, axis]) for axis, size in sizes)
        dtype = np.dtype(value.dtype.numpy())  # type: ignore[union-attr]
        made = jax.ShapeDtypeStruct(shape, canonical(dtype))
        if value not in elements:
            return made
        least = read[value.name or ""]
        sizes = [names.size(text) + (least - 1) for text in elements[value]]
        return ReadSizes(made, HostValue(np.array(sizes, dtype=object).reshape(static(shape)), dtype, value.name or ""))

    return {value.name or "": spec(value) for value in open_inputs}


def _elements(values: Iterable[ir.Value], taken: Iterable[str]) -> dict[ir.Value, list[str]]:
    """Return names for the elements of inputs, other than those of sizes."""
    used, made = {*taken}, {}
    for value in values:
        stem = identifier(value.name or "", "size")
        count = math.prod(size for size in _declared_sizes(value) if isinstance(size, int))
        wanted = [f"{stem}_{index}" for index in range(count)] if value.shape else [f"{stem}_size"]
        made[value] = [unique(name, used) for name in wanted]
        used |= {*made[value]}
    return made


def _declared_sizes(value: ir.Value) -> Sequence[int | ir.SymbolicDim]:
    """Return the sizes that the model declares for an input.

    Raises:
      InvalidArgument: it does not declare its rank or type.
    """
    is_tensor = isinstance(value.type, ir.TensorType)
    if not is_tensor or value.shape is None or value.dtype in (None, ir.DataType.UNDEFINED):
        raise InvalidArgument(
            f"the model does not declare the shape of the input `{value.name}`",
            where="recording the program",
            instead=f'give an array, or its sizes and names: `inputs={{"{value.name}": ("batch", 3)}}`',
        )
    return value.shape.dims


def read_specs(
    program: ImportedProgram, inputs: Mapping[str, object]
) -> tuple[dict[str, InputSpec], dict[str, object], tuple[str, ...]]:
    """Return the inputs that a user describes by their sizes, the values of the others, and constraints on the sizes.

    A tuple is a shape, as `to_onnx` takes it: `("batch", 3, "32*h", "32*w")`; None stands for what the model declares.
    One of numbers only is a value if the model declares another rank, or if the input's values decide shapes.

    Args:
      program: the imported model.
      inputs: by name, shapes, trees of `jax.ShapeDtypeStruct`, and values.

    Returns:
      Trees of `jax.ShapeDtypeStruct` with numbers and texts as sizes; values; and constraints, as
      `jax.export.symbolic_shape` takes them.

    Raises:
      InvalidArgument: there is no such input, or a shape is not one that it can have.
    """
    declared = {value.name or "": value for value in program.inputs}
    check_inputs_exist(inputs, declared, "`inputs`")
    specs: dict[str, InputSpec] = {}
    values: dict[str, object] = {}
    constraints: dict[str, None] = {}
    for name, given in inputs.items():
        if _is_shape(given, declared[name], name in program.static_inputs):
            specs[name] = _spec_of(declared[name], given)
        elif is_spec(given):
            dims = [size for leaf in jax.tree.leaves(given) for size in leaf.shape]
            constraints |= {text: None for size in dims if is_dim(size) for text in constraints_of(size)}
            specs[name] = jax.tree.map(
                lambda leaf, value=declared[name]: jax.ShapeDtypeStruct(
                    tuple(map(_size, _with_declared(value, leaf.shape))), canonical(np.dtype(leaf.dtype))
                ),
                given,
            )
        else:
            values[name] = given
    for name, spec in specs.items():
        for size in [size for leaf in jax.tree.leaves(spec) for size in leaf.shape]:
            _check_size(name, size)
    return specs, values, tuple(constraints)


def is_spec(value: object) -> bool:
    """Whether a tree describes arrays, and has none."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def _is_shape(given: object, declared: ir.Value, decides_shapes: bool) -> TypeGuard[tuple[GivenSize, ...]]:
    if type(given) is not tuple:
        return False
    if not all(size is None or isinstance(size, int | np.integer | str) or is_dim(size) for size in given):
        return False
    if any(not isinstance(size, int | np.integer) for size in given):
        return declared.dtype is not None and declared.dtype != ir.DataType.STRING
    return not decides_shapes and declared.shape is not None and len(declared.shape) == len(given)


def _spec_of(declared: ir.Value, shape: Sequence[GivenSize]) -> jax.ShapeDtypeStruct:
    if declared.shape is not None and len(declared.shape) not in (0, len(shape)):
        raise InvalidArgument(
            f"the input `{declared.name}` is given {len(shape)} sizes, the model declares {declared.shape}",
            where="`inputs`",
            instead="give a size, or a name, for each of its axes",
        )
    assert declared.dtype is not None
    return jax.ShapeDtypeStruct(
        tuple(map(_size, _with_declared(declared, shape))), canonical(np.dtype(declared.dtype.numpy()))
    )


def _with_declared(value: ir.Value, shape: Sequence[GivenSize]) -> list[Dim | str]:
    """Return the sizes of an input, with those that the model declares, or names, in place of None."""
    declared = value.shape.dims if value.shape is not None and len(value.shape) == len(shape) else [None] * len(shape)
    names = [size.value if isinstance(size, ir.SymbolicDim) else size for size in declared]
    return [names[axis] or f"{value.name}_{axis}" if size is None else size for axis, size in enumerate(shape)]


def _size(size: object) -> int | str:
    text = str(size).strip()
    return int(text) if text.lstrip("-").isdecimal() else text


def _check_size(name: str, size: int | str) -> None:
    try:
        if isinstance(size, str) and not symbols(size):
            raise InvalidArgument("it has no name")
        if isinstance(size, int) and size < 0:
            raise InvalidArgument("it is negative")
    except InvalidArgument as error:
        raise InvalidArgument(
            f"`{size}` is not a size of the input `{name}`",
            where="`inputs`",
            why=str(error).partition("\n")[0],
            instead="give a number, a name, or an expression of names such as 32*h",
        ) from error


def _bound(program: ImportedProgram, given: Mapping[str, object]) -> dict[str, Dim]:
    """Return what the user gave in place of the names of sizes that the model declares."""
    bound: dict[str, Dim] = {}
    for value in program.inputs:
        shape = getattr(given.get(value.name or ""), "shape", None)
        if shape is not None and value.shape is not None and len(value.shape) == len(shape):
            for size, own in zip(value.shape.dims, shape, strict=True):
                if not isinstance(size, int) and size.value:
                    bound.setdefault(size.value, own)
    return bound


class _Names:
    """The names of open sizes, as JAX takes them.

    A text such as `past + 1` is an expression if its names are names of sizes, as `n` is beside `4*n`; anything else is
    a name.

    Args:
      texts: the sizes as the model has them.
      inputs: names that are those of something else: such a size is `points_size`.
      bound: the sizes that the user gave in place of some of them.
      symbol: returns what stands for a name.
      empty: the sizes that may be 0.
      with_zero: returns what stands for the name of one of these.
    """

    def __init__(
        self,
        texts: Iterable[str],
        inputs: Collection[str],
        bound: Mapping[str, Dim],
        symbol: Callable[[str], Dim],
        empty: Collection[str],
        with_zero: Callable[[str], Dim],
    ):
        texts = list(dict.fromkeys(texts))
        multiples = [found["name"] for text in texts if (found := _MULTIPLE.fullmatch(text)) is not None]
        plain = [text for text in dict.fromkeys([*texts, *multiples]) if text.isidentifier() and text not in bound]
        wanted = [f"{text}_size" if text in inputs else text for text in plain]
        self.bound, self.symbol, self.empty, self.with_zero = bound, symbol, empty, with_zero
        self.names = dict(zip(plain, unique_identifiers(wanted, "size", FUNCTIONS), strict=True))
        for text in texts:
            if text not in self.names and text not in bound and not _is_expression(text, [*plain, *bound]):
                self.names[text] = unique(identifier(text, "size"), {*self.names.values(), *FUNCTIONS})

    def size(self, text: str) -> Dim:
        if text in self.bound:
            return self.of_user(self.bound[text])
        if text in self.names:
            return (self.with_zero if text in self.empty else self.symbol)(self.names[text])
        return evaluate(text, {name: self.size(name) for name in symbols(text)})

    def of_user(self, size: Dim) -> Dim:
        """Return a size that the user gave: a number, or an expression as text."""
        return evaluate(size, {name: self.symbol(name) for name in symbols(size)}) if isinstance(size, str) else size


def _is_expression(text: str, names: Collection[str]) -> bool:
    """Whether a text is an expression of these names; a number that is not a size is a name."""
    if len(text) > LONGEST_EXPRESSION:
        return False
    try:
        return symbols(text) <= {*names} and evaluate(text, dict.fromkeys(names, LARGE_SIZE)) >= 0
    except (InvalidArgument, ArithmeticError):
        return False
