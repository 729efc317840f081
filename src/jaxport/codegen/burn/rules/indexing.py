"""Gathering and scattering: what Burn has for simple dimension numbers, and helper functions for any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.casting import converted
from jaxport.codegen.burn.rules.reductions import gathered, on_numbers
from jaxport.codegen.burn.rules.registry import PRIMITIVES, Outs, ResultType, primitive
from jaxport.codegen.burn.rules.shapes import axes_node, part_of, permuted, without_axes
from jaxport.codegen.burn.values import TypedValue, same, tensor
from jaxport.codegen.rust.tree import (
    Array,
    Borrow,
    Literal,
    RustExpression,
    RustRange,
    Slices,
    Structure,
    Tuple,
    method,
)
from jaxport.importer.values.host import Dim, is_dim
from jaxport.jaxprs.aliases import Shape
from jaxport.jaxprs.dims import static

INDEX = np.dtype("int32")
Mode = jax.lax.GatherScatterMode | str | None
"""What happens to indices outside of the operand."""


def _mode(mode: Mode) -> str:
    """Return what happens to indices outside of the operand."""
    text = str(mode).rpartition(".")[2].lower()
    return {"clip": "clip", "fill_or_drop": "fill", "promise_in_bounds": "promise"}.get(text, "fill")


@primitive("gather")
def gather(
    body: RustBody, x: TypedValue, indices: TypedValue, *dims: TypedValue, outs: Outs,
    dimension_numbers: jax.lax.GatherDimensionNumbers, slice_sizes: Sequence[Dim], mode: Mode,
    fill_value: object = None,
) -> TypedValue:  # fmt: skip
    numbers, out, kind = dimension_numbers, outs[0], _mode(mode)
    start_map, collapsed = tuple(numbers.start_index_map), tuple(numbers.collapsed_slice_dims)
    batching = tuple(numbers.operand_batching_dims)
    starts = None if batching else _known_starts(indices, x, start_map, slice_sizes)
    if starts is not None:
        cuts = [(start, start + size, 1) for start, size in zip(starts, slice_sizes, strict=True)]
        part = part_of(body, x, cuts, tuple(slice_sizes))
        return PRIMITIVES["squeeze"](body, part, outs=outs, dimensions=collapsed) if collapsed else part
    if len(start_map) == 1 and _are_inside(indices, x.shape[start_map[0]] - slice_sizes[start_map[0]] + 1):
        kind = "promise"
    indices = converted(body, indices, INDEX) if kind != "fill" else indices  # helper functions take any integers
    x, fill = tensor(body.tensor(x), x.shape, x.dtype), fill_of(x, fill_value) if kind == "fill" else 0
    left_out = {*collapsed, *batching}
    kept = [axis for axis in range(len(x.shape)) if axis not in left_out]
    is_row = len(start_map) == 1 and collapsed == start_map
    if is_row and not batching and all(same([slice_sizes[axis]], [x.shape[axis]]) for axis in kept):
        return _rows(body, x, indices, start_map[0], numbers.offset_dims, out, kind, fill)
    if is_row and kind != "fill" and not kept and _are_in_order(numbers, len(x.shape)):
        positions = _places(body, indices)
        positions = positions if kind == "promise" else moved_inside(body, positions, x.shape[start_map[0]])
        return tensor(gathered(body, x, start_map[0], body.tensor(positions)), out.shape, x.dtype)
    pairs = [*zip(batching, numbers.start_indices_batching_dims, strict=True)]
    windows = _windows(body, start_map, [*zip(kept, numbers.offset_dims, strict=True)], pairs, kind != "fill")
    ranks = f"{x.rank}, {indices.rank}, {max(1, len(out.shape))}, _"
    number = converted(body, x, np.dtype("uint8")) if x.kind == "Bool" else x
    node = body.helper(
        "lax_gather", body.tensor(number), body.tensor(indices), windows, body.shape(out.shape),
        body.literal(fill, number.dtype), generics=ranks,
    )  # fmt: skip
    return converted(body, tensor(node, out.shape, number.dtype), x.dtype)


def fill_of(x: TypedValue, fill_value: object = None) -> object:
    """Return what stands where indices are outside: what a call asks for, or else what JAX has for the type."""
    if fill_value is not None:
        return fill_value
    if x.kind == "Float":
        return float("nan")
    if x.kind == "Bool":
        return True
    info = np.iinfo(x.dtype)
    return info.min if x.dtype.kind == "i" else info.max


def _known_starts(
    indices: TypedValue, x: TypedValue, start_map: Sequence[int], sizes: Sequence[Dim]
) -> list[Dim] | None:
    """Return where a single window begins, if that is known and inside."""
    if indices.known is None or len(indices.shape) != 1:
        return None
    starts: list[Dim] = [0] * len(x.shape)
    known = np.broadcast_to(np.asarray(indices.known, object), static(indices.shape))
    for axis, start in zip(start_map, known.tolist(), strict=True):
        last = x.shape[axis] - sizes[axis]
        if not is_dim(start) and (start < 0 or not (is_dim(last) or start <= last)):
            return None
        starts[axis] = start
    return starts


def _are_inside(positions: TypedValue, size: Dim) -> bool:
    """Whether positions are known to be in an axis of a size."""
    known = None if positions.known is None or is_dim(size) else np.asarray(positions.known)
    return known is not None and known.dtype != object and bool(((known >= 0) & (known < size)).all())


def moved_inside(body: RustBody, positions: TypedValue, size: Dim) -> TypedValue:
    """Return positions in an axis, of which those outside are moved to its ends."""
    if _are_inside(positions, size):
        return positions
    node = method(body.compact(positions), "clamp", Literal("0"), body.signed(size - 1))
    sizes = positions.sizes if positions.node is not None else (1,) * len(positions.shape)
    return TypedValue(positions.shape, INDEX, node, sizes)


def _places(body: RustBody, indices: TypedValue) -> TypedValue:
    """Return indices along one axis without their last axis, which counts the axes."""
    last = len(indices.shape) - 1
    return PRIMITIVES["squeeze"](body, indices, outs=[TypedValue(indices.shape[:-1], INDEX)], dimensions=[last])


def _rows(
    body: RustBody, x: TypedValue, indices: TypedValue, axis: int, offsets: Sequence[int], out: ResultType, kind: str,
    fill: object,
) -> TypedValue:  # fmt: skip
    """Return whole rows along one axis: `select`, or `take` for indices of several axes."""
    index_shape, operand = tuple(indices.shape[:-1]), Literal(str(axis))
    places = _places(body, indices)
    places = moved_inside(body, places, x.shape[axis]) if kind == "clip" else places
    rank = len(x.shape) - 1 + places.rank
    if kind == "fill":
        number = body.literal(fill, np.dtype("uint8") if x.kind == "Bool" else x.dtype)
        ranks = f"{len(x.shape)}, {places.rank}, {rank}, _"
        make = lambda node: body.helper("select_filled", node, operand, body.tensor(places), number, generics=ranks)
    elif places.rank == 1:
        make = lambda node: method(node, "select", operand, body.tensor(places))
    else:
        make = lambda node: method(node, "take", operand, body.tensor(places), generics=f"{places.rank}, {rank}")
    node = on_numbers(body, x, make)
    if not index_shape:
        return tensor(without_axes(body, node, [axis], rank), out.shape, x.dtype)
    # Offset axes of the result, in order, are the axes of the operand; the others are those of the indices.
    ahead = [at for at in range(rank) if at not in offsets]
    behind = axis + len(ahead)
    moved = zip([*offsets, *ahead], [*range(axis), *range(behind, rank), *range(axis, behind)], strict=True)
    order = [place for _, place in sorted(moved)]
    return tensor(permuted(node, order), out.shape, x.dtype)


def _are_in_order(numbers: jax.lax.GatherDimensionNumbers, rank: int) -> bool:
    """Whether each element of the result has an index of its own along one axis, in the places of the operand."""
    others = tuple(at for at in range(rank) if at not in numbers.start_index_map)
    return others == tuple(numbers.operand_batching_dims) == tuple(numbers.start_indices_batching_dims)


def _windows(
    body: RustBody, starts: Sequence[int], spans: Sequence[tuple[int, int]], batches: Sequence[tuple[int, int]],
    clips: bool,
) -> RustExpression:  # fmt: skip
    """Return how windows lie in an array, for a helper function."""
    body.helpers.add("Windows")
    pairs = [Borrow(Array([Tuple([Literal(str(at)) for at in pair]) for pair in each])) for each in (spans, batches)]
    parts = [Borrow(axes_node(starts)), *pairs, Literal("true" if clips else "false")]
    return Borrow(Structure("Windows", ["starts", "spans", "batches", "clips"], [*parts]))


_UPDATES = {
    "scatter": "Assign",
    "scatter_add": "Add",
    "scatter_sub": "Add",
    "scatter_mul": "Mul",
    "scatter_min": "Min",
    "scatter_max": "Max",
}


def is_extreme(operation: str) -> bool:
    """Whether an update keeps the greater or the smaller number: Burn's ignore NaN."""
    return operation in ("Max", "Min")


