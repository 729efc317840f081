"""Recorded calls that have a short form of their own in Burn; all others are printed by their primitives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.core import max_dim, min_dim

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.casting import converted
from jaxport.codegen.burn.rules.elementwise import joined, wrapped
from jaxport.codegen.burn.rules.indexing import INDEX, fill_of, is_extreme, moved_inside
from jaxport.codegen.burn.rules.reductions import of_kind, on_numbers, reduced
from jaxport.codegen.burn.rules.registry import call
from jaxport.codegen.burn.rules.shapes import added_axes, axes_node, part_of, stack as stacked
from jaxport.codegen.burn.values import NotPrintable, TypedValue, dtype_name, same, tensor
from jaxport.codegen.rust.tree import Array, Literal, Method, RustExpression, method, path_call
from jaxport.importer.values.host import Dim, is_dim
from jaxport.importer.values.recording import Step
from jaxport.jaxprs import PythonFunction
from jaxport.jaxprs.dims import known


def _like(x: TypedValue, node: RustExpression) -> TypedValue:
    return TypedValue(x.shape, x.dtype, node, x.sizes)


ACTIVATIONS = {
    "nn.relu": "relu", "nn.sigmoid": "sigmoid", "nn.silu": "silu", "nn.swish": "silu", "nn.soft_sign": "softsign",
}  # fmt: skip
"""Functions of one array that Burn has, too, with the same values."""


def _activation(name: str) -> PythonFunction:
    def rule(body: RustBody, step: Step, x: TypedValue) -> TypedValue | None:
        return _like(x, path_call(f"activation::{name}", x.node)) if x.node is not None and x.kind == "Float" else None

    return rule


for _call, _name in ACTIVATIONS.items():
    call(_call)(_activation(_name))


@call("nn.gelu")
def gelu(body: RustBody, step: Step, x: TypedValue, approximate: bool = True) -> TypedValue | None:
    if x.node is None:
        return None
    return _like(x, path_call("activation::gelu_approximate" if approximate else "activation::gelu", x.node))


@call("nn.softmax", "nn.log_softmax")
def softmax(body: RustBody, step: Step, x: TypedValue, axis: object = -1) -> TypedValue | None:
    if not isinstance(axis, int) or x.node is None or not x.shape:
        return None
    name = step.name.removeprefix("nn.")
    return _like(x, path_call(f"activation::{name}", x.node, Literal(str(axis % len(x.shape)))))


@call("@", "jnp.matmul")
def matmul(body: RustBody, step: Step, a: TypedValue, b: TypedValue) -> TypedValue | None:
    if min(len(a.shape), len(b.shape)) < 2 or a.kind != "Float" or a.dtype != b.dtype:
        return None
    rank = max(len(a.shape), len(b.shape))
    if len(b.shape) == 2 <= len(a.shape) and _is_transposed_table(b.node):
        assert isinstance(b.node, Method)
        node = body.helper("linear_transposed", body.tensor(a), b.node.receiver)
        return tensor(node, step.outputs.shape, a.dtype)
    if len(b.shape) == 2 < rank:  # one product of all rows
        node = path_call("module::linear", body.tensor(a), body.tensor(b), Literal("None"))
        return tensor(node, step.outputs.shape, a.dtype)
    left, right = (_raised(body.tensor(x), len(x.shape), rank) for x in (a, b))
    return tensor(method(left, "matmul", right), step.outputs.shape, a.dtype)


def _is_transposed_table(node: RustExpression | None) -> bool:
    """Whether an expression is the transpose of a parameter, as where the table of an embedding is also the head."""
    turned = node.receiver if isinstance(node, Method) and node.name == "transpose" else None
    return isinstance(turned, Method) and turned.name == "val"


def _raised(node: RustExpression, rank: int, wanted: int) -> RustExpression:
    return node if rank == wanted else added_axes(node, [*range(wanted - rank)], wanted)


@call("%", "jnp.mod", "jnp.remainder")
def remainder(body: RustBody, step: Step, x: TypedValue, divisor: Any) -> TypedValue | None:
    """Of integers: Burn's remainder has the sign of the divisor, as JAX's."""
    out = step.outputs
    if not isinstance(x, TypedValue) or x.kind != "Int" or x.node is None or x.dtype != out.dtype:
        return None
    count = divisor.number if isinstance(divisor, TypedValue) else divisor
    if count is None and divisor.dtype == x.dtype and len(divisor.shape) == len(x.shape):
        return joined(body, [out], lambda left, right: body.helper("remainder_int", left, right), x, divisor)
    if count is None or not known(lambda: count >= 1) or not same(x.shape, out.shape):
        return None
    return _like(x, method(x.node, "remainder_scalar", body.literal(count, x.dtype)))


@call("jnp.mean")
def mean(body: RustBody, step: Step, x: TypedValue, axis: Any = None, keepdims: bool = False) -> TypedValue | None:
    if x.kind != "Float" or x.node is None or not x.shape:
        return None
    axes = range(len(x.shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    if not all(isinstance(one, int) for one in axes):
        return None
    return reduced(body, x, [*axes], "mean", step.outputs.shape, keeps=keepdims)


@call("lax.top_k")
def top_k(body: RustBody, step: Step, x: TypedValue, k: object, axis: int = -1) -> list[TypedValue] | None:
    """Where one expression is wanted, the call of the helper is that of both results."""
    values, indices = step.outputs
    last = len(x.shape) - 1
    if not body.is_inline or x.node is None or x.kind == "Bool" or axis % (last + 1) != last or indices.dtype != INDEX:
        return None
    body.whole = body.helper(of_kind("top_k", x), body.tensor(x), body.size(values.shape[last]))
    return [tensor(body.whole, out.shape, out.dtype) for out in (values, indices)]


@call("jnp.stack")
def stack(body: RustBody, step: Step, arrays: Sequence[TypedValue], axis: int = 0) -> TypedValue | None:
    if not isinstance(arrays, list | tuple) or any(not array.shape for array in arrays):
        return None
    return stacked(body, *arrays, outs=[step.outputs], axis=axis)


@call("jnp.clip")
def clip(body: RustBody, step: Step, x: TypedValue, low: Any = None, high: Any = None) -> TypedValue | None:
    bounds = [bound.number if isinstance(bound, TypedValue) else bound for bound in (low, high)]
    if (
        any(bound is None or is_dim(bound) or math.isnan(bound) for bound in bounds)
        or x.node is None
        or bounds[0] > bounds[1]
    ):
        return None
    if any(isinstance(bound, TypedValue) and bound.dtype != x.dtype for bound in (low, high)):
        return None
    if np.dtype(step.outputs.dtype) != x.dtype:  # integers between floats are floats
        return None
    return _like(x, method(x.node, "clamp", *(body.literal(bound, x.dtype) for bound in bounds)))


@call("nn.dot_product_attention")
def dot_product_attention(
    body: RustBody, step: Step, query: TypedValue, key: TypedValue, value: TypedValue, bias: TypedValue | None = None,
    mask: TypedValue | None = None, *,
    scale: float | None = None, is_causal: bool = False,
) -> TypedValue | None:  # fmt: skip
    if (
        is_dim(query.shape[-1])
        or len(query.shape) != 4
        or any(x is not None and len(x.shape) != 4 for x in (bias, mask))
    ):
        return None
    operands = [body.tensor(x) for x in (query, key, value)]
    seen = None if mask is None else body.compact(mask)
    if is_causal:
        causal = body.helper("causal_mask", body.size(query.shape[1]), body.size(key.shape[1]), body.device())
        seen = causal if seen is None else method(seen, "bool_and", causal)
    if bias is None and scale is None:
        node = body.helper("dot_product_attention", *operands, _some(seen))
    else:
        factor = body.literal(query.shape[-1] ** -0.5 if scale is None else float(scale), np.dtype("float64"))
        added = None if bias is None else body.compact(bias)
        node = body.helper("biased_attention", *operands, _some(added), _some(seen), factor)
    return tensor(node, step.outputs.shape, query.dtype)


def _some(node: RustExpression | None) -> RustExpression:
    return Literal("None") if node is None else path_call("Some", node)


@call("jnp.take")
def take(
    body: RustBody, step: Step, x: TypedValue, indices: TypedValue, axis: int | None = None, mode: str | None = None
) -> TypedValue | None:
    """Indices that are computed: negative ones count from the end, and what is outside is NaN, as JAX has it."""
    if axis is None or indices.known is not None or not indices.shape or mode not in (None, "fill"):
        return None
    axis %= len(x.shape)
    ranks = f"{len(x.shape)}, {len(indices.shape)}, {len(step.outputs.shape)}, _"
    number = converted(body, x, np.dtype("uint8")) if x.kind == "Bool" else x
    operands = body.tensor(number), Literal(str(axis)), body.tensor(indices), body.literal(fill_of(x), number.dtype)
    made = tensor(body.helper("take_filled", *operands, generics=ranks), step.outputs.shape, number.dtype)
    return converted(body, made, x.dtype)


def _index(step: Step, node: RustExpression) -> RustExpression:
    """Return indices in the type that they were recorded in: Burn has them in the device's own."""
    return method(node, "cast", Literal(f"IntDType::{dtype_name(np.dtype(step.outputs.dtype))}"))


