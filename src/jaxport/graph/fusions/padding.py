"""Recognise `Pad` with the elements at the border, mirrored or repeated.

Programs write it axis by axis as a Concat of what is padded and of Slices of it, which may be reversed, or spread.
Along each axis, the result is described by the positions that its rows come from:

    x = [a b c d]                              0 1 2 3
    concat(reverse(x[1:3]), x, x[2:3])         2 1 0 1 2 3 2     mode reflect, 2 before and 1 after
    concat(x[:1], x[:1], x, x[3:])             0 0 0 1 2 3 3     mode edge, 2 before and 1 after

https://onnx.ai/onnx/operators/onnx__Pad.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import begins_at, constant_of, dims_of, integer, is_op, source, sources
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle
from jaxport.graph.matching import Seen

#: The rows of an axis that is padded, by mode.
MODES: Mapping[str, Callable[[np.ndarray, tuple[int, int]], np.ndarray]] = {
    "reflect": lambda rows, widths: np.pad(rows, widths, "reflect"),
    "edge": lambda rows, widths: np.pad(rows, widths, "edge"),
}


@begins_at({"Concat"})
def padding(model: ir.Model) -> str:
    """Recognise Pad, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    return fuse(model, lambda node: _find(node, opset), Anchor(at=("Concat",)))


def _find(node: ir.Node, opset: int) -> Fusion | str | None:
    result = node.outputs[0]
    dims = dims_of(result)
    if dims is None:
        return None
    value, modes, pads = result, list(MODES), {}
    while (found := _padded(value, modes)) is not None and found[1] not in pads:
        value, axis, pads[axis], modes = found
    if not pads:
        return None
    widths = [pads.get(axis, (0, 0))[side] for side in (0, 1) for axis in range(len(dims))]

    def build(builder: Builder) -> ir.Value:
        return builder.emit("Pad", [value, builder.integers(widths, "pads")], dims, mode=modes[0])

    return obstacle("Pad", result.dtype, opset) or Fusion("Pad", result, [value], build)


def _padded(value: ir.Value, modes: Sequence[str]) -> tuple[ir.Value, int, tuple[int, int], list[str]] | None:
    """Return what a Concat pads, its axis, the number of rows before and after, and the modes that give them."""
    node, dims = value.producer(), dims_of(value)
    if node is None or not is_op(node, "Concat") or dims is None:
        return None
    axis = integer(node, "axis", 0) % len(dims)
    for base in _bases(node, axis):
        size = (dims_of(base) or dims)[axis]
        rows = _rows(value, axis, {base: np.arange(size)}) if isinstance(size, int) else None
        if rows is None or not isinstance(size, int):
            continue
        for before in map(int, np.flatnonzero(rows == 0)):
            widths = before, len(rows) - size - before
            if widths[1] < 0:
                continue
            usable = [mode for mode in modes if mode != "reflect" or max(widths) < size]  # runtimes mirror once
            fitting = [mode for mode in usable if np.array_equal(rows, MODES[mode](np.arange(size), widths))]
            if fitting:
                return base, axis, widths, fitting
    return None


def _bases(node: ir.Node, axis: int) -> Iterator[ir.Value]:
    """Return what a Concat may pad: one of its operands, or what one of them pads along the same axis."""
    for value in sources(node):
        before = value.producer()
        if is_op(before, "Concat") and integer(before, "axis", 0) % len(dims_of(value) or [0]) == axis:
            yield from _bases(before, axis)
        else:
            yield value


def _rows(value: ir.Value, axis: int, known: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    """Return the positions in a value that is known from which the rows of another come along an axis; None if from
    elsewhere.
    """
    if value not in known:
        known[value] = _moved_rows(value, axis, known)
    return known[value]


def _moved_rows(value: ir.Value, axis: int, known: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    node, dims = value.producer(), dims_of(value)
    if node is None or dims is None:
        return None
    if is_op(node, "Concat"):
        if integer(node, "axis", 0) % len(dims) != axis:
            return None
        parts = [rows for part in sources(node) if (rows := _rows(part, axis, known)) is not None]
        return np.concatenate(parts) if len(parts) == len(node.inputs) else None
    if is_op(node, "Slice"):
        cut = _cut(node, axis)
        rows = None if cut is None else _rows(source(node), axis, known)
        return None if cut is None or rows is None else rows[cut]
    if is_op(node, "Gather"):
        indices, is_along = constant_of(node.inputs[1]), integer(node, "axis", 0) % len(dims) == axis
        rows = _rows(source(node), axis, known) if is_along and indices is not None and indices.ndim == 1 else None
        return None if indices is None or rows is None else rows[indices]
    return _spread(value, axis, known)


def _cut(node: ir.Node, axis: int) -> slice | None:
    """Return what a Slice takes, if that is known, and along this axis alone."""
    numbers = [constant_of(value) for value in node.inputs[1:]]
    if any(array is None or array.size != 1 for array in numbers) or len(numbers) < 3:
        return None
    start, stop, along, *step = (int(array.item()) for array in numbers if array is not None)
    rank = len(dims_of(source(node)) or [0])
    by = step[0] if step else 1
    return slice(start, stop, by) if along % rank == axis else None


def _spread(value: ir.Value, axis: int, known: dict[ir.Value, np.ndarray | None]) -> np.ndarray | None:
    """Return the positions of one row that is repeated along an axis."""
    seen, dims = Seen.whole(value), dims_of(value)
    before = None if seen is None or seen.value is value else dims_of(seen.value)
    if seen is None or dims is None or before is None or len(before) != len(dims) or before[axis] != 1:
        return None
    if any(label != place and before[place] != 1 for place, label in enumerate(seen.axes) if place != axis):
        return None
    rows, count = _rows(seen.value, axis, known), dims[axis]
    same = all(one == other for place, (one, other) in enumerate(zip(before, dims, strict=True)) if place != axis)
    return np.repeat(rows, count) if rows is not None and isinstance(count, int) and same else None
