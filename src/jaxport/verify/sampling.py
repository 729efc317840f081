"""Sample meaningful inputs for a program: both signs, masks, and integers that are valid where they are used.

How an integer input is used is read from the jaxpr: it is followed through operations that move, cast or shift it, to
where it selects from an axis (gather, scatter, dynamic slices) or is compared with the positions of one: for equality
(a one-hot encoding), or for order (a mask from lengths). The size of that axis bounds it. An input whose sum selects is
a mask of zeros and ones: of a token's position, or of the last token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxport import jaxprs
from jaxport.errors import InvalidArgument, check_inputs_exist
from jaxport.export.ports import Port, is_key, key_implementation
from jaxport.jaxprs import Dim, dims
from jaxport.jaxprs.body_inputs import source_of
from jaxport.jaxprs.walk import bodies, interpret

#: The range of integers without bounds.
FREE = (-4, 12)

#: Primitives whose result still shows which element an integer selects: they move, cast, or shift it.
_CARRIES = frozenset(
    """add broadcast_in_dim clamp concatenate convert_element_type copy div dynamic_slice expand_dims gather max min mul
    optimization_barrier pad rem reshape rev select_n slice sort split squeeze sub transpose""".split()
)
#: Primitives whose result is in the order of their operand.
_INCREASING = frozenset("cbrt ceil cumsum erf exp exp2 expm1 floor log log1p logistic round sqrt tanh".split())
#: Primitives that count the ones of a mask.
_SUMS = frozenset(("cumsum", "reduce_sum"))
_EQUALITY, _ORDER = frozenset(("eq", "ne")), frozenset(("lt", "le", "gt", "ge"))


@dataclass(frozen=True)
class Range:
    """Integers from `first` up to, but excluding, `stop`, which may be symbolic."""

    first: int
    stop: Dim


@dataclass(frozen=True)
class _ValueOrigin:
    """The origin of a value: inputs of the program, by index, or the positions along axes of these sizes.

    An array of index vectors has the origin of each component in `columns`. `summed` are the inputs of which the value
    is a sum.
    """

    inputs: frozenset[int] = frozenset()
    summed: frozenset[int] = frozenset()
    positions: tuple[Dim, ...] = ()
    columns: tuple[_ValueOrigin, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.summed or self.positions)


_NOWHERE = _ValueOrigin()


def bounds(jaxpr: jaxprs.ClosedJaxpr) -> dict[int, list[Range]]:
    """Return for each integer input that selects elements the ranges that it selects from.

    >>> import jax.numpy as jnp
    >>> table = jnp.ones((10, 4))
    >>> bounds(jax.make_jaxpr(lambda ids: table[ids])(jnp.zeros(3, int)))
    {0: [Range(first=0, stop=10)]}
    >>> bounds(jax.make_jaxpr(lambda mask: table[jnp.cumsum(mask) - 1])(jnp.zeros(3, int)))
    {0: [Range(first=0, stop=2)]}
    """
    flow = _Flow()
    integers = [
        _ValueOrigin(inputs=frozenset([index])) if np.issubdtype(_dtype(aval), np.integer) else _NOWHERE
        for index, aval in enumerate(jaxpr.in_avals)
    ]
    flow.through(jaxpr.jaxpr, integers)
    return flow.ranges


def ordered(jaxpr: jaxprs.ClosedJaxpr) -> set[int]:
    """Return the inputs that have to be sorted, because the program searches them by bisection.

    >>> import jax.numpy as jnp
    >>> ordered(jax.make_jaxpr(lambda edges, x: jnp.searchsorted(2 * edges, x))(jnp.zeros(3), jnp.zeros(2)))
    {0}
    """
    flow = _Flow(_CARRIES | _INCREASING)
    flow.through(jaxpr.jaxpr, [_ValueOrigin(inputs=frozenset([index])) for index in range(len(jaxpr.in_avals))])
    return flow.searched


class _Flow:
    """Follows inputs through a program: by default what shows which element an integer selects."""

    def __init__(self, carries: Collection[str] = _CARRIES) -> None:
        self.carries = carries
        self.ranges: dict[int, list[Range]] = {}
        self.searched: set[int] = set()
        self._done: dict[tuple[jaxprs.Jaxpr, tuple[_ValueOrigin, ...]], list[_ValueOrigin]] = {}

    def through(self, jaxpr: jaxprs.Jaxpr, origins: Sequence[_ValueOrigin]) -> list[_ValueOrigin]:
        """Return the origins of the results of a body, given those of its inputs."""
        key = jaxpr, tuple(origins)
        if key not in self._done:
            inputs = [*([_NOWHERE] * len(jaxpr.constvars)), *origins]
            self._done[key] = interpret(jaxpr, inputs, self.equation, lambda _: _NOWHERE)
        return self._done[key]

    def equation(self, equation: jaxprs.JaxprEqn, origins: list[_ValueOrigin]) -> list[_ValueOrigin]:
        """Return the origins of the results of an equation; record the bounds that it implies."""
        name, nothing = equation.primitive.name, [_NOWHERE] * len(equation.outvars)
        if name == "iota":
            return [_ValueOrigin(positions=(equation.params["shape"][equation.params["dimension"]],))]
        if not any(origins):
            return nothing
        if equation.params.get("name") == "searchsorted":
            self.searched |= origins[0].inputs
        for origin, valid in _selections(equation, origins):
            for index in origin.inputs:
                self.ranges.setdefault(index, []).append(valid)
            for index in origin.summed:
                self.ranges.setdefault(index, []).append(Range(0, 2))
        inner = bodies(equation.params)
        if inner:
            return self.bodies(equation, inner, origins)
        if name in _SUMS and name not in self.carries:
            return [_ValueOrigin(summed=origins[0].inputs | origins[0].summed)]
        if name not in self.carries:
            return nothing
        return [_merged(equation, origins)] * len(equation.outvars)

    def bodies(
        self, equation: jaxprs.JaxprEqn, inner: Sequence[jaxprs.Jaxpr], origins: list[_ValueOrigin]
    ) -> list[_ValueOrigin]:
        """Do the same for an equation that runs bodies."""
        merged = [_NOWHERE] * len(equation.outvars)
        for number, body in enumerate(inner):
            sources = [source_of(equation, number, position) for position in range(len(body.invars))]
            operands = [_NOWHERE if source is None else origins[source.operand] for source in sources]
            results = self.through(body, operands)
            if len(results) == len(merged):
                merged = [old or new for old, new in zip(merged, results, strict=True)]
        return merged


def _merged(equation: jaxprs.JaxprEqn, origins: Sequence[_ValueOrigin]) -> _ValueOrigin:
    """Return the origin of a result that combines those of the operands."""
    columns: tuple[_ValueOrigin, ...] = ()
    if equation.primitive.name == "convert_element_type":
        columns = origins[0].columns
    elif equation.primitive.name == "concatenate":
        shapes: list[tuple[Dim, ...]] = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
        if equation.params["dimension"] == len(shapes[0]) - 1 and all(dims.same(shape[-1], 1) for shape in shapes):
            columns = tuple(origins)
    return _ValueOrigin(
        frozenset().union(*(origin.inputs for origin in origins)),
        frozenset().union(*(origin.summed for origin in origins)),
        next((origin.positions for origin in origins if origin.positions), ()),
        columns,
    )


def _selections(equation: jaxprs.JaxprEqn, origins: Sequence[_ValueOrigin]) -> Iterator[tuple[_ValueOrigin, Range]]:
    """Yield the operands that select, with the range that they select from."""
    name, params = equation.primitive.name, equation.params
    shapes: list[tuple[Dim, ...]] = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
    if name == "gather" or name.startswith("scatter"):
        numbers = params["dimension_numbers"]
        axes = numbers.start_index_map if name == "gather" else numbers.scatter_dims_to_operand_dims
        columns = origins[1].columns if len(origins[1].columns) == len(axes) else [origins[1]] * len(axes)
        yield from ((origin, Range(0, shapes[0][axis])) for origin, axis in zip(columns, axes, strict=True))
    elif name == "dynamic_slice":
        yield from zip(origins[1:], map(_starts, shapes[0], params["slice_sizes"]), strict=True)
    elif name == "dynamic_update_slice":
        yield from zip(origins[2:], map(_starts, shapes[0], shapes[1]), strict=True)
    elif name in _EQUALITY or name in _ORDER:
        shift = int(name in _ORDER)  # a length: at least one, at most all of them
        for one, other in (origins, origins[::-1]):
            yield from ((one, Range(shift, size + shift)) for size in other.positions)


def _starts(size: Dim, taken: Dim) -> Range:
    return Range(0, size - taken + 1)


def sample(
    port: Port,
    sizes: Mapping[str, int],
    generator: np.random.Generator,
    valid: Iterable[Range] = (),
    avoid: Iterable[int] = (),
) -> Any:
    """Sample an argument for an input: an array in JAX's layout and dtype, or an array of PRNG keys.

    Args:
      port: the input.
      sizes: the sizes of the symbols.
      generator: the generator of random numbers.
      valid: the ranges that an integer selects from.
      avoid: integers not to draw, such as that of padding.

    Raises:
      InvalidArgument: no integer is left.
    """
    shape = tuple(dims.evaluate(dim, sizes) for dim in port.shape)
    if is_key(port.dtype):
        data_shape = (*shape, *key_implementation(port.dtype).key_shape)
        return port.to_jax(generator.integers(0, 2**32, data_shape, dtype=np.uint32))
    match port.dtype.kind:
        case "b":
            return generator.random(shape) < 0.6
        case "i" | "u":
            limits = [(bound.first, dims.evaluate(bound.stop, sizes)) for bound in valid]
            return _integers(port, shape, generator, limits, avoid)
        case "c":
            return (generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(port.dtype)
        case _:
            if jax.dtypes.issubdtype(port.dtype, np.integer):  # int4 and its kin
                return _integers(port, shape, generator, [(0, 4)], avoid)
            return generator.normal(size=shape).astype(port.dtype)


def _integers(
    port: Port,
    shape: Sequence[int],
    generator: np.random.Generator,
    limits: Sequence[tuple[int, int]],
    avoid: Iterable[int],
) -> np.ndarray:
    dtype = port.dtype
    low, high = FREE
    if limits:
        low, high = max(first for first, _ in limits), min(stop for _, stop in limits)
    elif jax.dtypes.issubdtype(dtype, np.unsignedinteger):
        low = 0
    high = min(high, int(jax.numpy.iinfo(dtype).max) + 1)
    low = min(low, max(high - 1, 0))  # zero if nothing is valid (an empty axis)
    high = max(high, low + 1)
    avoided = sorted(value for value in set(avoid) if low <= value < high)
    if len(avoided) == high - low:
        raise InvalidArgument(
            f"no value is left for the input `{port.name}`",
            where="`verify(avoid=...)`",
            why=f"it is drawn from {low} to {high - 1}",
            instead="avoid fewer values, or pass the input",
        )
    drawn = generator.integers(low, high - len(avoided), shape)
    for value in avoided:  # ascending: the remaining integers are shifted past each
        drawn = drawn + (drawn >= value)
    return drawn.astype(dtype)


def avoided(avoid: Mapping[str, Iterable[int]] | None, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the integers that each input avoids.

    Raises:
      InvalidArgument: no input has a given name.

    >>> avoided({"ids": [0]}, ["ids", "mask"])
    {'ids': (0,)}
    """
    known = list(names)
    check_inputs_exist(avoid or (), known, "`verify(avoid=...)`")
    return {name: tuple(map(int, values)) for name, values in (avoid or {}).items()}


def _dtype(aval: object) -> Any:
    dtype = getattr(aval, "dtype", np.dtype(np.float32))
    return np.dtype(np.float32) if is_key(dtype) else dtype
