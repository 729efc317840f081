"""Convolutions and their transposes, of any number of spatial axes, as layers.

lax.conv_general_dilated(x, w, (2, 2), "SAME") + b        →   Conv(strides=(2, 2), padding=…) of `w` and `b`
lax.conv_general_dilated(x, w, …, lhs_dilation=(2, 2))    →   ConvTranspose(strides=(2, 2))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jax import lax

from jaxport.codegen.structure.recognition.matching import Matcher, are_of_type
from jaxport.codegen.structure.recognition.narrow import narrow_operand, narrow_weight, rounded, with_narrow_bias
from jaxport.codegen.structure.recognition.quantization import stored_kernel
from jaxport.codegen.structure.recognition.stored import dequantized
from jaxport.codegen.structure.spelling.channels import LAYOUTS
from jaxport.codegen.tree import Layer, Op, Option, Weight, present
from jaxport.importer.values.recording import Step, Variable
from jaxport.jaxprs import Dim, Parameters
from jaxport.jaxprs.dims import static

CONVOLUTIONS = {"conv_general_dilated", "depthwise_convolution", "grouped_convolution"}


def stored_convolution(op: Op, matcher: Matcher) -> Layer | None:
    """Return the convolution that an operator is the end of if the file has its kernel in integers of 8 bits."""
    if not matcher.weights.channels_last or (layer := convolution(op, matcher)) is None or layer.kind != "Conv":
        return None
    product, _ = matcher.with_bias(op, layer.config["out_features"])
    kernel = stored_kernel(product.step.args[1], product.step.node, matcher.made)
    if kernel is None or kernel["scales"].dtype != layer.outputs[0].dtype:
        return None
    weights = kernel | {role: weight for role, weight in layer.weights.items() if role != "kernel"}
    return replace(layer, kind="QuantizedConv", weights=weights)


def convolution(op: Op, matcher: Matcher) -> Layer | None:
    """Return the convolution that an operator is the end of; with channels first, its kernel is kept as the file has
    it.
    """
    out = op.outputs[0]
    channels = (out.shape[-1] if matcher.weights.channels_last else out.shape[1]) if len(out.shape) >= 3 else None
    if not isinstance(channels, int):
        return None
    product, bias = matcher.with_bias(op, channels, not matcher.weights.channels_last)
    step = product.step
    if not _is_convolution(product) or product.outputs[0].shape != out.shape:
        return None
    if not isinstance(step.args[0], Variable):
        return None
    if "lhs_dilation" in step.kwargs:
        return None if isinstance(step.args[3], str) else _transposed(op, product, bias, matcher)
    (x, kernel), layout = step.args[:2], LAYOUTS.get(len(out.shape)) if matcher.weights.channels_last else None
    weight = matcher.parameter(kernel, turned=layout is not None)
    if weight is None and (weight := dequantized(kernel, step.node, matcher.made)) is not None and layout is not None:
        weight, layout = weight.transposed((*range(2, len(x.shape)), 1, 0)), _of_file(layout)
    if weight is None or len(weight.shape) != len(x.shape) or not are_of_type(x, weight, bias):
        return None
    return None if matcher.weights.channels_last and layout is None else _layer(op, step, x, (weight, bias), layout)


def rounded_convolution(op: Op, matcher: Matcher) -> Layer | None:
    """`round(convolution of widened x and kernel)`, or this sum, which is rounded too, with a bias."""
    out = op.outputs[0]
    inside = rounded(out, matcher) if matcher.weights.channels_last else None
    product, bias = (None, None) if inside is None else with_narrow_bias(inside, out, matcher)
    if product is None or not _is_convolution(product) or "lhs_dilation" in product.step.kwargs:
        return None
    x, weight = narrow_operand(product.step.args[0], out, matcher), narrow_weight(product.step.args[1], out, matcher)
    layout = LAYOUTS.get(len(out.shape))
    if x is None or weight is None or layout is None or product.outputs[0].shape != out.shape:
        return None
    if product.step.kwargs.get("dimension_numbers") != layout:  # a kernel that is cast is stored as in the file
        layout = _of_file(layout)
        weight = weight.transposed((*range(2, len(out.shape)), 1, 0))
    layer = _layer(op, product.step, x, (weight, bias), layout)
    return None if layer is None else replace(layer, config={**layer.config, "in_single": True})


def _of_file(layout: tuple[str, ...]) -> tuple[str, ...]:
    """Return a layout with kernels as files have them."""
    images, kernels, results = layout
    return images, f"OI{kernels[:-2]}", results


def _is_convolution(op: Op) -> bool:
    return op.step.name.rpartition(".")[2] in CONVOLUTIONS and len(op.step.args) == 4


def _layer(
    op: Op, step: Step, x: Variable, weights: tuple[Weight, Weight | None], layout: tuple[str, ...] | None
) -> Layer | None:
    """Return a convolution whose kernel is (*sizes, in, out), or with channels first, without a layout, (out, in,
    *sizes).
    """
    (weight, bias), (_, _, strides, pads) = weights, step.args
    if step.kwargs.get("dimension_numbers") != layout:
        return None
    if step.kwargs.keys() - {"dimension_numbers", "feature_group_count", "rhs_dilation"} or not _are_known(pads):
        return None
    groups, rank = step.kwargs.get("feature_group_count", 1), len(weight.shape) - 2
    outputs, inputs, *sizes = weight.shape if layout is None else (*weight.shape[:-3:-1], *weight.shape[:-2])
    config = {
        "in_features": inputs * groups,
        "out_features": outputs,
        "kernel_size": tuple(sizes),
        "strides": _sizes(strides, rank),
        "kernel_dilation": _sizes(step.kwargs.get("rhs_dilation"), rank),
        "feature_group_count": groups,
    }
    config |= _padding(pads, x.shape[2:] if layout is None else x.shape[1:-1], config)
    return Layer("Conv", config, present(kernel=weight, bias=bias), (x,), op.outputs, "conv")


def _padding(pads: Any, sizes: Sequence[Dim], config: Parameters) -> dict[str, Option]:
    """Return the padding at both ends of each axis, if it is known, and its name if it has one: "SAME" or "SAME_LOWER".

    That of steps depends on the sizes of the image.
    """
    if not isinstance(pads, str):
        return {"padding": tuple(tuple(int(n) for n in pair) for pair in pads)}
    kernel, strides = config["kernel_size"], config["strides"]
    whole = [(size - 1) * gap + 1 for size, gap in zip(kernel, config["kernel_dilation"], strict=True)]
    if all(stride == 1 for stride in strides):
        known: Sequence[Dim] = whole  # the same padding, whatever the size
    else:
        known = sizes
    if pads != "VALID" and not all(isinstance(size, int) for size in known):
        return {"padding": None, "named_padding": pads}
    pairs = lax.padtype_to_pads(static(known), whole, strides, pads) if pads != "VALID" else [(0, 0)] * len(whole)
    padding = tuple((int(low), int(high)) for low, high in pairs)
    named: dict[str, Option] = {"named_padding": pads} if pads != "VALID" else {}
    return {"padding": padding, **named}


def _transposed(op: Op, product: Op, bias: Weight | None, matcher: Matcher) -> Layer | None:
    """Return a transposed convolution: its kernel, which is turned before, is kept as (*sizes, out, in)."""
    step = product.step
    x, kernel, strides, pads = step.args
    rank = len(x.shape) - 2
    turned = matcher.step(kernel, "helper.transposed_kernel")
    weight = matcher.parameter(turned.step.args[0], turned=False) if turned is not None else None
    if weight is None or turned is None or turned.step.args[1:] != (1,) or not are_of_type(x, weight, bias):
        return None
    known = {"dimension_numbers", "feature_group_count", "lhs_dilation", "rhs_dilation"}
    if step.kwargs.keys() - known or step.kwargs.get("feature_group_count", 1) != 1 or set(strides) != {1}:
        return None
    images, _, _ = LAYOUTS.get(rank + 2, ("", "", ""))
    numbers = (images, f"OI{images[1:-1]}", images) if matcher.weights.channels_last else None
    if step.kwargs.get("dimension_numbers") != numbers:
        return None
    if not _are_known(pads):
        return None
    parameter: Variable = turned.step.args[0]
    config = {
        "in_features": weight.shape[0],
        "out_features": weight.shape[1],
        "kernel_size": weight.shape[2:],
        "strides": _sizes(step.kwargs["lhs_dilation"], rank),
        "padding": tuple(tuple(int(n) for n in pair) for pair in pads),
        "kernel_dilation": _sizes(step.kwargs.get("rhs_dilation"), rank),
    }
    if matcher.weights.channels_last:
        weight = matcher.weights.weight(parameter, (*range(2, rank + 2), 1, 0))
    return Layer("ConvTranspose", config, present(kernel=weight, bias=bias), (x,), op.outputs, "conv")


def _sizes(sizes: Any, rank: int) -> tuple[int, ...]:
    return (1,) * rank if sizes is None else tuple(int(size) for size in sizes)


def _are_known(pads: Any) -> bool:
    return isinstance(pads, str) or all(isinstance(n, int) for pair in pads for n in pair)
