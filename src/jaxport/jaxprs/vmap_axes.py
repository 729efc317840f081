"""Which axes of the operands and results of an equation `vmap` has added: recorded while a program is traced.

`vmap` leaves no equation of its own: the batching rule of each operation emits operations on the whole batch. While the
patches `RECORDS_OF_VMAP` act, what it emits bears the record of the operation, as an element of its name stack that has
no text.

>>> axes_of_batches(jax.make_jaxpr(jnp.sin)(jnp.ones(3)).eqns[0])
()
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.interpreters import batching as _batching  # noqa: TID251 - the class is private

from jaxport.jaxprs.aliases import Shape, aval_of
from jaxport.jaxprs.body_inputs import DISSOLVED, PLAIN_CALLS
from jaxport.jaxprs.releases import JaxprEqn, source_info_util
from jaxport.jaxprs.rewrite import inlined, traced, with_operands

Levels = tuple[tuple[tuple[int | None, ...], tuple[int | None, ...]], ...]

# The shape of a value for one example, and the axis of the batch; None if all examples share it.
Value = tuple[Shape | None, int | None]


@dataclass(eq=False)
class Mapped:
    """An operation under one `vmap`, as the mapped function has it.

    Attributes:
      primitive: its name.
      size: of the batch.
      operands, results: the shape of each for one example, and the axis that the batch has.
      inner: the same operation under the `vmap` inside of this one.
    """

    primitive: str
    size: Any
    operands: tuple[Value, ...]
    results: tuple[Value, ...] = ()
    inner: Mapped | None = None
    # What JAX asks of the elements of a name stack.
    name: str = ""

    def wrap(self, stack: list[str]) -> None:
        """Add nothing to the text of a name stack."""


def borne_by(equation: JaxprEqn) -> list[Mapped]:
    """Return the records that an equation bears, the innermost first; it may have been emitted beside the operation."""
    stack = equation.source_info.name_stack.stack
    last = next((part for part in reversed(stack) if isinstance(part, Mapped)), None)
    return [] if last is None else [*_inward(last)][::-1]


def records_of(equation: JaxprEqn) -> list[Mapped] | None:
    """Return the records of an operation for each `vmap` around it, the innermost first.

    None if it was emitted beside another operation, or for a `vmap` that left no record.
    """
    records, count = borne_by(equation), transforms_of(equation).count("vmap")
    fitting = all(record.primitive == equation.primitive.name for record in records)
    return records if fitting and count <= len(records) else None


def _inward(record: Mapped | None) -> Iterator[Mapped]:
    while record is not None:
        yield record
        record = record.inner


def transforms_of(equation: JaxprEqn) -> list[str]:
    """Return the names of the transformations that an equation was made under, the outermost first.

    >>> transforms_of(jax.make_jaxpr(jax.vmap(jnp.sin))(jnp.ones(3)).eqns[0])
    ['vmap']
    """
    stack = equation.source_info.name_stack.stack
    return [part.name for part in stack if type(part).__name__ == "Transform"]


def with_record(transforms: Sequence[str], *records: Mapped) -> source_info_util.SourceInfo:
    """Return the source of an equation that was made under these transformations, and bears a record."""
    stack = source_info_util.new_name_stack()
    for name in transforms:
        stack = stack.transform(name)
    return source_info_util.new_source_info().replace(name_stack=_extended(stack, *records))


def _extended(stack: Any, *records: Mapped) -> Any:
    return type(stack)((*stack.stack, *records))


# -- recording ---------------------------------------------------------------------------------------------------------


def _recorded(process: Callable) -> Callable:
    """Wrap a method by which the trace of a `vmap` processes an operation."""

    @functools.wraps(process)
    def recorded(self: Any, primitive: Any, *args: Any, **kwargs: Any) -> object:
        # The operands of a primitive come first, those of a function with a rule of its own last.
        tracers = args[0] if process.__name__ == "process_primitive" else args[-1]
        stack = source_info_util.current_name_stack()
        inner = stack.stack[-1] if stack.stack and isinstance(stack.stack[-1], Mapped) else None
        size = self.axis_data.size
        record = Mapped(primitive.name, size, tuple(_value(self, tracer) for tracer in tracers), inner=inner)
        with source_info_util.set_name_stack(_extended(stack, record)):
            made = process(self, primitive, *args, **kwargs)
        record.results = tuple(_value(self, result) for result in (made if isinstance(made, list | tuple) else [made]))
        return made

    return recorded


def _value(trace: Any, value: Any) -> Value:
    axis = trace.to_batch_info(value)[1]
    shape = getattr(jax.typeof(value), "shape", None)
    return (shape if axis is None or isinstance(axis, int) else None), axis


_METHODS = ("process_primitive", "process_custom_jvp_call", "process_custom_vjp_call")

#: The methods of JAX that are wrapped during a trace: the owner, the name, and the wrapper.
RECORDS_OF_VMAP: tuple[tuple[Any, str, Callable], ...] = tuple(
    (_batching.BatchTrace, name, _recorded)
    for name in _METHODS
    if name in vars(_batching.BatchTrace) and hasattr(_batching.BatchTrace, "to_batch_info")
)


# -- reading -----------------------------------------------------------------------------------------------------------


def axes_of_batches(equation: JaxprEqn, is_only: Callable[[Mapped], bool] = lambda _: False) -> Levels | None:
    """Return the axes of the batch of each operand and result, for each `vmap` around an equation, the innermost first.

    Operands that `spread` repeats along an axis have it. A `vmap` whose examples share all operands and results is left
    out. None if the equation does not tell: it is no operation of the mapped function, or one that is computed in
    another way for a batch.

    Args:
      equation: the equation.
      is_only: whether one equation alone has a record: then it has the operands and results that were recorded.
    """
    records = records_of(equation)
    if records is None:
        return None
    levels: list[tuple[tuple[int | None, ...], tuple[int | None, ...]]] = []
    shapes = [_shapes(equation.invars), _shapes(equation.outvars)]
    for number in reversed(range(len(records))):
        record = records[number]
        sure = all(is_only(one) for one in records) or equation.primitive.name in PLAIN_CALLS | DISSOLVED
        level = _level(record, shapes, sure)
        if level is None:
            return None
        if equation.primitive.name in _ARRANGING and not any(axis is not None for axis in level[0]):
            return None
        levels.insert(0, level)
        shapes = [[shape for shape, _ in record.operands], [shape for shape, _ in record.results]]
    if any(all(axis is None for axis in taken) and any(axis is not None for axis in made) for taken, made in levels):
        return None
    return tuple(level for level in levels if any(axis is not None for axis in level[0]))


def _level(record: Mapped, shapes: Sequence[Sequence], sure: bool) -> tuple | None:
    if [len(record.operands), len(record.results)] != list(map(len, shapes)):
        return None
    if sure or not _is_elementwise(record) or _is_aligned(record):
        axis_of = _recorded_axis if sure or _is_aligned(record) else _only_axis
        operands, results = (
            [axis_of(value, shape, record.size) for value, shape in zip(values, actual, strict=True)]
            for values, actual in zip((record.operands, record.results), shapes, strict=True)
        )
    else:
        operands = [
            _front_axis(value, shape, record.size) for value, shape in zip(record.operands, shapes[0], strict=True)
        ]
        results = [_recorded_axis(v, shape, record.size) for v, shape in zip(record.results, shapes[1], strict=True)]
        results = [axis if axis == 0 else _UNKNOWN for axis in results]
    if _UNKNOWN in operands or _UNKNOWN in results:
        return None
    return tuple(operands), tuple(results)


_UNKNOWN = -1

# What `vmap` itself does to the results of the mapped function, as if all examples shared them.
_ARRANGING = frozenset({"broadcast_in_dim", "mesh_cast", "reshard", "sharding_constraint", "transpose"})


def _is_elementwise(record: Mapped) -> bool:
    """Whether an operation computes each element of its results of one of each operand; those of the size one are
    shared.
    """
    made = {shape for shape, _ in record.results}
    if len(made) != 1 or None in made:
        return False
    (result,) = made
    return all(shape is not None and _spreads_to(shape, result or ()) for shape, _ in record.operands)


def _spreads_to(shape: Shape, result: Shape) -> bool:
    same_rank = len(shape) == len(result)
    return shape == () or (same_rank and all(size in (1, whole) for size, whole in zip(shape, result, strict=True)))


def _is_aligned(record: Mapped) -> bool:
    """Whether all operands of an elementwise operation but single numbers have the same axis: then they stay as they
    are.
    """
    values = [value for value in (*record.operands, *record.results) if value[0] != () or value[1] is not None]
    return _is_elementwise(record) and len({axis for _, axis in values}) <= 1


def _recorded_axis(value: Value, actual: Shape, size: object) -> int | None:
    shape, axis = value
    return axis if shape is not None and _batched(shape, axis, size) == actual else _UNKNOWN


def _only_axis(value: Value, actual: Shape, size: object) -> int | None:
    """Return the only axis that can be that of the batch: a rule may have moved it."""
    shape, axis = value
    if shape is None or axis is None:
        return _recorded_axis(value, actual, size)
    fitting = [place for place in range(len(shape) + 1) if _batched(shape, place, size) == actual]
    return fitting[0] if len(fitting) == 1 else _UNKNOWN


def _front_axis(value: Value, actual: Shape, size: object) -> int | None:
    """Return where the rule of elementwise operations puts the axis of the batch if operands differ in it."""
    shape, axis = value
    if axis is None and shape == () == actual:
        return None
    known = () if shape is None else (_batched(shape, 0, size), *([_batched(shape, 0, 1)] if axis is None else []))
    return 0 if actual in known else _UNKNOWN


def _batched(shape: Shape, axis: int | None, size: Any) -> Shape:
    return shape if axis is None else (*shape[:axis], size, *shape[axis:])


def _shapes(atoms: Sequence[Any]) -> list[Shape | None]:
    return [getattr(atom.aval, "shape", None) for atom in atoms]


def spread(equation: JaxprEqn) -> tuple[list[JaxprEqn], JaxprEqn]:
    """Repeat the operands that all examples share along the axis of the batch, which has the size one there.

    Returns the equations to put before, and the equation with the repeated operands.
    """
    records = records_of(equation)
    before: list[JaxprEqn] = []
    if not records or not all(map(_is_elementwise, records)):
        return before, equation
    operands = []
    made = aval_of(equation.outvars[0])
    shape = made.shape
    for atom in equation.invars:
        aval = aval_of(atom)
        if len(aval.shape) == len(shape) and aval.shape != shape:
            (atom,) = inlined(traced(lambda x: jnp.broadcast_to(x, shape), [aval]).jaxpr, [atom], before)
        operands.append(atom)
    return before, with_operands(equation, operands)
