"""Loops whose number of iterations is known: as scans, which have a derivative in reverse."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from jaxport.jaxprs import Dim, PythonFunction
from jaxport.stablehlo import host
from jaxport.stablehlo.tree import HloBody, HloModule, HloOperation, Value


@dataclass(frozen=True)
class Counted:
    """A loop that counts up: the place of its counter, where it starts, and the number of iterations."""

    counter: int
    start: Dim
    length: Dim


def counted(
    module: HloModule, operation: HloOperation, carried: Sequence[Value], around: Mapping[int, Value]
) -> Counted | None:
    """Return how a loop counts: `while i < n` from a known start, by one; None for any other loop."""
    condition, body = operation.bodies
    compare = condition.operations[-1] if condition.operations else None
    if compare is None or compare.name != "stablehlo.compare" or compare.results != condition.returned:
        return None
    if compare.attributes["comparison_direction"] != "LT" or compare.operands[0] not in condition.arguments:
        return None
    counter = condition.arguments.index(compare.operands[0])
    start, limit = carried[counter], _limit(module, condition, body, compare.operands[1], carried, around)
    step = module.makers.get(body.returned[counter])
    if not (host.is_known(start) and start.dtype.kind in "iu") or limit is None or step is None:
        return None
    if step.name != "stablehlo.add" or body.arguments[counter] not in step.operands:
        return None
    (other,) = [value for value in step.operands if value != body.arguments[counter]] or [None]
    one = module.makers.get(other) if other is not None else None
    if one is None or one.name != "stablehlo.constant" or int(one.attributes["value"]) != 1:
        return None
    first, length = start.ravel()[0], limit - start.ravel()[0]
    return Counted(counter, first, length if is_symbolic_dim(length) else max(int(length), 0))


def _limit(
    module: HloModule,
    condition: HloBody,
    body: HloBody,
    value: int,
    carried: Sequence[Value],
    around: Mapping[int, Value],
) -> Dim | None:
    """Return the limit of a loop: a constant, a known value around the loop, or one that it carries unchanged."""
    if value in condition.arguments:
        place = condition.arguments.index(value)
        known = carried[place] if body.returned[place] == body.arguments[place] else None
    else:
        maker = module.makers.get(value)
        is_constant = maker is not None and maker.name == "stablehlo.constant"
        known = maker.attributes["value"] if is_constant else around.get(value)
    return known.ravel()[0] if host.is_known(known) else None


def scan(carried: Sequence[Value], regions: Sequence[PythonFunction], loop: Counted, context: Any) -> tuple[Value, ...]:
    """Run a counted loop: its operands and results that are taken and written row by row are those of the scan."""
    body: HloBody = context.operation.bodies[1]
    rows = _CountedRows(context.walk.module, body, loop)
    fixed = {at for at in range(len(carried)) if body.returned[at] == body.arguments[at]}
    xs = {at: carried[at] for at in fixed if rows.is_read(at) and _has_rows(carried[at], loop)}
    ys = {at for at in range(len(carried)) if at not in fixed and rows.is_written(at) and _has_rows(carried[at], loop)}
    if not (isinstance(loop.start, int | np.integer) and int(loop.start) == 0):
        xs, ys = {}, set()
    moving = [at for at in range(len(carried)) if at not in fixed and at not in ys and at != loop.counter]
    kind = body.types[loop.counter].dtype

    def step(state: tuple[Value, ...], row: Any) -> Any:
        number, slices = row
        values = list(carried)
        values[loop.counter] = number
        for at, value in zip(moving, state, strict=True):
            values[at] = value
        given = {value: slices[str(at)] for at in xs for value in rows.reads[at]}
        results, written = rows.run(values, given, regions[1], ys)
        return tuple(host.as_jax(results[at]) for at in moving), tuple(written[at] for at in sorted(ys))

    numbers = lax.broadcasted_iota(kind, (loop.length,), 0) + jnp.asarray(loop.start, kind)
    state = tuple(jnp.asarray(host.as_jax(carried[at])) for at in moving)
    slices = {str(at): host.as_jax(x) for at, x in xs.items()}
    after, stacked = lax.scan(step, state, (numbers, slices))
    results = dict(zip(moving, after, strict=True)) | dict(zip(sorted(ys), stacked, strict=True))
    last = loop.start + loop.length
    results[loop.counter] = jnp.asarray(last, kind) if not is_symbolic_dim(last) else host.sizes_of([last]).reshape(())
    return tuple(results.get(at, carried[at]) for at in range(len(carried)))


def _has_rows(value: Any, loop: Counted) -> bool:
    shape = np.shape(value)
    return bool(shape) and (shape[0] is loop.length or shape[0] == loop.length)


class _CountedRows:
    """The rows that the body of a loop reads of arrays, and writes into others, at its counter."""

    def __init__(self, module: HloModule, body: HloBody, loop: Counted):
        self.module, self.body, self.counter = module, body, body.arguments[loop.counter]
        self.readers: dict[int, list[HloOperation]] = {}
        for operation in body.walk():
            for value in operation.operands:
                self.readers.setdefault(value, []).append(operation)
        self.nested = {value for each in body.walk() for inner in each.bodies for value in inner.returned}
        self.reads: dict[int, list[int]] = {}
        self.writes: dict[int, tuple[HloOperation, int]] = {}

    def is_read(self, at: int) -> bool:
        """Whether an argument is read by its row at the counter alone."""
        value, readers = self.body.arguments[at], self.readers.get(self.body.arguments[at], [])
        if value in self.nested or not readers or not all(self._takes_row(reader, value) for reader in readers):
            return False
        self.reads[at] = [operation.results[0] for operation in readers]
        return True

    def is_written(self, at: int) -> bool:
        """Whether an argument is only written: its row at the counter, in the last step."""
        value, made = self.body.arguments[at], self.module.makers.get(self.body.returned[at])
        if made is None or self.readers.get(value, []) != [made] or value in self.nested:
            return False
        if self.readers.get(made.results[0]) or self.body.returned.count(made.results[0]) > 1:
            return False
        row = self._put_row(made, value)
        if row is not None:
            self.writes[at] = (made, row)
        return row is not None

    def _steps(self, call: HloOperation, value: int) -> tuple[list[HloOperation], list[int]] | None:
        """Return what a function does with an array and the counter, and their numbers inside; None if it is no such
        function.
        """
        if call.name != "func.call" or self.counter not in call.operands or call.operands.count(value) != 1:
            return None
        inner = self.module.functions[call.attributes["callee"]].body
        steps = [operation for operation in inner.operations if operation.name != "stablehlo.constant"]
        own = [inner.arguments[call.operands.index(each)] for each in (value, self.counter)]
        return (steps, own) if len(steps) == 2 and steps[1].results == inner.returned else None

    def _takes_row(self, call: HloOperation, value: int) -> bool:
        found = self._steps(call, value)
        if found is None or [step.name for step in found[0]] != ["stablehlo.dynamic_slice", "stablehlo.reshape"]:
            return False
        (taken, shaped), own = found
        shape = self._shape(value)
        is_row = taken.attributes["slice_sizes"] == (1, *shape[1:]) and shaped.types[0].shape == shape[1:]
        return (
            is_row
            and taken.operands[0] == own[0]
            and self._at_row(taken.operands[1:], own[1])
            and shaped.operands == taken.results
        )

    def _put_row(self, call: HloOperation, value: int) -> int | None:
        found, names = self._steps(call, value), ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
        if found is None or found[0][0].name not in names or found[0][1].name != "stablehlo.dynamic_update_slice":
            return None
        (widened, put), own = found
        shape, inner = self._shape(value), self.module.functions[call.attributes["callee"]].body
        axes = tuple(range(1, len(shape)))
        is_row = (
            widened.types[0].shape == (1, *shape[1:]) and widened.attributes.get("broadcast_dimensions", axes) == axes
        )
        is_put = put.operands[:2] == (own[0], widened.results[0]) and self._at_row(put.operands[2:], own[1])
        if not is_row or not is_put or widened.operands[0] not in inner.arguments:
            return None
        at = inner.arguments.index(widened.operands[0])
        return call.operands[at] if inner.types[at].shape == shape[1:] else None

    def _shape(self, value: int) -> tuple[int | None, ...]:
        return self.body.types[self.body.arguments.index(value)].shape

    def _at_row(self, starts: Sequence[int], counter: int) -> bool:
        makers = [self.module.makers.get(value) for value in starts[1:]]
        zeros = all(
            m is not None and m.name == "stablehlo.constant" and not np.any(m.attributes["value"]) for m in makers
        )
        return starts[0] == counter and zeros

    def run(
        self, values: Sequence[Value], given: dict[int, Value], region: PythonFunction, ys: set[int]
    ) -> tuple[tuple[Value, ...], dict[int, Value]]:
        """Return the results of one iteration, and the rows that are written."""
        skipped = {self.writes[at][0] for at in ys}
        return region.__dict__["step"](values, given, skipped, {at: self.writes[at][1] for at in ys})
