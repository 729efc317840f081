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
from jaxport.stablehlo import host, recognised
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
    rows = _CountedRows(context, body, loop, carried)
    fixed = {at for at in range(len(carried)) if body.returned[at] == body.arguments[at]}
    xs = {at: carried[at] for at in fixed if rows.is_read(at)}
    ys = {at for at in range(len(carried)) if at not in fixed and rows.is_written(at)}
    moving = [at for at in range(len(carried)) if at not in fixed and at not in ys and at != loop.counter]
    kind = body.types[loop.counter].dtype

    def step(state: tuple[Value, ...], row: Any) -> Any:
        number, slices = row
        values = list(carried)
        values[loop.counter] = np.zeros((), kind) if number is None else number
        for at, value in zip(moving, state, strict=True):
            values[at] = value
        given = {value: slices[str(at)] for at in xs for value in rows.reads[at]}
        results, written = rows.run(values, given, regions[1], ys)
        return tuple(host.as_jax(results[at]) for at in moving), tuple(written[at] for at in sorted(ys))

    is_reverse = rows.direction == -1
    numbers = None
    if not xs or rows.reads_counter(ys):
        numbers = lax.broadcasted_iota(kind, (loop.length,), 0) + jnp.asarray(loop.start, kind)
        numbers = numbers[::-1] if is_reverse else numbers
    state = tuple(jnp.asarray(host.as_jax(carried[at])) for at in moving)
    slices = {str(at): host.as_jax(x) for at, x in xs.items()}
    after, stacked = lax.scan(step, state, (numbers, slices), reverse=is_reverse)
    results = dict(zip(moving, after, strict=True)) | dict(zip(sorted(ys), stacked, strict=True))
    last = loop.start + loop.length
    results[loop.counter] = jnp.asarray(last, kind) if not is_symbolic_dim(last) else host.sizes_of([last]).reshape(())
    return tuple(results.get(at, carried[at]) for at in range(len(carried)))


class _CountedRows:
    """The rows of arrays that the body of a loop reads and writes at its counter: upward, or all from the end."""

    def __init__(self, context: Any, body: HloBody, loop: Counted, carried: Sequence[Value]):
        self.context, self.body, self.loop, self.carried = context, body, loop, carried
        self.counter, self.makers = body.arguments[loop.counter], context.walk.module.makers
        self.readers: dict[int, list[HloOperation]] = {}
        for operation in body.walk():
            for value in operation.operands:
                self.readers.setdefault(value, []).append(operation)
        self.nested = {value for each in body.walk() for inner in each.bodies for value in inner.returned}
        self.reads: dict[int, list[int]] = {}
        self.writes: dict[int, tuple[HloOperation, int]] = {}
        self.direction = 0

    def is_read(self, at: int) -> bool:
        """Whether an argument is read by its row at the counter alone."""
        value, readers = self.body.arguments[at], self.readers.get(self.body.arguments[at], [])
        if value in self.nested or not readers:
            return False
        if not all(self._is(recognised.take_row, reader, at, reader.operands[-2:-1]) for reader in readers):
            return False
        self.reads[at] = [operation.results[0] for operation in readers]
        return True

    def is_written(self, at: int) -> bool:
        """Whether an argument is only written: its row at the counter, in the last step."""
        value, made = self.body.arguments[at], self.makers.get(self.body.returned[at])
        if made is None or self.readers.get(value, []) != [made] or value in self.nested:
            return False
        if self.readers.get(made.results[0]) or self.body.returned.count(made.results[0]) > 1:
            return False
        if not self._is(recognised.put_row, made, at, made.operands[-3:-2]):
            return False
        self.writes[at] = (made, made.operands[-2])
        return True

    def reads_counter(self, ys: set[int]) -> bool:
        """Whether an iteration computes with the counter, beyond counting and taking rows."""
        rows = {value for values in self.reads.values() for value in values}
        rows |= {value for at in ys for value in self.writes[at][0].results}
        own = {self.body.returned[self.loop.counter]}
        waiting = [self.counter]
        while waiting:
            value = waiting.pop()
            if value in self.nested or (value not in own and value in self.body.returned):
                return True
            for reader in self.readers.get(value, []):
                if rows.isdisjoint(reader.results) and own.isdisjoint(reader.results):
                    if reader.name != "stablehlo.subtract":  # of the places that are counted from the end
                        return True
                    waiting += reader.results
        return False

    def _is(self, wanted: PythonFunction, call: HloOperation, at: int, array: Sequence[int]) -> bool:
        """Whether a call takes or puts the row at the counter of an array that has a row for each iteration."""
        value, shape, start = self.body.arguments[at], np.shape(self.carried[at]), self.loop.start
        if call.name != "func.call" or (*array,) != (value,) or call.operands.count(value) != 1:
            return False
        if is_symbolic_dim(start) or int(start) != 0 or not shape or shape[0] != self.loop.length:
            return False
        shapes = [shape, ()] if wanted is recognised.take_row else [shape, shape[1:], ()]
        sizes = [self._at(value, 0) for value in call.operands[: -len(shapes)]]
        if recognised.function(self.context.walk.module, call.attributes["callee"], sizes, shapes) is not wanted:
            return False
        found = [self._at(call.operands[-1], number) for number in (0, 1)]
        direction = {(0, 1): 1, (self.loop.length - 1, self.loop.length - 2): -1}.get(tuple(found), 0)
        self.direction = self.direction or direction
        return direction != 0 and direction == self.direction

    def _at(self, value: int, number: int) -> Dim | None:
        """Return a sum of the counter and what is known, for one number of the counter; None for others."""
        if value == self.counter:
            return number
        if value in self.body.arguments:
            known: Any = self.carried[self.body.arguments.index(value)]
            return known[()] if host.is_known(known) and known.ndim == 0 else None
        maker = self.makers.get(value)
        if maker is not None and maker.name in ("stablehlo.add", "stablehlo.subtract") and maker.types[0].shape == ():
            x, y = (self._at(operand, number) for operand in maker.operands)
            return None if x is None or y is None else x + y if maker.name == "stablehlo.add" else x - y
        is_constant = maker is not None and maker.name == "stablehlo.constant"
        known = maker.attributes["value"] if is_constant else self.context.values.get(value)
        return known[()] if host.is_known(known) and known.ndim == 0 else None

    def run(
        self, values: Sequence[Value], given: dict[int, Value], region: PythonFunction, ys: set[int]
    ) -> tuple[tuple[Value, ...], dict[int, Value]]:
        """Return the results of one iteration, and the rows that are written."""
        skipped = {self.writes[at][0] for at in ys}
        return region.__dict__["step"](values, given, skipped, {at: self.writes[at][1] for at in ys})