def _scatter(name: str) -> Callable[..., TypedValue]:
    def rule(
        body: RustBody, x: TypedValue, indices: TypedValue, updates: TypedValue, *dims: TypedValue, outs: Outs,
        dimension_numbers: jax.lax.ScatterDimensionNumbers, mode: Mode,
        update_jaxpr: object = None, update_consts: object = None,
    ) -> TypedValue:  # fmt: skip
        numbers = dimension_numbers
        left_out = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        kept = [axis for axis in range(len(x.shape)) if axis not in left_out]
        spans = dict(zip(kept, numbers.update_window_dims, strict=True))
        batching = [*zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)]
        if name == "scatter" and not batching:
            sizes = [updates.shape[spans[axis]] if axis in spans else 1 for axis in range(len(x.shape))]
            starts = _known_starts(indices, x, numbers.scatter_dims_to_operand_dims, sizes)
            if starts is not None:
                return _assigned(body, x, updates, starts, sizes)
        windows = _windows(
            body, numbers.scatter_dims_to_operand_dims, [*spans.items()], batching, _mode(mode) == "clip"
        )
        if name == "scatter_sub":
            updates = PRIMITIVES["neg"](body, updates, outs=[updates])
        held = np.dtype("uint8") if x.kind == "Bool" else x.dtype
        operands = [body.tensor(converted(body, x, held)), body.tensor(indices)]
        operands.append(body.tensor(converted(body, updates, held)))
        called = "lax_scatter_extremes" if is_extreme(_UPDATES[name]) and x.kind == "Float" else "lax_scatter"
        node = body.helper(called, *operands, windows, Literal(f"IndexingUpdateOp::{_UPDATES[name]}"))
        return converted(body, tensor(node, x.shape, held), x.dtype)

    return rule


