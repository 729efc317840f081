"""Convolutions and windows that slide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from jaxport import jaxprs
from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.reductions import highest, lowest
from jaxport.codegen.burn.rules.registry import PRIMITIVES, Outs, ResultType, primitive
from jaxport.codegen.burn.rules.shapes import permuted
from jaxport.codegen.burn.values import NotPrintable, TypedValue, tensor
from jaxport.codegen.rust.tree import Array, Binary, Literal, RustExpression, Tuple, method, path_call
from jaxport.importer.values.host import Dim, is_dim
from jaxport.jaxprs.walk import equations_run


def numbers(values: Sequence[int]) -> RustExpression:
    return Array([Literal(str(int(value))) for value in values])


def pairs_node(body: RustBody, pads: Sequence[tuple[Dim, Dim]]) -> RustExpression:
    return Array([Tuple([body.number(low), body.number(high)]) for low, high in pads])


@primitive("conv_general_dilated")
def conv_general_dilated(
    body: RustBody, x: TypedValue, kernel: TypedValue, *dims: TypedValue, outs: Outs, window_strides: Sequence[int],
    padding: Sequence[tuple[Dim, Dim]],
    lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], dimension_numbers: jax.lax.ConvDimensionNumbers,
    feature_group_count: int = 1,
    batch_group_count: int = 1, preferred_element_type: DTypeLike | None = None, **_: object,
) -> TypedValue:  # fmt: skip
    if batch_group_count != 1:
        raise NotPrintable(
            "a convolution with groups of examples",
            "this is the gradient of a grouped convolution; train in Burn instead",
        )
    spec, out = dimension_numbers, outs[0]
    rank = len(x.shape) - 2
    if rank > 3 or rank < 1:
        raise NotPrintable(f"a convolution over {rank} axes", "Burn has convolutions over one, two and three axes")
    if x.kind != "Float":
        wanted = np.dtype(out.dtype)
        x, kernel = (
            PRIMITIVES["convert_element_type"](body, value, outs=[], new_dtype=np.dtype("float32"))
            for value in (x, kernel)
        )
    else:
        wanted = x.dtype
    images = permuted(body.tensor(x), spec.lhs_spec)
    weights = permuted(body.tensor(kernel), spec.rhs_spec)
    sizes = [x.shape[axis] for axis in spec.lhs_spec]
    pads = [*padding]
    is_uneven = rank == 3 and any(is_dim(low) or is_dim(high) or low != high for low, high in pads)
    is_cut = any(not is_dim(n) and n < 0 for pair in pads for n in pair)
    if is_uneven or is_cut or any(step != 1 for step in lhs_dilation):  # before, as `lax.pad` does
        zero = TypedValue((), x.dtype, known=x.dtype.type(0))
        images = body.tensor(padded_apart(body, tensor(images, sizes, x.dtype), zero, pads, lhs_dilation))
        pads = [(0, 0)] * rank
    options = path_call(
        "ConvOptions::new_with_padding",
        numbers(window_strides),
        pairs_node(body, pads),
        numbers(rhs_dilation),
        Literal(str(feature_group_count)),
    )
    node = path_call(f"module::conv{rank}d", images, weights, Literal("None"), options)
    order = [spec.out_spec.index(axis) for axis in range(len(out.shape))]
    made = tensor(permuted(node, order), out.shape, x.dtype)
    return PRIMITIVES["convert_element_type"](body, made, outs=[], new_dtype=wanted) if made.dtype != wanted else made


def _window(name: str, identity: Callable[[np.dtype], object]) -> Callable[..., TypedValue]:
    def rule(
        body: RustBody, x: TypedValue, *_: TypedValue, outs: Outs, window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[tuple[Dim, Dim]], base_dilation: Sequence[int] | None = None,
        window_dilation: Sequence[int] | None = None, **__: object,
    ) -> TypedValue:  # fmt: skip
        return sliding(
            body, x, outs[0], name, identity(x.dtype), window_dimensions, window_strides, padding, base_dilation,
            window_dilation
        )  # fmt: skip

    return rule


def _pool(
    x: TypedValue, name: str, identity: Any, window: Sequence[int], strides: Sequence[int],
    padding: Sequence[tuple[Dim, Dim]],
    base_dilation: Sequence[int] | None, window_dilation: Sequence[int] | None,
) -> Callable[[RustExpression], RustExpression] | None:  # fmt: skip
    """Return what makes the maximum, or the sum, of windows over two axes of images, in whatever order these are.

    Returns:
      None if Burn has no pool that does so.
    """
    rank, ends = len(x.shape), [n for pair in padding for n in pair]
    start = {"max": -np.inf, "sum": 0.0}.get(name)
    if start is None or x.kind != "Float" or rank != 4 or np.float64(identity) != start:
        return None
    if any(is_dim(n) or n < 0 for n in ends) or any(step != 1 for step in base_dilation or ()):
        return None
    moving = [at for at in range(rank) if window[at] != 1 or strides[at] != 1 or any(padding[at])]
    moving = sorted({*moving, *[at for at in (3, 2, 1) if at not in moving][: max(2 - len(moving), 0)]})
    if len(moving) != 2 or any(max(padding[at]) >= window[at] > 1 for at in moving):
        return None
    order = [*(at for at in range(rank) if at not in moving), *moving]
    sizes, pads = [window[at] for at in moving], [padding[at] for at in moving]
    dilation = [window_dilation[at] for at in moving] if window_dilation is not None else [1, 1]
    if name == "sum" and dilation != [1, 1]:
        return None
    options = path_call("MaxPoolOptions::new" if name == "max" else "AvgPoolOptions::new", numbers(sizes))
    options = method(options, "with_stride", numbers([strides[at] for at in moving]))
    if any(map(any, pads)):
        pairs = Array([Tuple([Literal(str(low)), Literal(str(high))]) for low, high in pads])
        options = method(options, "with_padding_pairs", pairs)
    if dilation != [1, 1]:
        options = method(options, "with_dilation", numbers(dilation))
    back = [order.index(at) for at in range(rank)]

    def pooled(node: RustExpression) -> RustExpression:
        if name == "max":
            return permuted(path_call("module::max_pool2d", permuted(node, order), options), back)
        mean = permuted(path_call("module::avg_pool2d", permuted(node, order), options), back)
        return Binary(mean, "*", Literal(f"{math.prod(sizes)}.0"), window=math.prod(sizes))

    return pooled


def sliding(
    body: RustBody, x: TypedValue, out: ResultType, name: str, identity: object, window: Sequence[int],
    strides: Sequence[int], padding: Sequence[tuple[Dim, Dim]],
    base_dilation: Sequence[int] | None = None, window_dilation: Sequence[int] | None = None,
) -> TypedValue:  # fmt: skip
    """Return the reduction of each window that slides over an array: as Burn's pool, or axis by axis."""
    pooled = _pool(x, name, identity, window, strides, padding, base_dilation, window_dilation)
    if pooled is not None:
        return tensor(pooled(body.tensor(x)), out.shape, x.dtype)
    rank = len(x.shape)
    ones = (1,) * rank
    edge = TypedValue((), x.dtype, known=x.dtype.type(identity))
    spread = padded_apart(body, x, edge, padding, base_dilation or ones)
    rows = zip(window, strides, window_dilation or ones, strict=True)
    sliding_ = Array([Tuple([Literal(str(number)) for number in row]) for row in rows])
    reduction = Literal(f"|windows| windows.{name}_dim({rank})")
    node = body.helper("reduce_windows", body.tensor(spread), sliding_, reduction, generics=f"{rank}, {rank + 1}, _")
    return tensor(node, out.shape, x.dtype)


