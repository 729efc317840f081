"""Rows that are written to computed positions, as JAX writes them.

    scatter_nd(x, expand_dims(i, 1), y, "add")                                             →   x.at[i].add(y)
    scatter_elements(x, zeros((b, 1), int), expand_dims(y, 1), 1, "set")                    →   x.at[:, 0].set(y)
    x.T.at[arange(n)[1:]].set(y).T                                                          →   x.at[:, 1:].set(y.T)
    x.at[clip(i, -4, 3)].add(where(expand_dims(i == clip(i, -4, 3), 1), y, -0.0))           →   x.at[i].add(y)
    concatenate([x, zeros(1, m)]).at[clip(where(i < 0, i + 4, i), -1, 4)].set(y)[:4]        →   x.at[i].set(y)

An export spells out that JAX counts negative positions from the end, and leaves out those that are outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxport.codegen.rewriting.patterns import bindings, pattern
from jaxport.codegen.rewriting.producers import Producers, as_tuple, index_of, is_like, is_number, number
from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.rewriting.steps import in_place
from jaxport.codegen.structure.spelling.functions import are_bounds, element, is_of_jax
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN
from jaxport.importer.values.host import Dim, HostValue
from jaxport.importer.values.recording import Step, Variable

UPDATES = ("set", "add")
"""What is done to elements in the same way by JAX's method, whatever they are; the helper has gradients of others."""


@AS_WRITTEN.on("helper.scatter_nd")
def rows(step: Step, rewriting: StepRewriting) -> Step | None:
    """`scatter_nd(x, expand_dims(i, 1), y, "add")` is `x.at[i].add(y)`."""
    x, at, y, update = step.args
    index = _rows(at, x.shape[0], rewriting.producers)
    return None if index is None or not _is_plain(step) else _updated(step, rewriting, x, index, y, update)


@AS_WRITTEN.on("helper.scatter_elements")
def elements(step: Step, rewriting: StepRewriting) -> Step | None:
    """`scatter_elements(x, zeros((b, 1), int), expand_dims(y, 1), 1, "set")` is `x.at[:, 0].set(y)`.

    Elements at computed positions of whole rows are put along the axis.
    """
    x, at, y, axis, update = step.args
    axis, rank = axis % len(x.shape), len(x.shape)
    is_whole = all(bool(at.shape[other] == x.shape[other]) for other in range(rank) if other != axis)
    if not is_whole or not _is_plain(step):
        return None
    place = element(at, rewriting.producers)
    if place is not None and at.shape[axis] == 1:
        index = index_of(*[slice(None)] * axis, int(place))
        if isinstance(y, Variable) and element(y, rewriting.producers) is None:
            shape = (*y.shape[:axis], *y.shape[axis + 1 :])
            y = rewriting.call(step, "jnp.squeeze", (y, (axis,)), Variable(shape, y.dtype))
        return _updated(step, rewriting, x, index, y, update)
    y = _number(y, rewriting)
    return in_place(step, "jnp.put_along_axis", x, at, y, axis=axis, inplace=False) if update == "set" else None


def _is_plain(step: Step) -> bool:
    update = step.args[-1]
    return update in UPDATES and not (update == "add" and step.outputs.dtype == bool)


def _number(y: object, rewriting: StepRewriting) -> object:
    """Return the number that all elements of a value are, if they are one; else the value."""
    found = element(y, rewriting.producers)
    return y if found is None or (isinstance(y, HostValue) and not y.ndim) else found.item()


def _updated(step: Step, rewriting: StepRewriting, x: object, index: object, y: object, update: str) -> Step:
    """Return the step that writes `y` into `x`: NumPy's arrays, which inputs may be, have no `at`."""
    if not is_of_jax(x, rewriting):
        x = rewriting.call(step, "jnp.asarray", (x,), step.outputs.shape)
    return in_place(step, f"at.{update}", x, index, _number(y, rewriting), form="method")


def _rows(at: object, rows: Dim, producers: Producers) -> object:
    """Return the index that positions of rows, in an axis of one element, are; None if they are others."""
    if isinstance(at, HostValue):
        if at.symbolic or at.shape != (at.size, 1) or not at.size:
            return None
        places = at.data[:, 0]
        steps = {*np.diff(places).tolist()} or {1}
        if not isinstance(rows, int) or len(steps) > 1 or min(steps) < 1 or places[0] < 0 or places[-1] >= rows:
            return HostValue(places, name=at.name)
        (stride,) = steps
        begin, end = int(places[0]), int(places[-1]) + 1
        return slice(begin or None, None if end + stride > rows else end, stride if stride > 1 else None)
    added = producers.step(at, "jnp.expand_dims")
    i = added.args[0] if added is not None else None
    if not isinstance(i, Variable) or at.shape != (*i.shape, 1):  # pyright: ignore[reportAttributeAccessIssue]
        return None
    cut = producers.step(i, "")
    counted = producers.step(i if cut is None else cut.args[0], "jnp.arange")
    is_all = counted is not None and len(counted.args) == 1 and bool(counted.outputs.shape[0] == rows)
    if not is_all or not (cut is None or isinstance(cut.args[1], slice)):
        return i
    part = slice(None) if cut is None else cut.args[1]
    return slice(None if type(part.start) is int and not part.start else part.start, part.stop, part.step)