@call("jnp.argwhere")
def argwhere(body: RustBody, step: Step, x: TypedValue, size: Dim) -> TypedValue:
    """As many rows as there are elements that are not zero: NaN is one of these, too."""
    node = body.tensor(x)
    node = node if x.kind == "Bool" else method(node, "not_equal_elem", Literal("0"))
    return tensor(_index(step, method(node, "argwhere")), step.outputs.shape, step.outputs.dtype)


@call("helper.selected")
def selected(body: RustBody, step: Step, x: TypedValue, indices: TypedValue, axis: int) -> TypedValue:
    node = on_numbers(body, x, lambda node: method(node, "select", Literal(str(axis)), body.tensor(indices)))
    return tensor(node, step.outputs.shape, x.dtype)


@call("helper.distinct")
def distinct(
    body: RustBody, step: Step, x: TypedValue, axis: int, size: Dim
) -> list[TypedValue]:  # fmt: skip
    if not body.is_inline:
        raise NotPrintable("distinct elements in a loop", "compute them outside of it")
    number = converted(body, x, INDEX) if x.kind == "Bool" else x
    dtype = Literal(f"DType::{dtype_name(np.dtype(step.outputs[0].dtype))}")
    body.whole = body.helper(of_kind("distinct", number), body.tensor(number), Literal(str(axis)), dtype)
    return [tensor(body.whole, out.shape, out.dtype) for out in step.outputs]


