"""Operators that are a layer: a weight, and the computation with it.

A layer stands for exactly the steps that compute its result, whatever operators of the file they came from. A
recogniser starts at one step and walks backwards; it declines if any step differs from its pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxport.codegen.rewriting.producers import as_tuple, number
from jaxport.codegen.structure.recognition.convolutions import convolution, rounded_convolution, stored_convolution
from jaxport.codegen.structure.recognition.grouped import grouped_linear
from jaxport.codegen.structure.recognition.matching import LayerWeights, Matcher, are_of_type
from jaxport.codegen.structure.recognition.narrow import NARROW, rounded_linear, rounded_normalization
from jaxport.codegen.structure.recognition.quantization import (
    dynamic_linear,
    quantized_linear,
    stored_embedding,
    stored_linear,
)
from jaxport.codegen.structure.recognition.recurrent import recurrent
from jaxport.codegen.structure.recognition.stored import dequantized
from jaxport.codegen.structure.recognition.training import dropout, is_of_batch
from jaxport.codegen.structure.spelling.group_norm_rules import CENTERED, FIRST
from jaxport.codegen.tree import Layer, Leaf, Op, Weight, present
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Variable

ROOT_MEAN_SQUARE = "x * lax.rsqrt(jnp.mean(x * x, axis=axes, keepdims=True) + epsilon)"
"""The division by the root mean square."""

FLOATS = ("float16", "bfloat16", "float32", "float64")


class Standardized(NamedTuple):
    """A division by the root mean square over the last axis: the operand, the epsilon, and if the mean is
    subtracted.
    """

    x: Variable
    epsilon: float
    centered: bool


def linear(op: Op, matcher: Matcher) -> Layer | None:
    """Return the dense layer that a product with a weight is."""
    product = matcher.product(op)
    if product is None or not product.x.shape or product.x in matcher.weights.names:
        return None
    kernel = matcher.parameter(product.kernel) or dequantized(product.kernel, product.op.step.node, matcher.made)
    if kernel is None or len(kernel.shape) != 2 or not are_of_type(product.x, kernel, product.bias):
        return None
    return product.layer("Linear", {"in_features": kernel.shape[0], "out_features": kernel.shape[1]}, kernel=kernel)


def embedding(op: Op, matcher: Matcher) -> Layer | None:
    """`take(table, indices, axis=0)`."""
    bound = matcher.bound("jnp.take(table, indices, axis=0)", op.step)
    if bound is None:
        return None
    table, indices = bound["table"], bound["indices"]
    is_parameter = matcher.is_parameter(table)
    weight = matcher.weights.weight(table) if is_parameter else dequantized(table, op.step.node, matcher.made)
    if weight is None or len(weight.shape) != 2 or weight.shape[0] < 2:
        return None
    if is_parameter and matcher.weights.shared.get(table, op) is not op:
        return None
    if not isinstance(indices, Variable) or np.dtype(indices.dtype).kind not in "iu":
        return None
    config = {"num_embeddings": weight.shape[0], "features": weight.shape[1]}
    return Layer("Embed", config, {"embedding": weight}, (indices,), op.outputs, "embed")


def normalization(op: Op, matcher: Matcher) -> Layer | None:
    """`(x - mean(x)) * rsqrt(mean((x - mean(x))²) + epsilon) * scale + bias`, the same without the mean, and without
    weights.

    Of float16 or bfloat16, the statistics are in single precision, and so is the division.
    """
    out = op.outputs[0]
    is_narrow = out.dtype in NARROW
    if not (is_narrow or out.dtype == np.float32) or not out.shape:
        return None
    if is_narrow and op.step.name == "astype":
        inside = matcher.made.get(op.step.args[0]) if isinstance(op.step.args[0], Variable) else None
        is_own = inside is not None and len(inside.outputs) == 1 and matcher.uses[inside.outputs[0]] == 1
        return rounded_normalization(op, normalization(inside, matcher) if inside and is_own else None, matcher)
    if op.step.name == FIRST and not is_narrow:
        x, groups, epsilon, *affine = op.step.args
        scale, bias = (matcher.vector(value, x.shape[1]) for value in affine)
        return _of_groups(x, groups, epsilon, scale, bias, out)
    size = out.shape[-1]
    scaled, bias = matcher.with_bias(op, size) if isinstance(size, int) else (op, None)
    if scaled.step.name != "*" or not isinstance(size, int):
        return None
    for factor, normal in (scaled.step.args, scaled.step.args[::-1]):
        scale = matcher.vector(factor, size)
        grouped = matcher.step(normal, "helper.group_norm") if bias is not None and not is_narrow else None
        if grouped is not None and scale is not None:
            x, groups, epsilon = grouped.step.args
            return _of_groups(x, groups, epsilon, scale, bias, out)
        narrowed = matcher.step(normal, "astype") if is_narrow else None
        standardized = _standardized(normal if narrowed is None else narrowed.step.args[0], matcher)
        if scale is None or standardized is None or (narrowed is not None) != is_narrow:
            continue
        x, epsilon, centered = standardized
        config = {"num_features": size, "epsilon": epsilon}
        if is_narrow:
            widened = matcher.step(x, "astype")
            if widened is None or x.dtype != np.float32:
                continue
            x, config["in_single"] = widened.step.args[0], True
        if not isinstance(x, Variable) or (x.shape, x.dtype) != (out.shape, out.dtype):
            return None
        if (is_narrow and not are_of_type(x, scale, bias)) or (bias is not None and not centered):
            return None
        kind, weights = "LayerNorm" if centered else "RMSNorm", present(scale=scale, bias=bias)
        layer = Layer(kind, config, {} if _are_none(scale, bias) else weights, (x,), (out,), "norm")
        return layer if matcher.weights.accepts(layer) else replace(layer, weights=weights)
    plain = _standardized(out, matcher) if not is_narrow and size > 1 else None
    if plain is None or (plain.x.shape, plain.x.dtype) != (out.shape, out.dtype):
        return None
    config = {"num_features": size, "epsilon": plain.epsilon}
    return Layer("LayerNorm" if plain.centered else "RMSNorm", config, {}, (plain.x,), (out,), "norm")


def _are_none(scale: Weight, bias: Weight | None) -> bool:
    """Whether constants in the place of weights are ones and zeros: PyTorch writes them for a layer that has none."""
    numbers = [(scale, 1), (bias, 0)] if bias is not None else [(scale, 1)]
    return all(not weight.name and not weight.trained and bool((weight.read() == n).all()) for weight, n in numbers)


def _of_groups(
    x: Variable, groups: int, epsilon: float, scale: Weight | None, bias: Weight | None, out: Variable
) -> Layer | None:
    if scale is None or bias is None:
        return None
    config = {"num_features": scale.shape[0], "num_groups": groups, "epsilon": epsilon}
    return Layer("GroupNorm", config, present(scale=scale, bias=bias), (x,), (out,), "norm")


def _standardized(value: object, matcher: Matcher) -> Standardized | None:
    """Return the division by the root mean square over the last axis that a value is, as operators define it."""
    for text in (CENTERED, ROOT_MEAN_SQUARE):
        bound = matcher.bound(text, value)
        x, epsilon = (bound["x"], number(bound["epsilon"])) if bound is not None else (None, None)
        if bound is None or epsilon is None or not isinstance(x, Variable):
            continue
        if as_tuple(bound["axes"]) in ((-1,), (len(x.shape) - 1,)):
            return Standardized(x, epsilon, text == CENTERED)
    return None


def batch_normalization(op: Op, matcher: Matcher) -> Layer | None:
    """Batch normalization: the whole of an operator, whose last step this is; by its statistics, or those of the
    batch.
    """
    node = matcher.weights.nodes.get(op.step.node)
    if op.operator != "BatchNormalization" or node is None or matcher.last[op.step.node] is not op:
        return None
    if node.attributes.get("spatial", 1) != 1:
        return None
    epsilon, momentum = node.attributes.get("epsilon", 1e-5), node.attributes.get("momentum", 0.9)
    if not isinstance(epsilon, int | float) or not isinstance(momentum, int | float):
        return None  # what calls its function gives them
    training = bool(node.attributes.get("training_mode")) or len(node.outputs) > 1
    initializers = [matcher.weights.initializer(node, index) for index in range(1, 5)]
    scale, bias, mean, var = initializers
    first = _difference(op, matcher)
    if scale is None or bias is None or mean is None or var is None or first is None or op.step.name != "+":
        return None
    x, average = first.step.args
    sizes = {weight.shape for weight in (scale, bias, mean, var)}
    if not isinstance(x, Variable) or len(sizes) != 1 or not isinstance(average, Variable | HostValue):
        return None
    if x.shape != op.outputs[0].shape or not all(w.dtype == x.dtype == np.float32 for w in (scale, bias, mean, var)):
        return None
    if not {scale.name, bias.name}.isdisjoint(matcher.weights.names[variable] for variable in matcher.weights.shared):
        return None
    axis = len(x.shape) - 1 if len(average.shape) == 1 else 1
    is_known = isinstance(average, HostValue) or matcher.is_state(average, mean)
    if x.shape[axis] != scale.shape[0] or not (
        is_of_batch(average, "jnp.mean", x, axis, matcher) if training else is_known
    ):
        return None
    config = {
        "num_features": scale.shape[0],
        "epsilon": float(np.float32(epsilon)),
        "momentum": float(np.float32(momentum)),
        "axis": -1 if axis == len(x.shape) - 1 else axis,
        "training": training,
    }
    weights = {"scale": scale, "bias": bias, "mean": mean, "var": var}
    return Layer("BatchNorm", config, weights, (x,), op.outputs, "norm")


def _difference(op: Op, matcher: Matcher) -> Op | None:
    """Return the first step of a batch normalization: `x - mean`."""
    product = matcher.made.get(op.step.args[0]) if op.step.args and isinstance(op.step.args[0], Variable) else None
    if product is None or product.step.node is not op.step.node or product.step.name != "*":
        return None
    first = matcher.step(product.step.args[0], "-")
    return first if first is not None and first.step.node is op.step.node else None


Recogniser = Callable[[Op, Matcher], Layer | None]
"""Returns the layer whose last operator this is, or None; the matcher answers questions about the operators before it.
"""

RECOGNISERS: list[Recogniser] = [
    stored_linear,
    linear,
    rounded_linear,
    quantized_linear,
    dynamic_linear,
    stored_convolution,
    convolution,
    rounded_convolution,
    grouped_linear,
    stored_embedding,
    embedding,
    normalization,
    batch_normalization,
    dropout,
]
"""The recognisers of layers of one result, in the order in which they are tried."""


def recognised(ops: Sequence[Op], result: Sequence[Variable], weights: LayerWeights) -> list[Leaf]:
    """Return the operators with layers in place of those that are one, without those that only a layer read."""
    matcher = Matcher(ops, result, weights)
    needed = set(result)
    leaves: list[Leaf] = []
    for op in reversed(ops):
        if needed.isdisjoint(op.outputs):
            continue
        leaf: Leaf = _layer(op, matcher) or op
        needed |= set(leaf.inputs)
        leaves.append(leaf)
    return leaves[::-1]


def _layer(op: Op, matcher: Matcher) -> Layer | None:
    if op.outputs[0].dtype.name not in FLOATS:
        return None
    if op.step.name == "lax.scan":
        recognisers: list[Recogniser] = [recurrent]
    elif len(op.outputs) == 1:
        recognisers = RECOGNISERS
    else:
        return None
    layers = (recognise(op, matcher) for recognise in recognisers)
    return next((layer for layer in layers if layer is not None and matcher.weights.accepts(layer)), None)