def _single(index: object) -> tuple[int, Any]:
    """Return the axis of which an index takes a part, and the part; -1 if there are several."""
    *whole, part = as_tuple(index)
    return (len(whole), part) if all(one == slice(None) for one in whole) else (-1, part)


@AS_WRITTEN.on("at.set")
def whole(step: Step, rewriting: StepRewriting) -> object:
    """`x.at[:].set(y)` is `y`, and `x.at[0].set(x[0])` is `x`."""
    x, index, y = step.args
    part = rewriting.producers.step(y, "")
    is_known = all(isinstance(each, int | slice) for each in as_tuple(index))
    if part is not None and part.args[0] is x and is_known and as_tuple(part.args[1]) == as_tuple(index):
        return x
    return y if index == slice(None) and is_like(y, step.outputs) else None


@AS_WRITTEN.on("at.set")
def joined(step: Step, rewriting: StepRewriting) -> Step | None:
    """`x.at[:2].set(a).at[2:].set(b)`, of four rows, is `concatenate((a, b))`."""
    parts: list[Variable] = []
    end, written = step.outputs.shape[0], step
    while isinstance(end, int) and written is not None:
        x, index, y = written.args
        if not isinstance(index, slice) or index.step is not None or not isinstance(y, Variable):
            return None
        begin, stop, _ = index.indices(step.outputs.shape[0])
        if stop != end or y.shape != (stop - begin, *step.outputs.shape[1:]) or y.dtype != step.outputs.dtype:
            return None
        parts, end = [y, *parts], begin
        if not begin:
            return in_place(step, "jnp.concatenate", parts, axis=0) if len(parts) > 1 else None
        written = rewriting.producers.step(x, "at.set")
    return None


@AS_WRITTEN.on("at.set", "at.add")
def turned(step: Step, rewriting: StepRewriting) -> Step | None:
    """`x.T.at[i].set(y)` is `x.at[:, i].set(y.T).T`."""
    x, index, y = step.args
    held = rewriting.producers.step(x, "jnp.asarray")
    moved = rewriting.producers.step(x if held is None else held.args[0], "jnp.transpose")
    axis, part = _single(index)
    if moved is None or len(moved.args) != 2 or axis < 0 or not isinstance(moved.args[0], Variable):
        return None
    origin, order = moved.args
    taken = [place for place in range(len(order)) if type(part) is not int or place != axis]
    if not isinstance(part, int | slice) and getattr(part, "ndim", len(getattr(part, "shape", ()))) != 1:
        return None
    if isinstance(y, Variable | HostValue):
        if len(y.shape) != len(taken):
            return None
        places = [order[place] for place in taken]
        back = tuple(sorted(range(len(taken)), key=places.__getitem__))
        shape = [y.shape[place] for place in back]
        if back != (*range(len(back)),):
            y = rewriting.call(step, "jnp.transpose", (y, back), Variable(tuple(shape), y.dtype))
    if not is_of_jax(origin, rewriting):
        origin = rewriting.call(step, "jnp.asarray", (origin,), origin.shape)
    at = index_of(*[slice(None)] * order[axis], part)
    made = rewriting.call(step, step.name, (origin, at, y), origin.shape, "method")
    return in_place(step, "jnp.transpose", made, order)


@AS_WRITTEN.on("at.add")
def inside(step: Step, rewriting: StepRewriting) -> Step | None:
    """Rows outside, to which nothing is added, are left out by JAX."""
    x, at, y = step.args
    bounded = rewriting.producers.step(at, "jnp.clip")
    if bounded is None or len(bounded.args) != 3 or not are_bounds(*bounded.args[1:], x.shape[0]):
        return None
    wanted, known = pattern("jnp.where(unexpanded(i == at), rows, zero)"), {"i": bounded.args[0], "at": at}
    found = next(bindings(wanted, y, rewriting.producers, known), None)
    if found is None or not is_number(found["zero"], 0):
        return None
    added = found["rows"] if is_like(found["rows"], y) else _plain(found["rows"])
    return None if added is None else in_place(step, step.name, x, bounded.args[0], added, form="method")


def _plain(value: object) -> int | float | None:
    """Return a known number, of the kind of its type."""
    found = number(value)
    return int(found) if found is not None and isinstance(value, HostValue) and value.dtype.kind in "iu" else found


@AS_WRITTEN.on("")
def before_the_rest(step: Step, rewriting: StepRewriting) -> Step | None:
    """Rows outside that are written behind all others, which are left out, are left out by JAX."""
    made = rewriting.producers.step(step.args[0], "at.set") if step.form == "index" else None
    joined = rewriting.producers.step(made.args[0], "jnp.concatenate") if made is not None else None
    if made is None or joined is None or len(joined.args[0]) != 2 or joined.kwargs.get("axis", 0) != 0:
        return None
    x, size = joined.args[0][0], step.outputs.shape[0]
    if not is_like(x, step.outputs) or not isinstance(size, int) or step.args[1] != slice(None, size):
        return None
    wanted = pattern("jnp.clip(jnp.where(i < 0, i + size, i), low, high)")
    found = next(bindings(wanted, made.args[1], rewriting.producers), None)
    if found is None or not is_of_jax(x, rewriting) or not isinstance(found["i"], Variable):
        return None
    limits = {"size": size, "low": -1, "high": size}
    if not all(is_number(found[name], limit) for name, limit in limits.items()):
        return None
    return in_place(step, "at.set", x, found["i"], made.args[2], form="method")