@call("jnp.take_along_axis")
def take_along_axis(
    body: RustBody, step: Step, x: TypedValue, indices: TypedValue, axis: int = -1
) -> TypedValue | None:
    if x.kind == "Bool" or len(x.shape) != len(indices.shape) or indices.known is not None:
        return None
    operands = (
        body.tensor(x),
        body.tensor(indices),
        Literal(str(axis % len(x.shape))),
        body.literal(fill_of(x), x.dtype),
    )
    return tensor(body.helper("take_along_axis", *operands), step.outputs.shape, x.dtype)


@call("helper.gather_nd")
def gather_nd(body: RustBody, step: Step, x: TypedValue, indices: TypedValue, batch_dims: int) -> TypedValue | None:
    if x.known is not None or indices.known is not None or not indices.shape[-1] or _is_empty(x, indices):
        return None
    node = converted(body, x, np.dtype("uint8")) if x.kind == "Bool" else x
    ranks = f"{len(x.shape)}, {len(indices.shape)}, {max(1, len(step.outputs.shape))}, _"
    made = body.helper("gather_nd", body.tensor(node), body.tensor(indices), Literal(str(batch_dims)), generics=ranks)
    return converted(body, tensor(made, step.outputs.shape, node.dtype), x.dtype)


@call("index")
def index(body: RustBody, step: Step, x: TypedValue, places: object) -> TypedValue | None:
    """`x[i, j]`: arrays for the first axes; and `x[start:end]` from a size on, which JAX gathers."""
    parts = places if isinstance(places, tuple) else (places,)
    turned = _turned(parts)
    if turned and x.node is not None:
        return tensor(method(body.tensor(x), "flip", axes_node(turned)), step.outputs.shape, x.dtype)
    cuts = _cuts(x, parts)
    if cuts is not None:
        return part_of(body, x, cuts, step.outputs.shape)
    if not isinstance(places, tuple) or len(places) < 2 or not all(isinstance(one, TypedValue) for one in places):
        return None
    if not all(one.shape and one.kind == "Int" and same(one.shape, places[0].shape) for one in places):
        return None
    inside = [_inside(body, converted(body, one, INDEX), size) for one, size in zip(places, x.shape, strict=False)]
    indices = stacked(body, *inside, outs=[_places(places)], axis=-1)
    return gather_nd(body, step, x, indices, 0)


def _inside(body: RustBody, places: TypedValue, size: Dim) -> TypedValue:
    """Return places along an axis as JAX reads them: negative ones from its end, others moved inside."""
    counted = wrapped(body, places, size)
    if counted is places and any(same([dim], [size]) for dim in places.shape):
        return places  # the positions themselves
    return moved_inside(body, counted, size)


def _turned(places: Sequence[Any]) -> list[int]:
    """Return the axes of `x[:, ::-1]` that are turned around; none if something else is done to any."""
    if not all(isinstance(one, slice) and one.stop is None for one in places):
        return []
    ways = [(one.start, one.step) for one in places]
    turned = [axis for axis, way in enumerate(ways) if way in ((None, -1), (-1, -1))]
    return (
        turned if all(way in ((None, None), (None, 1)) for axis, way in enumerate(ways) if axis not in turned) else []
    )


