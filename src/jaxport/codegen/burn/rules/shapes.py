"""Axes and sizes: reshaping, broadcasting, transposing, joining, cutting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax.typing import DTypeLike

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.casting import converted
from jaxport.codegen.burn.rules.registry import Outs, primitive
from jaxport.codegen.burn.values import TypedValue, dtype_name, kind_of, same, tensor
from jaxport.codegen.rust.tree import (
    Array,
    Borrow,
    Literal,
    Method,
    RustExpression,
    RustRange,
    Slices,
    Tuple,
    Vector,
    method,
    path_call,
)
from jaxport.importer.values.host import Dim, is_dim
from jaxport.jaxprs.aliases import Shape
from jaxport.jaxprs.dims import static


def axes_node(axes: Sequence[int]) -> RustExpression:
    return Array([Literal(str(axis)) for axis in axes])


@primitive("broadcast_in_dim")
def broadcast_in_dim(
    body: RustBody,
    x: TypedValue,
    *dims: TypedValue,
    outs: Outs,
    shape: Shape | None = None,
    broadcast_dimensions: Sequence[int],
) -> TypedValue:
    shape, places = tuple(outs[0].shape), tuple(broadcast_dimensions)
    if x.known is not None and (x.number is not None or not isinstance(x.known, np.ndarray)):
        return TypedValue(shape, x.dtype, known=x.number)
    x = TypedValue(x.shape, x.dtype, body.tensor(x), x.shape) if x.node is None else x
    assert x.node is not None
    rank = len(shape)
    added = [axis for axis in range(rank) if axis not in places]
    sizes: list[Dim] = [1] * rank
    for place, size in zip(places, x.sizes, strict=True):
        sizes[place] = size
    node = x.node
    if not x.shape:
        node = method(node, "unsqueeze", generics=str(rank)) if rank > 1 else node
    elif added:
        node = added_axes(node, added, rank)
    return TypedValue(shape, x.dtype, node, tuple(sizes))


def added_axes(node: RustExpression, added: Sequence[int], rank: int) -> RustExpression:
    """Return a tensor with more axes, which are of size 1."""
    whole = _without(node, "squeeze", added)
    if whole is not None:
        return whole
    if isinstance(node, Method) and node.added is not None:  # both at once
        kept = [axis for axis in range(rank) if axis not in added]
        node, added = node.receiver, sorted([*added, *(kept[axis] for axis in node.added)])
    if [*added] == [*range(len(added))]:
        made = method(node, "unsqueeze", generics=str(rank))
    elif len(added) == 1:
        made = method(node, "unsqueeze_dim", Literal(str(added[0])), generics=str(rank))
    else:
        made = method(node, "unsqueeze_dims", Borrow(axes_node(added)), generics=str(rank))
    made.added = [*added]
    return made


def _without(node: RustExpression, name: str, axes: Sequence[int]) -> RustExpression | None:
    """Return the tensor of which an expression drops axes last, or adds them, if it does: `name` is `squeeze` or
    `unsqueeze`.
    """
    if not isinstance(node, Method) or node.name not in (f"{name}_dim", f"{name}_dims"):
        return None
    (given,) = node.arguments
    parts = given.value.elements if isinstance(given, Borrow) and isinstance(given.value, Array) else [given]
    changed = [int(part.text) for part in parts if isinstance(part, Literal)]
    return node.receiver if changed == [*axes] else None


@primitive("expand_dims")
def expand_dims(body: RustBody, x: TypedValue, *, outs: Outs, dimensions: Sequence[int]) -> TypedValue:
    kept = [axis for axis in range(len(outs[0].shape)) if axis not in dimensions]
    return broadcast_in_dim(body, x, outs=outs, broadcast_dimensions=kept)


@primitive("reshape")
def reshape(
    body: RustBody,
    x: TypedValue,
    *dims: TypedValue,
    outs: Outs,
    new_sizes: Shape | None = None,
    dimensions: Sequence[int] | None = None,
) -> TypedValue:
    shape = tuple(outs[0].shape)
    added = _added(x.shape, shape)
    if x.node is not None and added is not None and x.shape:
        return broadcast_in_dim(
            body, x, outs=outs, broadcast_dimensions=[a for a in range(len(shape)) if a not in added]
        )
    return body.reshaped(x, shape)


def _added(before: Sequence[Dim], after: Sequence[Dim]) -> list[int] | None:
    """Return the axes of size 1 that are all that a reshape adds."""
    added, place = [], 0
    for axis, size in enumerate(after):
        if place < len(before) and same([before[place]], [size]):
            place += 1
        elif not is_dim(size) and size == 1:
            added.append(axis)
        else:
            return None
    return added if place == len(before) and added else None


@primitive("squeeze")
def squeeze(body: RustBody, x: TypedValue, *, outs: Outs, dimensions: Sequence[int]) -> TypedValue:
    shape = tuple(outs[0].shape)
    if x.known is not None:
        known = x.known.reshape(static(shape)) if isinstance(x.known, np.ndarray) else x.known
        return TypedValue(shape, x.dtype, known=known)
    assert x.node is not None
    sizes = tuple(size for axis, size in enumerate(x.sizes) if axis not in dimensions)
    return TypedValue(shape, x.dtype, without_axes(body, x.node, dimensions, len(x.shape)), sizes)


def without_axes(body: RustBody, node: RustExpression, axes: Sequence[int], rank: int) -> RustExpression:
    """Return a tensor without axes of size 1; one axis is left at least."""
    axes = sorted(axes)
    if len(axes) == rank:  # no axis is left but that of the one element
        axes = axes[1:]
    if not axes:
        return node
    whole = _without(node, "unsqueeze", axes)
    if whole is not None:
        return whole
    if len(axes) == 1:
        return method(node, "squeeze_dim", Literal(str(axes[0])), generics=str(rank - 1))
    return method(node, "squeeze_dims", Borrow(axes_node(axes)), generics=str(rank - len(axes)))


@primitive("transpose")
def transpose(body: RustBody, x: TypedValue, *, outs: Outs, permutation: Sequence[int]) -> TypedValue:
    shape = tuple(outs[0].shape)
    order = tuple(int(axis) for axis in permutation)
    if x.known is not None:
        known = x.known.transpose(order) if isinstance(x.known, np.ndarray) and x.known.ndim == len(order) else x.known
        return TypedValue(shape, x.dtype, known=known)
    assert x.node is not None
    return TypedValue(shape, x.dtype, permuted(x.node, order), tuple(x.sizes[axis] for axis in order))


def permuted(node: RustExpression, order: Sequence[int]) -> RustExpression:
    """Return a tensor with its axes in another order."""
    rank = len(order)
    moved = [axis for axis, place in enumerate(order) if axis != place]
    if not moved:
        return node
    if moved == [rank - 2, rank - 1]:
        return method(node, "transpose")
    if len(moved) == 2:
        return method(node, "swap_dims", *(Literal(str(axis)) for axis in moved))
    return method(node, "permute", axes_node(order))


@primitive("concatenate")
def concatenate(body: RustBody, *parts: TypedValue, outs: Outs, dimension: int) -> TypedValue:
    whole = [part for part in parts if is_dim(part.shape[dimension]) or part.shape[dimension] != 0] or [parts[0]]
    if len(whole) == 1:
        return tensor(body.tensor(whole[0]), outs[0].shape, outs[0].dtype)
    nodes = [body.tensor(part) for part in whole]
    return tensor(path_call("Tensor::cat", Vector(nodes), Literal(str(dimension))), outs[0].shape, outs[0].dtype)


@primitive("stack")
def stack(body: RustBody, *parts: TypedValue, outs: Outs, axis: int) -> TypedValue:
    rank = len(outs[0].shape)
    nodes = [body.tensor(part) for part in parts]
    axis = axis % rank
    if len(nodes) == 1:
        return tensor(added_axes(nodes[0], [axis], rank) if rank > 1 else nodes[0], outs[0].shape, outs[0].dtype)
    if rank == 1:  # of numbers, each of which is a tensor of one element
        return tensor(path_call("Tensor::cat", Vector(nodes), Literal("0")), outs[0].shape, outs[0].dtype)
    node = path_call(f"Tensor::stack::<{rank}>", Vector(nodes), Literal(str(axis)))
    return tensor(node, outs[0].shape, outs[0].dtype)


@primitive("tile")
def tile(body: RustBody, x: TypedValue, *dims: TypedValue, outs: Outs, reps: Shape) -> TypedValue:
    shape = tuple(outs[0].shape)
    if x.known is not None and x.number is not None:
        return TypedValue(shape, x.dtype, known=x.number)
    added = len(shape) - len(x.shape)
    node = body.tensor(x)
    node = added_axes(node, [*range(added)], len(shape)) if added and x.shape else node
    times = Borrow(Array([body.number(n) for n in ([1] * (len(shape) - len(reps)) + [*reps])]))
    return tensor(method(node, "repeat", times), shape, x.dtype)


@primitive("split")
def split(body: RustBody, x: TypedValue, *, outs: Outs, sizes: Sequence[int], axis: int) -> list[TypedValue]:
    x = body.bound(x)
    parts, start = [], 0
    for out, size in zip(outs, sizes, strict=True):
        parts.append(
            part_of(
                body,
                x,
                [(0, n, 1) if at != axis else (start, start + size, 1) for at, n in enumerate(x.shape)],
                out.shape,
            )
        )
        start = start + size
    return parts


@primitive("slice")
def slice_(
    body: RustBody,
    x: TypedValue,
    *,
    outs: Outs,
    start_indices: Sequence[Dim],
    limit_indices: Sequence[Dim],
    strides: Sequence[int] | None,
) -> TypedValue:
    cuts = list(zip(start_indices, limit_indices, strides or [1] * len(x.shape), strict=True))
    return part_of(body, x, cuts, outs[0].shape)


def part_of(body: RustBody, x: TypedValue, cuts: Sequence[tuple[Dim, Dim, int]], shape: Sequence[Dim]) -> TypedValue:
    """Return a part of a value: along each axis from a start to an end, in steps."""
    shape = tuple(shape)
    if x.known is not None:
        if not isinstance(x.known, np.ndarray):
            return TypedValue(shape, x.dtype, known=x.known)
        return TypedValue(shape, x.dtype, known=x.known[tuple(slice(int(a), int(b), int(c)) for a, b, c in cuts)])
    assert x.node is not None
    parts: list[RustRange] = []
    for (start, end, step), size, own in zip(cuts, x.shape, x.sizes, strict=True):
        whole = same([start, end], [0, size]) and step == 1
        if whole or (not same([own], [size])):
            parts.append(RustRange(None, None, 1))
            continue
        first = None if not is_dim(start) and start == 0 else body.number(start)
        parts.append(RustRange(first, None if same([end], [size]) else body.number(end), int(step)))
    sizes = tuple(
        own if not same([own], [size]) else out for own, size, out in zip(x.sizes, x.shape, shape, strict=True)
    )
    cut_axes = [at for at, part in enumerate(parts) if part.start is not None or part.end is not None or part.step != 1]
    if not cut_axes:
        return TypedValue(shape, x.dtype, x.node, sizes)
    cut = parts[cut_axes[0]]
    if len(cut_axes) == 1 and cut.step == 1 and len(parts) > 1 and cut_axes[0] > 0:
        return TypedValue(shape, x.dtype, method(x.node, "slice_dim", Literal(str(cut_axes[0])), cut), sizes)
    return TypedValue(shape, x.dtype, method(x.node, "slice", Slices([*parts[: cut_axes[-1] + 1]])), sizes)


@primitive("rev")
def rev(body: RustBody, x: TypedValue, *, outs: Outs, dimensions: Sequence[int]) -> TypedValue:
    if x.known is not None and x.number is not None:
        return x
    return tensor(method(body.tensor(x), "flip", axes_node(dimensions)), outs[0].shape, x.dtype)


@primitive("iota")
def iota(body: RustBody, *dims: TypedValue, outs: Outs, dtype: DTypeLike, shape: Shape, dimension: int) -> TypedValue:
    return counted(body, outs[0].shape, dimension, np.dtype(dtype))


def counted(body: RustBody, shape: Sequence[Dim], dimension: int, dtype: np.dtype) -> TypedValue:
    """Return 0, 1, 2, … along an axis."""
    size = shape[dimension]
    end = body.signed(size)
    integer = dtype if kind_of(dtype) == "Int" else np.dtype("int32")
    options = Tuple([body.device(), Literal(f"DType::{dtype_name(integer)}")])
    node: RustExpression = path_call("Tensor::arange", RustRange(Literal("0"), end, 1), options)
    rank = len(shape)
    added = [axis for axis in range(rank) if axis != dimension]
    vector = converted(body, tensor(node, (size,), integer), dtype)
    assert vector.node is not None
    node = added_axes(vector.node, added, rank) if added else vector.node
    return TypedValue(tuple(shape), dtype, node, tuple(size if axis == dimension else 1 for axis in range(rank)))


@primitive("pad")
def pad(
    body: RustBody, x: TypedValue, value: TypedValue, *, outs: Outs, padding_config: Sequence[tuple[Dim, Dim, int]]
) -> TypedValue:
    """Pads, cuts where they are negative, and spreads elements apart."""
    shape, number = tuple(outs[0].shape), value.number
    if x.known is not None and x.number is not None and not is_dim(number) and x.number == number:
        return TypedValue(shape, x.dtype, known=number)
    whole = tensor(body.tensor(x), x.shape, x.dtype)
    rows = [Tuple([body.signed(low), body.signed(high), Literal(str(inside))]) for low, high, inside in padding_config]
    operands, sizes = (body.tensor(whole), Array([*rows])), [n for row in padding_config for n in row]
    if not any(is_dim(n) or n for n in sizes):
        return whole
    ends, spreads = [(low, high) for low, high, _ in padding_config], any(inside for _, _, inside in padding_config)
    if not spreads and not any(is_dim(n) or n > 0 for n in sizes):
        cuts = [(-low, size + high, 1) for (low, high), size in zip(ends, x.shape, strict=True)]
        return part_of(body, whole, cuts, shape)
    if number is None or is_dim(number) or (x.dtype == np.uint64 and number >= 2**63):  # Burn fills with signed numbers
        return tensor(body.helper("pad_computed", *operands, body.tensor(value)), shape, x.dtype)
    is_plain = x.kind != "Bool" and not spreads and all(is_dim(n) or n >= 0 for n in sizes)
    if is_plain and _is_single(number, x.dtype):
        edge = body.literal(float(number) if x.kind == "Int" else number, np.dtype("float32"))
        pairs = Array([Tuple([body.size(low), body.size(high)]) for low, high in ends])
        return tensor(method(operands[0], "pad", pairs, path_call("PadMode::Constant", edge)), shape, x.dtype)
    return tensor(body.helper("lax_pad", *operands, body.literal(number, x.dtype)), shape, x.dtype)


def _is_single(number: object, dtype: np.dtype) -> bool:
    """Whether a number of a type is one of float32, which Burn's mode has."""
    value = np.asarray(number).astype(dtype)
    with np.errstate(over="ignore"):
        return bool(value != value) or bool(
            value.astype(np.float32).astype(np.longdouble) == value.astype(np.longdouble)
        )
