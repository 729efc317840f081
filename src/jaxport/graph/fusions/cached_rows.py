"""Read key-value caches in a graph: the rows that were cached, the new ones, and where these are written.

1. Behind the others (`concatenate`): the cache grows.
2. In place of others (`dynamic_update_slice`): the cache is static. All sequences have one place, or each has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.graph.affine import Known, Position, affine, values_in
from jaxport.graph.editing import Dim, constant_of, dims_of, integer, is_op, number_of, source
from jaxport.graph.matching import Axis, Seen, look
from jaxport.sizes.sums import SizeSum, size_sum

#: The label of the axis of new rows.
NEW = "new rows"


@dataclass(frozen=True)
class Cache:
    """Rows with new ones.

    Attributes:
      past, present: the rows before and after.
      new: the new rows, with the labels of the axes.
      start: the place of the first new one.
      is_static: whether they replace others.
      places: the place of the first new one of each sequence, inside of the cache; None if it is the same for all.
    """

    past: ir.Value
    present: ir.Value
    new: Seen
    start: SizeSum
    is_static: bool
    places: ir.Value | None = None

    @property
    def batch(self) -> Dim:
        """The number of sequences."""
        return (dims_of(self.present) or [])[0]

    @property
    def count(self) -> Dim:
        """The number of new rows."""
        return (dims_of(self.new.entry) or [])[2]

    @classmethod
    def of(cls, seen: Seen, axes: Sequence[Axis], known: Known) -> Cache | str | None:
        """Return the cache that keys or values are, whose axes are those of `axes`: batch, heads, rows and vectors."""
        node, value = seen.value.producer(), seen.value
        dims = dims_of(value)
        if dims is None or len(dims) != len(axes) or not is_op(node, "Concat", "TensorScatter", "ScatterElements"):
            return None
        rows = axes[2]
        own = [axis for axis in seen.axes if axis is not None]
        if rows not in own or seen.axes[integer(node, "axis", -2)] != rows:
            return None
        if any(axis not in (None, wanted) for axis, wanted in zip(seen.axes, axes, strict=True)):
            return "the axes of its cache are not those of batches, heads, positions and vectors"
        read = {"Concat": _joined, "TensorScatter": _scattered, "ScatterElements": _scattered_elements}[node.op_type]
        found = read(node, axes, known)
        if found is None:
            return None
        past, new, start, *places = found
        labels = [NEW if axis == rows else axis for axis in seen.axes]
        return cls(past, value, look(new, labels), start, len(node.inputs) > 2, *places)


def _joined(node: ir.Node, _axes: Sequence[Axis], known: Known) -> tuple[ir.Value, ir.Value, SizeSum] | None:
    """Return the old rows, the new ones, and the place of the first of these, if old rows surround the new ones."""
    if len(node.inputs) == 2:
        past, new = source(node), source(node, 1)
        dims = dims_of(past)
        return (past, new, size_sum(dims[2])) if dims is not None and past.is_graph_input() else None
    if len(node.inputs) != 3:
        return None
    before, new, after = (source(node, place) for place in range(3))
    first, last, dims = _sliced(before, known), _sliced(after, known), dims_of(new)
    if first is None or last is None or dims is None or first[0] is not last[0] or not first[0].is_graph_input():
        return None
    (past, begin, start), (_, end, stop) = first, last
    whole = size_sum((dims_of(past) or [])[2])
    if begin != SizeSum({}, 0) or start is None or end != start + size_sum(dims[2]) or stop not in (None, whole):
        return None
    return past, new, start


def _sliced(value: ir.Value, known: Known) -> tuple[ir.Value, SizeSum, SizeSum | None] | None:
    """Return what rows are taken from, the first one, and the one after the last; None for the end."""
    node = value.producer()
    if not is_op(node, "Slice"):
        return None
    begin, end, axes, *step = (source(node, place) for place in range(1, len(node.inputs)))
    along = constant_of(axes)
    if (
        along is None
        or along.tolist() != [2]
        or any(number is None or number.tolist() != [1] for number in map(constant_of, step))
    ):
        return None
    limit = constant_of(end)
    unlimited = limit is not None and limit.tolist() == [np.iinfo(np.int64).max]
    return source(node), affine(look(begin, [None]), known), None if unlimited else affine(look(end, [None]), known)


def _scattered(
    node: ir.Node, axes: Sequence[Axis], known: Known
) -> tuple[ir.Value, ir.Value, SizeSum] | tuple[ir.Value, ir.Value, SizeSum, ir.Value] | None:
    """Do the same for rows that replace others, and return the places if they are of each sequence."""
    past, new, places = (source(node, place) for place in range(3))
    if not past.is_graph_input():
        return None
    seen = look(places, axes[:1])
    if seen.axes == (None,):
        return past, new, affine(seen, known)
    return past, new, _start(node, seen, known), places


def _scattered_elements(
    node: ir.Node, axes: Sequence[Axis], known: Known
) -> tuple[ir.Value, ir.Value, SizeSum, ir.Value] | None:
    """Do the same for rows that replace others element by element, which counts along the rows of each sequence."""
    past, places, new = (source(node, place) for place in range(3))
    reduction = node.attributes.get("reduction")
    if not past.is_graph_input() or (reduction is not None and reduction.as_string() != "none"):
        return None
    labels = [NEW if at == integer(node, "axis", 0) % len(axes) else axis for at, axis in enumerate(axes)]
    first = affine(look(places, labels), known).without(Position(NEW))
    (seen,) = values_in(first) if len(values_in(first)) == 1 else [None]
    if seen is None or first != SizeSum({seen: 1}) or [axis for axis in seen.axes if axis is not None] != [*axes[:1]]:
        return None
    return past, new, _start(node, seen, known), seen.value


def _start(node: ir.Node, places: Seen, known: Known) -> SizeSum:
    """Return the places of the first new rows as they are before JAX moves those that lie outside into the cache."""
    along = integer(node, "axis", -2)
    new = source(node, 2 if node.op_type == "ScatterElements" else 1)
    rows, count = (size_sum((dims_of(value) or [])[along]) for value in (source(node), new))
    return affine(_unguarded(places, rows, rows - count, known), known)


def _unguarded(seen: Seen, rows: SizeSum, last: SizeSum, known: Known) -> Seen:
    """Return places as they are before those that lie outside of the cache are moved into it.

    Args:
      seen: the places.
      rows: the number of rows of the cache.
      last: the last place that has room for the new rows.
      known: what is known of sizes.
    """
    while seen.is_op("Cast"):
        seen = look(source(seen.node), seen.axes)
    if seen.is_op("Clip") and len(seen.node.inputs) == len(("x", "low", "high")):
        low, high = (source(seen.node, place) for place in (1, 2))
        if number_of(low) == 0 and affine(look(high, ()), known) == last:
            return _unguarded(look(source(seen.node), seen.axes), rows, last, known)
    if seen.is_op("Where"):  # those below zero are counted from the end
        condition, moved, own = seen.operands("Where") or (None, None, None)
        below = None if condition is None else condition.operands("Less")
        if moved is not None and own is not None and below is not None and below[0] == own:
            is_zero = number_of(below[1].value) == 0
            if is_zero and affine(moved, known) == affine(own, known) + rows:
                return _unguarded(own, rows, last, known)
    return seen