def _cuts(x: TypedValue, places: Sequence[Any]) -> list[tuple[Dim, Dim, int]] | None:
    """Return the start, the end and the step along each axis of slices, if one begins at a size with a name or has a
    step; else None.
    """
    if x.node is None or not all(isinstance(place, slice) for place in places):
        return None
    if any(is_dim(place.step) or (place.step is not None and place.step < 1) for place in places):
        return None
    if not any(is_dim(place.start) or place.step not in (None, 1) for place in places):
        return None
    cuts: list[tuple[Dim, Dim, int]] = []
    for axis, size in enumerate(x.shape):
        place = places[axis] if axis < len(places) else slice(None)
        start = 0 if place.start is None else _bound(place.start, size)
        end = size if place.stop is None else _bound(place.stop, size)
        is_ordered = known(lambda start=start, end=end: end >= start)
        cuts.append((start, end if is_ordered else max_dim(end, start), place.step or 1))
    return cuts


def _bound(place: Dim, size: Dim) -> Dim:
    """Return where a slice begins or ends in an axis of a size."""
    if known(lambda: place < 0):
        place = place + size
        return place if known(lambda: place >= 0) else max_dim(place, 0)
    return place if known(lambda: place <= size) else min_dim(place, size)


def _places(places: Sequence[TypedValue]) -> TypedValue:
    return TypedValue((*places[0].shape, len(places)), INDEX)


@call("helper.scatter_nd")
def scatter_nd(
    body: RustBody, step: Step, x: TypedValue, indices: TypedValue, updates: TypedValue, update: str
) -> TypedValue | None:
    values = (x, indices, updates)
    if any(value.known is not None or not value.shape for value in values) or _is_empty(*values) or x.kind == "Bool":
        return None
    if x.dtype != updates.dtype:
        return None
    operation = {"set": "Assign", "add": "Add", "multiply": "Mul", "max": "Max", "min": "Min"}[update]
    operands = [*map(body.tensor, values), Literal(f"IndexingUpdateOp::{operation}")]
    called = "scatter_nd_extremes" if is_extreme(operation) and x.kind == "Float" else "scatter_nd"
    return tensor(body.helper(called, *operands), x.shape, x.dtype)


def _is_empty(*values: TypedValue) -> bool:
    return any(not is_dim(size) and size == 0 for value in values for size in value.shape)


@call("helper.rotary", "helper.rotary_interleaved")
def rotary(body: RustBody, step: Step, x: TypedValue, cos: TypedValue, sin: TypedValue) -> TypedValue | None:
    values = (x, cos, sin)
    if any(value.known is not None or len(value.shape) != len(x.shape) for value in values) or x.kind != "Float":
        return None
    called = "rotary_interleaved" if step.name == "helper.rotary_interleaved" else "rotary"
    return tensor(body.helper(called, *map(body.tensor, values)), step.outputs.shape, x.dtype)


@call("helper.resized")
def resized(
    body: RustBody, step: Step, x: TypedValue, axes: Sequence[int], sizes: Sequence[Dim],
    scales: Sequence[float | None] | None = None, *,
    mode: str, transform: str = "half_pixel", **others: object,
) -> TypedValue | None:  # fmt: skip
    """Images, by linear interpolation; Burn's scale is the quotient of the sizes."""
    corners = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}.get(transform)
    is_image = len(x.shape) == 4 and sorted(axis % 4 for axis in axes) == [2, 3] and x.kind == "Float"
    if mode != "linear" or corners is None or others or not is_image or x.node is None:
        return None
    for axis, size, scale in zip(axes, sizes, scales or [None] * 2, strict=True):
        above, below = (1, 1) if scale is None else float(scale).as_integer_ratio()
        if scale is not None and below * size != above * x.shape[axis]:
            return None
        if transform == "pytorch_half_pixel" and size == 1:
            return None
    images = converted(body, x, step.outputs.dtype)
    ordered = [body.number(size) for _, size in sorted(zip((axis % 4 for axis in axes), sizes, strict=True))]
    options = path_call("InterpolateOptions::new", Literal("InterpolateMode::Bilinear"))
    options = method(options, "with_output_size", Array(ordered))
    if not corners:
        options = method(options, "with_align_corners", Literal("false"))
    node = path_call("module::interpolate", body.tensor(images), options)
    return tensor(node, step.outputs.shape, step.outputs.dtype)


@call("nn.softplus")
def softplus(body: RustBody, step: Step, x: TypedValue) -> TypedValue | None:
    return _like(x, body.helper("softplus", x.node)) if x.node is not None and x.kind == "Float" else None