for _name in _UPDATES:
    primitive(_name.replace("_", "-") if _name != "scatter" else _name, _name)(_scatter(_name))


def _assigned(
    body: RustBody, x: TypedValue, updates: TypedValue, starts: Sequence[Dim], sizes: Sequence[Dim]
) -> TypedValue:
    """One window at a known place: `slice_assign`."""
    parts: list[RustExpression] = []
    for start, size, own in zip(starts, sizes, x.shape, strict=True):
        if same([start, size], [0, own]):
            parts.append(RustRange(None, None, 1))
        else:
            end = start + size
            parts.append(RustRange(body.number(start), body.number(end), 1))
    new = body.shaped(body.tensor(updates), updates.shape, sizes)
    return tensor(method(body.tensor(x), "slice_assign", Slices(parts), new), x.shape, x.dtype)


@primitive("dynamic_slice")
def dynamic_slice(body: RustBody, x: TypedValue, *starts: TypedValue, outs: Outs, slice_sizes: Shape) -> TypedValue:
    sizes = tuple(outs[0].shape)
    if all(start.number is not None for start in starts[: len(x.shape)]):
        begins = [_clamped(start.number, size, own) for start, size, own in zip(starts, sizes, x.shape, strict=False)]
        return part_of(body, x, [(begin, begin + size, 1) for begin, size in zip(begins, sizes, strict=True)], sizes)
    return tensor(_dynamic(body, "dynamic_slice", x, starts, sizes), sizes, x.dtype)


def _clamped(start: Any, size: Dim, own: Dim) -> Dim:
    if is_dim(start) or is_dim(size) or is_dim(own):
        return start if is_dim(start) else int(start)
    return min(max(int(start), 0), own - size)


def _dynamic(
    body: RustBody, name: str, x: TypedValue, starts: Sequence[TypedValue], sizes: Sequence[Dim], *more: RustExpression
) -> RustExpression:
    """Return the call of a helper on a window whose start is computed."""
    begins: list[RustExpression] = []
    for start in starts[: len(x.shape)]:
        if start.number is not None:
            begins.append(body.literal(start.number, INDEX))
        else:
            begins.append(method(body.tensor(start), "into_scalar", generics="i64"))
    together = Array(begins)
    if more:
        return body.helper(name, body.tensor(x), *more, together)
    return body.helper(name, body.tensor(x), together, body.shape(sizes))


@primitive("dynamic_update_slice")
def dynamic_update_slice(
    body: RustBody, x: TypedValue, update: TypedValue, *starts: TypedValue, outs: Outs
) -> TypedValue:
    if all(start.number is not None for start in starts):
        begins = [
            _clamped(start.number, size, own) for start, size, own in zip(starts, update.shape, x.shape, strict=True)
        ]
        return _assigned(body, x, update, begins, update.shape)
    return tensor(_dynamic(body, "dynamic_update_slice", x, starts, x.shape, body.tensor(update)), x.shape, x.dtype)
