"""Gathering and scattering, by any dimension numbers: the flat positions of all elements, or what Burn has for simple
ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.casting import converted
from jaxport.codegen.burn.rules.elementwise import negated, spread
from jaxport.codegen.burn.rules.reductions import gathered, on_numbers
from jaxport.codegen.burn.rules.registry import PRIMITIVES, Outs, ResultType, primitive
from jaxport.codegen.burn.rules.shapes import added_axes, counted, padded, part_of, permuted
from jaxport.codegen.burn.values import TypedValue, same, tensor
from jaxport.codegen.rust.tree import Array, Binary, Literal, RustExpression, RustRange, Slices, method
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
    start_map, collapsed = tuple(numbers.start_index_map), (*numbers.collapsed_slice_dims,)
    batching = tuple(numbers.operand_batching_dims)
    if indices.known is not None and not batching and len(indices.shape) == 1:
        starts = _known_starts(indices, x, start_map, slice_sizes)
        if starts is not None:
            cuts = [(start, start + size, 1) for start, size in zip(starts, slice_sizes, strict=True)]
            part = part_of(body, x, cuts, tuple(slice_sizes))
            return PRIMITIVES["squeeze"](body, part, outs=outs, dimensions=collapsed) if collapsed else part
    if kind == "fill" and indices.known is not None and isinstance(indices.known, np.ndarray) and len(start_map) == 1:
        size, width = x.shape[start_map[0]], slice_sizes[start_map[0]]
        if (
            not is_dim(size)
            and not is_dim(width)
            and indices.known.size
            and (indices.known >= 0).all()
            and (indices.known <= size - width).all()
        ):
            kind = "promise"
    indices = converted(body, indices, INDEX)
    fill = fill_of(x, fill_value) if kind == "fill" else None
    index_shape = tuple(indices.shape[:-1])
    if x.known is not None:
        x = TypedValue(x.shape, x.dtype, body.tensor(x), x.shape)
    rest = [axis for axis in range(len(x.shape)) if axis not in start_map]
    whole = all(same([slice_sizes[axis]], [x.shape[axis]]) for axis in rest if axis not in batching)
    if len(start_map) == 1 and not batching and collapsed == start_map and whole:
        return _selected(body, x, indices, index_shape, start_map[0], numbers, out, kind, fill)
    if len(start_map) == 1 and collapsed == start_map and _is_along_axis(x, indices, numbers, slice_sizes):
        axis = start_map[0]
        positions = body.reshaped(indices, out.shape)
        positions, valid = within(body, positions, x.shape[axis], kind)
        node = gathered(body, x, axis, body.tensor(positions))
        return _filled(body, tensor(node, out.shape, x.dtype), valid, fill)
    return _by_positions(body, x, indices, numbers, slice_sizes, out, kind, fill)


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
    """Return where a window begins, if that is known and inside."""
    known = (
        indices.known
        if isinstance(indices.known, np.ndarray)
        else np.full(static(indices.shape), indices.known, object)
    )
    starts: list[Dim] = [0] * len(x.shape)
    for axis, start in zip(start_map, known.ravel().tolist(), strict=True):
        last = x.shape[axis] - sizes[axis]
        if is_dim(start):
            starts[axis] = start
        elif is_dim(last):
            if start < 0:
                return None
            starts[axis] = start
        elif 0 <= start <= last:
            starts[axis] = start
        else:
            return None
    return starts


def within(
    body: RustBody, positions: TypedValue, size: Dim, kind: str, width: Dim = 1
) -> tuple[TypedValue, TypedValue | None]:
    """Return positions inside of an axis, and where they were inside before; None if that is known."""
    if kind == "promise":
        return positions, None
    last = size - width
    if positions.known is not None and not is_dim(last):
        known = np.asarray(positions.known)
        if known.dtype != object and (known >= 0).all() and (known <= last).all():
            return positions, None
    limit = body.signed(last)
    valid = None
    if kind == "fill":
        positions = body.bound(
            TypedValue(
                positions.shape,
                INDEX,
                body.compact(positions),
                positions.sizes if positions.node is not None else (1,) * len(positions.shape),
            ),
            "indices",
        )
        low = method(body.compact(positions), "greater_equal_elem", Literal("0"))
        high = method(body.compact(positions), "lower_equal_elem", limit)
        valid = TypedValue(positions.shape, np.dtype(bool), method(low, "bool_and", high), positions.sizes)
    node = method(body.compact(positions), "clamp", Literal("0"), limit)
    sizes = positions.sizes if positions.node is not None else (1,) * len(positions.shape)
    return TypedValue(positions.shape, INDEX, node, sizes), valid


def _filled(body: RustBody, value: TypedValue, valid: TypedValue | None, fill: object) -> TypedValue:
    """Return a value with a number where the positions were outside."""
    if valid is None:
        return value
    node = method(body.tensor(value), "mask_fill", negated(body.compact(valid)), body.literal(fill, value.dtype))
    return tensor(node, value.shape, value.dtype)


def _selected(
    body: RustBody,
    x: TypedValue,
    indices: TypedValue,
    index_shape: tuple[Dim, ...],
    axis: int,
    numbers: jax.lax.GatherDimensionNumbers,
    out: ResultType,
    kind: str,
    fill: object,
) -> TypedValue:
    """Rows along one axis: `select`."""
    rank, count = len(x.shape), len(index_shape)
    flat = body.reshaped(indices, (math.prod(index_shape),))
    flat, valid = within(body, flat, x.shape[axis], kind)
    node = on_numbers(body, x, lambda node: method(node, "select", Literal(str(axis)), body.tensor(flat)))
    rows = [*x.shape[:axis], math.prod(index_shape), *x.shape[axis + 1 :]]
    made = tensor(node, rows, x.dtype)
    if valid is not None:
        places = [at for at in range(rank) if at != axis]
        wide = added_axes(valid.node, places, rank) if places and valid.node is not None else valid.node
        made = _filled(
            body,
            made,
            TypedValue(tuple(rows), valid.dtype, wide, tuple(rows[axis] if at == axis else 1 for at in range(rank))),
            fill,
        )
    shaped = [*x.shape[:axis], *index_shape, *x.shape[axis + 1 :]]
    node = body.shaped(body.tensor(made), rows, shaped)
    # Offset axes of the result, in order, are the axes of the operand; the others are those of the indices.
    offsets = [*numbers.offset_dims]
    batch = [at for at in range(len(out.shape)) if at not in offsets]
    order = [0] * len(out.shape)
    for place, at in zip([*range(axis), *range(axis + count, rank + count - 1)], offsets, strict=True):
        order[at] = place
    for place, at in zip(range(axis, axis + count), batch, strict=True):
        order[at] = place
    node = permuted(node, order) if out.shape else node
    return tensor(node, out.shape, x.dtype)


def _is_along_axis(
    x: TypedValue,
    indices: TypedValue,
    numbers: jax.lax.GatherDimensionNumbers,
    slice_sizes: Sequence[Dim],
) -> bool:
    """Whether each element of the result has an index of its own along one axis, in the places of the operand."""
    axis = numbers.start_index_map[0]
    others = tuple(at for at in range(len(x.shape)) if at != axis)
    batching, in_indices = tuple(numbers.operand_batching_dims), tuple(numbers.start_indices_batching_dims)
    if batching != others or len(indices.shape) != len(x.shape) + 1 or numbers.offset_dims:
        return False
    return in_indices == others and all(not is_dim(size) and size == 1 for size in slice_sizes)


def _strides(shape: Sequence[Dim]) -> list[Dim]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _times(body: RustBody, value: TypedValue, factor: Dim) -> TypedValue:
    if not is_dim(factor) and factor == 1:
        return value
    number = body.signed(factor)
    return TypedValue(value.shape, INDEX, Binary(body.compact(value), "*", number), value.sizes)


def _positions(
    body: RustBody, shape: Sequence[Dim], indices: TypedValue, start_map: Sequence[int], windows: Sequence[Dim],
    window_axes: Sequence[int | None],
    batch_axes: Sequence[int], batching: Sequence[tuple[int, int]], whole: Sequence[Dim], kind: str,
) -> tuple[TypedValue, TypedValue | None]:  # fmt: skip
    """Return the flat position of each element of windows, and whether its window is inside.

    Args:
      shape: the shape of the operand.
      indices: where windows begin: the last axis has a number for each axis in `start_map`.
      windows: the sizes of a window along each axis of the operand.
      window_axes: which axis of the whole each axis of a window is; None if it is of size 1 and left out.
      batch_axes: which axes of the whole the axes of the indices are.
      batching: pairs of an axis of the operand and an axis of the indices that go together.
      whole: the shape of the result, or of the updates.
      kind: what happens to windows that are not inside.
    """
    rank = len(whole)
    strides = _strides(shape)
    total: TypedValue | None = None
    valid: TypedValue | None = None
    index_shape = tuple(indices.shape[:-1])
    indices = body.bound(indices, "indices") if len(start_map) > 1 else indices

    def placed(value: TypedValue, axes: Sequence[int]) -> TypedValue:
        """Return a value with its axes at these places of the whole."""
        if not value.shape or rank == 0:
            return spread(value, whole)
        return PRIMITIVES["broadcast_in_dim"](
            body, value, outs=[TypedValue(tuple(whole), value.dtype)], broadcast_dimensions=tuple(axes)
        )

    def plus(one: TypedValue | None, other: TypedValue) -> TypedValue:
        if one is None:
            return other
        return PRIMITIVES["add"](body, one, other, outs=[TypedValue(tuple(whole), INDEX)])

    for place, axis in enumerate(start_map):
        cut = [(0, size, 1) for size in index_shape] + [(place, place + 1, 1)]
        start = part_of(body, indices, cut, (*index_shape, 1))
        start = body.reshaped(start, index_shape)
        if start.known is not None:
            start = tensor(body.tensor(start), index_shape, INDEX)
        start, inside = within(body, start, shape[axis], "clip" if kind == "promise" else kind, windows[axis])
        total = plus(total, placed(_times(body, start, strides[axis]), batch_axes))
        if inside is not None:
            wide = placed(inside, batch_axes)
            valid = (
                wide
                if valid is None
                else PRIMITIVES["and"](body, valid, wide, outs=[TypedValue(tuple(whole), np.dtype(bool))])
            )
    for axis, at in enumerate(window_axes):
        if at is not None and (is_dim(windows[axis]) or windows[axis] != 1):
            total = plus(total, _times(body, counted(body, tuple(whole), at, INDEX), strides[axis]))
    for axis, of_indices in batching:
        total = plus(total, _times(body, counted(body, tuple(whole), batch_axes[of_indices], INDEX), strides[axis]))
    if total is None:
        total = TypedValue(tuple(whole), INDEX, known=0)
    return total, valid


def _by_positions(
    body: RustBody,
    x: TypedValue,
    indices: TypedValue,
    numbers: jax.lax.GatherDimensionNumbers,
    slice_sizes: Sequence[Dim],
    out: ResultType,
    kind: str,
    fill: object,
) -> TypedValue:
    left_out = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    offsets = iter(numbers.offset_dims)
    window_axes = [None if axis in left_out else next(offsets) for axis in range(len(x.shape))]
    batch_axes = [at for at in range(len(out.shape)) if at not in numbers.offset_dims]
    batching = [*zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)]
    total, valid = _positions(
        body, x.shape, indices, numbers.start_index_map, slice_sizes, window_axes, batch_axes, batching, out.shape, kind
    )
    flat = body.reshaped(tensor(body.tensor(total), out.shape, INDEX), (math.prod(out.shape),))
    whole = body.reshaped(x, (math.prod(x.shape),))
    node = on_numbers(body, whole, lambda node: method(node, "select", Literal("0"), body.tensor(flat)))
    made = tensor(body.shaped(node, (math.prod(out.shape),), out.shape), out.shape, x.dtype)
    return _filled(body, made, valid, fill)


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
        numbers, kind = dimension_numbers, _mode(mode)
        left_out = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        window = iter(numbers.update_window_dims)
        window_axes = [None if axis in left_out else next(window) for axis in range(len(x.shape))]
        sizes = [1 if at is None else updates.shape[at] for at in window_axes]
        batch_axes = [at for at in range(len(updates.shape)) if at not in numbers.update_window_dims]
        batching = [*zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)]
        indices = converted(body, indices, INDEX)
        starts = (
            _known_starts(indices, x, numbers.scatter_dims_to_operand_dims, sizes)
            if indices.known is not None and len(indices.shape) == 1 and not batching
            else None
        )
        if starts is not None and name == "scatter":
            return _assigned(body, x, updates, starts, sizes)
        total, valid = _positions(
            body,
            x.shape,
            indices,
            numbers.scatter_dims_to_operand_dims,
            sizes,
            window_axes,
            batch_axes,
            batching,
            updates.shape,
            kind,
        )
        count, rows = math.prod(updates.shape), math.prod(x.shape)
        boolean = x.kind == "Bool"
        value = converted(body, x, np.dtype("uint8")) if boolean else x
        changed = converted(body, updates, np.dtype("uint8")) if boolean else updates
        if name == "scatter_sub":
            changed = PRIMITIVES["neg"](body, changed, outs=[changed])
        if valid is not None:  # windows that are outside change an element behind the others, which is dropped
            behind = body.signed(rows)
            whole = tensor(body.tensor(total), updates.shape, INDEX)
            node = method(body.tensor(whole), "mask_fill", negated(body.compact(valid)), behind)
            total = tensor(node, updates.shape, INDEX)
        flat = body.shaped(body.tensor(total), updates.shape, (count, 1))
        source = body.reshaped(value, (rows,))
        if valid is not None:
            source = tensor(padded(body, source, [(0, 1)], 0), (rows + 1,), value.dtype)
        new = body.tensor(body.reshaped(changed, (count,)))
        operation = Literal(f"IndexingUpdateOp::{_UPDATES[name]}")
        called = "scattered_extremes" if is_extreme(_UPDATES[name]) and x.kind == "Float" else "scattered"
        node = body.helper(called, body.tensor(source), flat, new, operation)
        if valid is not None:
            end = body.number(rows)
            node = method(node, "slice", Slices([RustRange(None, end, 1)]))
        made = tensor(body.shaped(node, (rows,), x.shape), x.shape, value.dtype)
        return converted(body, made, np.dtype(bool)) if boolean else made

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
