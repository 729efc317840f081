"""Reductions, running totals, sorting and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jax.typing import DTypeLike

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.casting import converted
from jaxport.codegen.burn.rules.registry import Outs, primitive
from jaxport.codegen.burn.rules.shapes import added_axes, axes_node, permuted, without_axes
from jaxport.codegen.burn.values import NotPrintable, TypedValue, dtype_name, same, tensor
from jaxport.codegen.rust.tree import Borrow, Identifier, Let, Literal, RustExpression, Tuple, method
from jaxport.importer.values.host import Dim, is_dim

Axes = Sequence[int]
DotDimensions = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
"""Of both operands, the axes whose products are summed, and those that are side by side."""


def reduced(
    body: RustBody, x: TypedValue, axes: Sequence[int], name: str, shape: Sequence[Dim], keeps: bool = False
) -> TypedValue:
    """Return the reduction `name` of axes, `sum` for example, as `sum_dim` and its relatives compute it."""
    axes = sorted(axis % max(len(x.shape), 1) for axis in axes)
    node = body.tensor(x)
    if not axes or not x.shape:
        return tensor(node, shape, x.dtype)
    rank = len(x.shape)
    if len(axes) == rank and not keeps and name in ("sum", "prod", "max", "min", "mean"):
        return tensor(method(node, name), shape, x.dtype)
    if len(axes) == 1:
        node = method(node, f"{name}_dim", Literal(str(axes[0])))
    else:
        node = method(node, f"{name}_dims", Borrow(axes_node(axes)))
    if not keeps:
        node = without_axes(body, node, axes, rank)
    return tensor(node, shape, x.dtype)


def lowest(dtype: np.dtype) -> np.generic:
    """Return the number that no other of a dtype is below."""
    return dtype.type(False if dtype == np.bool_ else np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf)


def highest(dtype: np.dtype) -> np.generic:
    """Return the number that no other of a dtype is above."""
    return dtype.type(True if dtype == np.bool_ else np.iinfo(dtype).max if dtype.kind in "iu" else np.inf)


_OF_NOTHING = {"max": lowest, "min": highest}
"""The extremes of no elements."""


def _reduction(name: str) -> Callable[..., TypedValue]:
    def rule(body: RustBody, x: TypedValue, *, outs: Outs, axes: Sequence[int], **_: object) -> TypedValue:
        if any(not is_dim(x.shape[axis]) and x.shape[axis] == 0 for axis in axes) and name in _OF_NOTHING:
            return TypedValue(tuple(outs[0].shape), x.dtype, known=_OF_NOTHING[name](x.dtype))
        if x.kind == "Bool":
            return _of_booleans("any" if name in ("sum", "max") else "all")(body, x, outs=outs, axes=axes)
        return reduced(body, x, axes, name, outs[0].shape)

    return rule


for _name in ("sum", "prod", "max", "min"):
    primitive(f"reduce_{_name}")(_reduction(_name))


def _of_booleans(name: str) -> Callable[..., TypedValue]:
    def rule(body: RustBody, x: TypedValue, *, outs: Outs, axes: Sequence[int], **_: object) -> TypedValue:
        if x.kind == "Int":
            raise NotPrintable("a bitwise reduction", "reduce booleans")
        node = body.tensor(x)
        if not axes:
            return tensor(node, outs[0].shape, x.dtype)
        if len(axes) == len(x.shape):
            return tensor(method(node, name), outs[0].shape, x.dtype)
        for axis in sorted(axes):
            node = method(node, f"{name}_dim", Literal(str(axis)))
        return tensor(without_axes(body, node, axes, len(x.shape)), outs[0].shape, x.dtype)

    return rule


primitive("reduce_or")(_of_booleans("any"))
primitive("reduce_and")(_of_booleans("all"))


def _position(name: str) -> Callable[..., TypedValue]:
    def rule(body: RustBody, x: TypedValue, *, outs: Outs, axes: Sequence[int], index_dtype: DTypeLike) -> TypedValue:
        (axis,) = axes
        if x.kind == "Bool":
            x = converted(body, x, np.dtype("int32"))
        node = without_axes(body, method(body.tensor(x), name, Literal(str(axis))), axes, len(x.shape))
        # Burn's choice of the type of positions depends on the kind of `x`.
        cast = method(node, "cast", Literal(f"IntDType::{dtype_name(np.dtype(index_dtype))}"))
        return tensor(cast, outs[0].shape, np.dtype(index_dtype))

    return rule


primitive("argmax")(_position("argmax"))
primitive("argmin")(_position("argmin"))


def _running(name: str) -> Callable[..., TypedValue]:
    def rule(body: RustBody, x: TypedValue, *, outs: Outs, axis: int, reverse: bool) -> TypedValue:
        node = body.tensor(x)
        if reverse:
            node = method(node, "flip", axes_node([axis]))
        if name == "cumlogsumexp":
            node = body.helper("cumlogsumexp", node, Literal(str(axis)))
        else:
            node = method(node, name, Literal(str(axis)))
        if reverse:
            node = method(node, "flip", axes_node([axis]))
        return tensor(node, outs[0].shape, x.dtype)

    return rule


for _name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    primitive(_name)(_running(_name))


@primitive("sort")
def sort(
    body: RustBody, *operands: TypedValue, outs: Outs, dimension: int, num_keys: int
) -> TypedValue | list[TypedValue]:
    """One key is sorted stably; what comes with it follows its order."""
    first, *others = operands
    axis = Literal(str(dimension))
    if not others:
        return tensor(method(body.tensor(first), "sort", axis), outs[0].shape, first.dtype)
    if num_keys != 1:
        raise NotPrintable("sorting by several keys", "sort by one key, stably, one after the other")
    first = converted(body, first, np.dtype("int32")) if first.kind == "Bool" else first
    key = body.bound(tensor(body.tensor(first), first.shape, first.dtype))
    order = body.let(
        body.helper(of_kind("argsort", key), body.tensor(key), axis, Literal("false")),
        "order",
        f"Tensor<{key.rank}, Int>",
    )
    sorted_ = []
    for operand, out in zip(operands, outs, strict=True):
        sorted_.append(tensor(gathered(body, operand, dimension, order), out.shape, operand.dtype))
    return sorted_


def of_kind(name: str, x: TypedValue) -> str:
    """Return the name of a helper for numbers or for integers."""
    return name if x.kind == "Float" else f"{name}_int"


def gathered(body: RustBody, x: TypedValue, axis: int, indices: RustExpression) -> RustExpression:
    """Return the elements at positions along an axis."""
    return on_numbers(body, x, lambda node: method(node, "gather", Literal(str(axis)), indices))


def on_numbers(body: RustBody, x: TypedValue, make: Callable[[RustExpression], RustExpression]) -> RustExpression:
    """Return what an operation that Burn has for numbers only makes of a tensor, which may be one of booleans."""
    if x.kind != "Bool":
        return make(body.tensor(x))
    return method(make(method(body.tensor(x), "cast", Literal("IntDType::U8"))), "not_equal_elem", Literal("0"))


@primitive("top_k")
def top_k(
    body: RustBody, x: TypedValue, *, outs: Outs, k: Dim | None = None, axis: int = -1, **_: object
) -> list[TypedValue]:
    axis, last = axis % len(x.shape), len(x.shape) - 1
    order = [*range(len(x.shape))]
    order[axis], order[last] = last, axis
    x = body.bound(x)
    size = body.size(outs[0].shape[axis])
    if body.is_inline:
        body.let(Literal(""))
    names = [body.fresh(wanted) for wanted in ("values", "indices")]
    pair = Tuple([Identifier(one) for one in names])
    called = body.helper(of_kind("top_k", x), permuted(body.tensor(x), order), size)
    body.statements.append(Let(pair, called))
    values, indices = (permuted(Identifier(one), order) for one in names)
    return [
        tensor(values, outs[0].shape, x.dtype),
        converted(body, tensor(indices, outs[1].shape, np.dtype("int32")), np.dtype(outs[1].dtype)),
    ]


@primitive("dot_general")
def dot_general(
    body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs, dimension_numbers: DotDimensions,
    preferred_element_type: DTypeLike | None = None,
) -> TypedValue:  # fmt: skip
    (a_axes, b_axes), (a_batch, b_batch) = dimension_numbers
    out = outs[0]
    wanted = np.dtype(preferred_element_type or out.dtype)
    if a.kind == "Int" and wanted.name not in ("int32", "int64"):  # the lower bits are those of any width
        wide = np.dtype("int32" if wanted.itemsize <= 4 else "int64")
        a, b = (converted(body, value, wide) for value in (a, b))
    elif a.dtype != wanted or b.dtype != wanted:
        a, b = converted(body, a, wanted), converted(body, b, wanted)
    a_free = [axis for axis in range(len(a.shape)) if axis not in (*a_axes, *a_batch)]
    b_free = [axis for axis in range(len(b.shape)) if axis not in (*b_axes, *b_batch)]
    left = arranged(body, a, [a_batch, a_free, a_axes])
    right = arranged(body, b, [b_batch, b_axes, b_free])
    node = method(left, "matmul", right)
    batch = [a.shape[axis] for axis in a_batch]
    product = [*batch, math.prod(a.shape[axis] for axis in a_free), math.prod(b.shape[axis] for axis in b_free)]
    shaped = body.shaped(node, product, out.shape)
    made = tensor(shaped, out.shape, a.dtype)
    return converted(body, made, np.dtype(out.dtype))


def arranged(body: RustBody, x: TypedValue, groups: Sequence[Sequence[int]]) -> RustExpression:
    """Return a tensor with its axes in groups: the first ones stay axes of their own, each of the others becomes
    one.
    """
    batch, *others = groups
    order = [axis for group in groups for axis in group]
    node = permuted(body.tensor(x), order) if x.shape else body.tensor(x)
    before = [x.shape[axis] for axis in order]
    after = [*(x.shape[axis] for axis in batch), *(math.prod(x.shape[axis] for axis in group) for group in others)]
    if same(before, after):
        return node
    added = [len(batch) + at for at, group in enumerate(others) if not group]
    if before and all(len(group) <= 1 for group in others) and len(added) == 1:
        return added_axes(node, added, len(after))
    return body.shaped(node, before, after)