def padded_apart(
    body: RustBody, x: TypedValue, edge: TypedValue, pads: Sequence[tuple[Dim, Dim]], dilation: Sequence[int]
) -> TypedValue:
    """Return an array whose last axes are padded, and their elements put apart, with a number."""
    last = [(low, high, step - 1) for (low, high), step in zip(pads, dilation, strict=True)]
    rows = [(0, 0, 0)] * (len(x.shape) - len(last)) + last
    shape = [
        (size if inside == 0 else size + (size - 1) * inside) + low + high
        for size, (low, high, inside) in zip(x.shape, rows, strict=True)
    ]
    return PRIMITIVES["pad"](body, x, edge, outs=[TypedValue(tuple(shape), x.dtype)], padding_config=rows)


primitive("reduce_window_sum")(_window("sum", lambda _: 0))
primitive("reduce_window_max")(_window("max", lowest))
primitive("reduce_window_min")(_window("min", highest))


@primitive("reduce_window")
def reduce_window(body: RustBody, *operands: TypedValue, outs: Outs, jaxpr: jaxprs.Jaxpr, **params: Any) -> TypedValue:
    equations = [*equations_run(jaxpr)]
    equation = equations[0] if len(equations) == 1 else None
    names = {"add": "sum", "max": "max", "min": "min", "mul": "prod"}
    if equation is None or equation.primitive.name not in names or len(operands) != 2:
        raise NotPrintable(
            "a window that is reduced by a function of its own", "reduce windows by sums, products or extremes"
        )
    name = names[equation.primitive.name]
    x, initial = operands
    if initial.number is None:
        raise NotPrintable("a window whose first value is computed", "begin with a constant")
    return sliding(
        body, x, outs[0], name, initial.number, params["window_dimensions"], params["window_strides"],
        params["padding"],
        params.get("base_dilation"), params.get("window_dilation"),
    )  # fmt: skip
