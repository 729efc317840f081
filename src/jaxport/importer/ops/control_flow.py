"""If, Loop and Scan.

Conditions known on the host are decided there: one branch is taken; a short loop, or one whose values change shape, is
unrolled. The rest becomes `lax.cond`, `lax.scan` and `lax.while_loop`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxport.errors import AGAIN, ModelError, Refusal, ValueNotKnown
from jaxport.importer.limits import budget_in_force
from jaxport.importer.ops.indexing import gather
from jaxport.importer.resolving.registry import GraphFunction, SizeBound, op
from jaxport.importer.values.host import HostValue, RuntimeValue, Tensor, Undecided, host
from jaxport.importer.values.namespaces import jnp, known, lax, vmap
from jaxport.jaxprs import Dim, PythonFunction, dims

SHORT = 4
"""The largest number of iterations of an unrolled loop."""

BOUNDED = 1000
"""The largest bound of a loop with early exit that gets a fixed length: unlike an open loop it has a gradient."""

ENDLESS = 2**31 - 1
"""A trip count this large means none: exporters write the largest integer if only the condition ends a loop."""


@op("If", since=1)
def if_(cond, *, then_branch, else_branch):
    counts = then_branch.output_count, else_branch.output_count
    if counts[0] != counts[1]:
        raise ModelError(
            f"the branches have {counts[0]} and {counts[1]} results",
            why="both branches of an If must have the same number of results",
            instead=f"{AGAIN}; the file may be damaged",
        )
    decided = known(cond)
    if decided is not None:
        return then_branch() if decided else else_branch()
    try:
        return lax.cond(jnp.reshape(cond, ()), then_branch, else_branch)
    except TypeError as error:
        raise ValueNotKnown(
            "a branch that decides a shape or a type cannot be traced",
            [Refusal("", "", "its branches return different shapes or types; call it outside `jax.jit`")],
        ) from error


LoopInput = Tensor | HostValue | None
"""The number of iterations or the condition of a loop, which may be absent."""


Carry = tuple[Any, ...]
"""The values of a loop of JAX that change, and those of one iteration: the body decides of what types they are."""


class _Iteration:
    """The body of a loop; the iteration number and the condition have the rank that it declares, 0 or 1."""

    def __init__(self, body: GraphFunction):
        self.body, self.output_count, self.empty_output = body, body.output_count, body.empty_output
        self.is_counted = body.is_counted

    def __call__(self, iteration: Tensor, go: Tensor | HostValue, *state: RuntimeValue) -> tuple[Any, ...]:
        declared = [(1,) if len(self.body.input_sizes(index) or ()) == 1 else () for index in range(2)]
        counters = [
            x if x.shape == shape else jnp.reshape(x, shape) for x, shape in zip((iteration, go), declared, strict=True)
        ]
        return self.body(*counters, *state)


class _NotStructured(Exception):
    """The loop cannot be a loop of XLA: its values change type, or its condition changes from known to unknown."""


@op("Loop", since=1)
def loop(M=None, cond=None, *v_initial, body, bound: SizeBound = None):
    return _looped(M, cond, v_initial, body, bound)


def _looped(
    M: LoopInput,
    cond: LoopInput,
    v_initial: Sequence[RuntimeValue],
    graph: GraphFunction,
    bound: int | None,
    rows: _LoopRows | None = None,
) -> tuple[RuntimeValue, ...]:
    trips = None if M is None else known(M)
    if trips is not None and not trips.symbolic and int(trips) >= ENDLESS:
        M = trips = None
    go = host(True) if cond is None else known(cond)
    iterated = _Iteration(graph)
    body = iterated if rows is None else _AtRows(graph, rows)
    scans = body.output_count - 1 - len(v_initial)
    if go is not None and not go:
        trips = host(0)
    plain = all(hasattr(value, "dtype") for value in v_initial)
    if plain and trips is not None and go is not None and (trips.symbolic or not 0 < int(trips) <= SHORT):
        try:
            if rows is not None and rows.are_as_many_as(trips.item()):
                return _scanned(trips.item(), v_initial, iterated, rows)
            return _scanned(trips.item(), v_initial, body)
        except (TypeError, _NotStructured, ValueNotKnown):
            if trips.symbolic:  # as it cannot be unrolled
                raise
    unsure = go is None or (M is not None and trips is None)
    if plain and not scans and unsure:
        return _ended(bound, M, cond, v_initial, body)
    if bound is not None and (unsure or M is None):
        return _bounded(bound, M, cond, v_initial, body)
    if M is not None and trips is None:
        raise _endless()
    return _unrolled(trips, go, v_initial, scans, body, bound)


@dataclass(frozen=True)
class _LoopRows:
    """Arrays of which each iteration of a loop reads a row.

    Attributes:
      arrays: the arrays.
      lasts: of each that is gone over from its end, where it begins; else None.
      counts: whether iterations use their number otherwise.
    """

    arrays: Sequence[Tensor]
    lasts: Sequence[LoopInput]
    counts: bool

    def are_as_many_as(self, trips: Dim) -> bool:
        """Whether each iteration has a row of its own, all of them together in order, or from the end."""
        ends = [None if last is None else known(last) for last in self.lasts]
        return all(
            x.ndim
            and dims.same(x.shape[0], trips)
            and (last is None or (end is not None and dims.same(end.item(), trips - 1)))
            for x, last, end in zip(self.arrays, self.lasts, ends, strict=True)
        )

    def in_order(self) -> list[Tensor]:
        """Return the arrays with the row of the first iteration first."""
        pairs = zip(self.arrays, self.lasts, strict=True)
        return [x if last is None else jnp.flip(x, 0) for x, last in pairs]

    def at(self, iteration: Tensor) -> list[Tensor]:
        """Return the rows of an iteration."""
        pairs = zip(self.arrays, self.lasts, strict=True)
        return [gather(x, iteration if last is None else last - iteration) for x, last in pairs]


class _AtRows(_Iteration):
    """The body of a loop, which is given the rows of its iteration."""

    def __init__(self, body: GraphFunction, rows: _LoopRows):
        super().__init__(body)
        self.rows = rows

    def __call__(self, iteration: Tensor, go: Tensor | HostValue, *state: RuntimeValue) -> tuple[Any, ...]:
        return super().__call__(iteration, go, *state, *self.rows.at(iteration))


@op("jaxport", "LoopOverRows", since=1)
def loop_over_rows(M, cond, *values, body, row_count, counts, bound: SizeBound = None):
    """Run a loop whose last inputs are arrays that it goes over (see `jaxport.importer.resolving.counted`)."""
    state = values[: -2 * row_count]
    arrays, lasts = values[-2 * row_count : -row_count], values[-row_count:]
    return _looped(M, cond, state, body, bound, _LoopRows(arrays, lasts, bool(counts)))


@op("jaxport", "RunningReduction", since=1)
def running_reduction(M, cond, x, distance, size, *, body, function, axis, reverse):
    """Return a running maximum, minimum or product (see `jaxport.importer.resolving.counted`)."""
    length = known(size)
    if length is None or not dims.same(length.item(), x.shape[axis]):
        return loop(M, jnp.less(distance, size), x, distance, body=body)[0]
    return getattr(lax, function)(x, axis=axis, reverse=bool(reverse))


def _scanned(
    trips: Dim, state: Sequence[RuntimeValue], body: PythonFunction, rows: _LoopRows | None = None
) -> tuple[Tensor, ...]:
    """Run a loop whose number of iterations is known, if only as a symbolic size, and whose condition stays true."""
    counts = rows is None or rows.counts
    passed = [] if rows is None else rows.in_order()

    def step(*values: Tensor) -> Carry:
        row = values[len(state) :]
        iteration, *row = row if counts else (host(0), *row)
        go, *results = body(iteration, host(True), *values[: len(state)], *row)
        if not isinstance(go, HostValue) or not go:
            raise _NotStructured
        return tuple(results)

    numbers = [jnp.arange(trips, dtype=np.dtype(np.int64))] if counts else []
    return _scan(step, state, [*numbers, *passed])


def _scan(body: PythonFunction, state: Sequence[RuntimeValue], rows: Sequence[RuntimeValue]) -> Carry:
    """Return the last state and the stacked rest of the results of `body(*state, *row)`.

    `lax.scan` gets a single value as it is, as a person writes it: `def step(carry, row): return carry + row, carry`.
    """

    def step(carry: object, row: object) -> tuple[object, object]:
        results = body(*_listed(carry, len(state)), *_listed(row, len(rows)))
        return _together(results[: len(state)]), _together(results[len(state) :])

    final, stacked = lax.scan(step, _together(state), _together(rows))
    final = _listed(final, len(state))
    return (*final, *(stacked if isinstance(stacked, tuple) else () if stacked is None else (stacked,)))


def _together(values: Sequence[object]) -> object:
    """Return the one value, a tuple of several, or None."""
    return tuple(values) if len(values) > 1 else values[0] if values else None


def _listed(values: object, count: int) -> Carry:
    """Return the values that are together."""
    return values if isinstance(values, tuple) else (values,)[:count]


def _ended(
    bound: int | None,
    M: LoopInput,
    cond: LoopInput,
    state: Sequence[RuntimeValue],
    body: PythonFunction,
    first: int = 0,
) -> tuple[Tensor, ...]:
    """Run a loop without stacked outputs whose end depends on data; `first` iterations were done before."""
    trips = None if M is None else known(M)
    most = bound if bound is not None or trips is None or int(trips) > BOUNDED else int(trips)
    return _while(M, cond, state, body, first) if most is None else _bounded(most, M, cond, state, body, first)


def _while(
    M: LoopInput, cond: LoopInput, state: Sequence[RuntimeValue], body: PythonFunction, first: int = 0
) -> tuple[Tensor, ...]:
    """Run a loop that ends by its condition, or after `M` iterations; `first` were done before."""

    def goes_on(carry: Carry) -> Tensor:
        iteration, go, *_ = carry
        return go if M is None else jnp.logical_and(go, iteration < M)

    def step(carry: Carry) -> Carry:
        iteration, go, *values = carry
        go, *values = body(iteration, go, *values)
        return (iteration + 1, jnp.reshape(go, ()), *values)

    go = host(True) if cond is None else cond
    start = (jnp.full((), first, np.dtype(np.int64)), jnp.reshape(go, ()), *state)
    return tuple(lax.while_loop(goes_on, step, start))[2:]


def _bounded(
    bound: int, M: LoopInput, cond: LoopInput, state: Sequence[RuntimeValue], body: PythonFunction, first: int = 0
) -> tuple[Tensor, ...]:
    """Run a loop for `bound` iterations from `first` on; those after its end change nothing and give rows of zeros."""

    def step(carry: Carry, iteration: Tensor) -> tuple[Carry, Carry]:
        go, *values = carry
        running = go if M is None else jnp.logical_and(go, iteration < M)

        def run() -> Carry:
            goes_on, *results = body(iteration, running, *values)
            return (jnp.reshape(goes_on, ()), *results)

        def rest() -> Carry:
            return (running, *values, *(jnp.zeros(row.shape, row.dtype) for row in rows))

        go, *results = lax.cond(running, run, rest)
        return (go, *results[: len(values)]), tuple(results[len(values) :])

    start = (jnp.reshape(host(True) if cond is None else cond, ()), *state)
    rows = body(host(0), start[0], *state)[1 + len(state) :]  # for their shapes
    (_, *final), stacked = lax.scan(step, start, jnp.arange(first, bound, dtype=np.dtype(np.int64)))
    return (*final, *stacked)


def _unrolled(
    trips: HostValue | None,
    go: HostValue | None,
    state: Sequence[RuntimeValue],
    scans: int,
    body: _Iteration,
    bound: int | None,
) -> tuple[RuntimeValue, ...]:
    rows: list[list[Tensor]] = []
    initial, iteration = state, 0
    while _decided(go) and (trips is None or iteration < int(trips)):
        try:
            goes_on, *results = body(host(iteration), go, *state)
        except ValueNotKnown as error:
            if scans or not isinstance(error.__cause__, Undecided):
                raise
            # As in `while i < n`, of a size with a name: from here on the counter is an array.
            return _ended(bound, trips, go, state, body, iteration)
        go = known(goes_on)
        if iteration == 0 and trips is not None and go is not None and go and body.is_counted:
            budget_in_force().check_iterations(int(trips))  # not one by one: each may be slow
        state, iteration = results[: len(state)], iteration + 1
        budget_in_force().iterate()
        if go is None and not scans:  # only the first iterations had a known condition
            if iteration == 1 and all(hasattr(value, "dtype") for value in initial):
                with contextlib.suppress(TypeError, ValueNotKnown):  # the first one may change types or shapes
                    return _ended(bound, trips, host(True), initial, body)
            return _ended(bound, trips, goes_on, state, body, iteration)
        rows.append(results[len(state) :])
    columns = list(zip(*rows, strict=True)) if rows else [body.empty_output(index - scans) for index in range(scans)]
    return (*state, *(jnp.stack(column) if rows else column for column in columns))


def _decided(go: HostValue | None) -> bool:
    if go is None:
        raise _endless()
    return bool(go)


def _endless() -> ValueNotKnown:
    return ValueNotKnown(
        "a loop whose length depends on the data cannot be traced",
        [
            Refusal(
                "Loop",
                "",
                "it stacks outputs or changes shapes from iteration to iteration; call it outside `jax.jit`, or, "
                "if it stacks outputs, give the maximum number of them: `from_onnx(…, sizes={node: bound})`",
            )
        ],
    )


@op("Scan", since=9)
def scan(
    *initial_state_and_scan_inputs,
    body,
    num_scan_inputs,
    scan_input_axes=None,
    scan_input_directions=None,
    scan_output_axes=None,
    scan_output_directions=None,
):
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    state, rows = initial_state_and_scan_inputs[:count], initial_state_and_scan_inputs[count:]
    rows = [
        jnp.moveaxis(x, axis, 0) if axis else x
        for x, axis in zip(rows, scan_input_axes or [0] * len(rows), strict=True)
    ]
    backward = scan_input_directions or [0] * len(rows)
    rows = [jnp.flip(x, 0) if flip else x for x, flip in zip(rows, backward, strict=True)]

    results = _scan(body, state, rows)
    final, stacked = results[:count], results[count:]
    backward = scan_output_directions or [0] * len(stacked)
    stacked = [jnp.flip(y, 0) if flip else y for y, flip in zip(stacked, backward, strict=True)]
    axes = scan_output_axes or [0] * len(stacked)
    return (*final, *(jnp.moveaxis(y, 0, axis) if axis else y for y, axis in zip(stacked, axes, strict=True)))


@op("Scan", since=8, until=8)
def scan_batched(sequence_lens=None, *initial_state_and_scan_inputs, body, num_scan_inputs, directions=None):
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    backward = directions or [0] * num_scan_inputs

    def single(*values: Tensor) -> Tensor:
        return scan(*values, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=backward)

    def to_its_length(length: Tensor, *values: Tensor) -> Carry:
        """Scan one sequence, whose state stays unchanged beyond its length; its results there are zero."""
        times = jnp.arange(values[count].shape[0])
        within = times < length
        turned = jnp.where(within, length - 1 - times, times)
        rows = [jnp.take(x, turned, axis=0) if back else x for x, back in zip(values[count:], backward, strict=True)]

        def step(carry: Carry, row: Carry) -> tuple[Carry, Carry]:
            running, *parts = row
            results = body(*carry, *parts)
            state = tuple(jnp.where(running, new, old) for new, old in zip(results, carry, strict=False))
            return state, tuple(jnp.where(running, y, jnp.zeros_like(y)) for y in results[count:])

        final, stacked = lax.scan(step, tuple(values[:count]), (within, *rows))
        return (*final, *stacked)

    if sequence_lens is None:
        return vmap(single)(*initial_state_and_scan_inputs)
    return vmap(to_its_length)(sequence_lens, *initial_state_and_scan_inputs)
