"""Operators that are a layer: a weight, and the computation with it.

A layer stands for exactly the steps that compute its result, whatever operators of the file they came from. A recogniser
starts at one step and walks backwards; it declines if any step differs from its pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jaxport.codegen.structure.recognition.convolutions import convolution
from jaxport.codegen.structure.recognition.grouped import grouped_linear
from jaxport.codegen.structure.recognition.matching import LayerWeights, Matcher, are_of_type
from jaxport.codegen.structure.recognition.quantization import dequantized, quantized_linear
from jaxport.codegen.structure.recognition.recurrent import recurrent
from jaxport.codegen.structure.recognition.training import dropout, is_of_batch
from jaxport.codegen.structure.spelling.groups import FIRST
from jaxport.codegen.structure.spelling.spellings import number
from jaxport.codegen.tree import Layer, Leaf, Op
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.recording import Variable

__all__ = ["LayerWeights", "recognised"]

FLOATS = ("float16", "bfloat16", "float32", "float64")
NARROW = (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16))
"""Types whose statistics are computed in single precision."""


class Standardized(NamedTuple):
    """A division by the root mean square over the last axis: the operand, the epsilon, and if the mean is subtracted."""

    x: Variable
    epsilon: float
    centered: bool


def linear(op: Op, matcher: Matcher) -> Layer | None:
    out = op.outputs[0]
    if not out.shape or not isinstance(out.shape[-1], int):
        return None
    product, bias = matcher.with_bias(op, out.shape[-1])
    if product.step.name not in ("jnp.matmul", "@") or product.step.kwargs:
        return None
    x, kernel = product.step.args
    weight = matcher.parameter(kernel) or dequantized(kernel, product.step.node)
    if weight is None or len(weight.shape) != 2 or not isinstance(x, Variable) or x in matcher.weights.names:
        return None
    if not are_of_type(x, weight, bias) or len(x.shape) < 1 or product.outputs[0].shape != out.shape:
        return None
    weights = {"kernel": weight} | ({"bias": bias} if bias is not None else {})
    config = {"in_features": weight.shape[0], "out_features": weight.shape[1]}
    return Layer("Linear", config, weights, (x,), (out,), "linear")


def embedding(op: Op, matcher: Matcher) -> Layer | None:
    """`take(table, indices)`; or the same of indices that are clipped, with NaN for those that were outside."""
    lookup, indices = op, None
    if op.step.name == "jnp.where" and len(op.step.args) == 3 and np.isnan(number(op.step.args[2]) or 0):
        take = matcher.step(op.step.args[1], "jnp.take")
        if take is None or matcher.uses[take.outputs[0]] != 1 or take.outputs[0].shape != op.outputs[0].shape:
            return None
        lookup, indices = take, _unclipped(op.step.args[0], take, matcher)
        if indices is None:
            return None
    if lookup.step.name != "jnp.take" or lookup.step.kwargs != {"axis": 0}:
        return None
    table = lookup.step.args[0]
    indices = lookup.step.args[1] if indices is None else indices
    if not matcher.is_parameter(table) or matcher.weights.shared.get(table, lookup) is not lookup:
        return None
    weight = matcher.weights.weight(table)
    if len(weight.shape) != 2 or weight.shape[0] < 2:
        return None
    if not isinstance(indices, Variable) or np.dtype(indices.dtype).kind not in "iu":
        return None
    config = {"num_embeddings": weight.shape[0], "features": weight.shape[1]}
    return Layer("Embed", config, {"embedding": weight}, (indices,), op.outputs, "embed")


def _unclipped(condition: RuntimeValue, lookup: Op, matcher: Matcher) -> Variable | None:
    """Return the indices that were clipped for a lookup, if a condition says which were not changed by that."""
    expanded = matcher.step(condition, "jnp.expand_dims")
    equal = matcher.step(expanded.step.args[0], "==", "jnp.equal") if expanded is not None else None
    clip = matcher.step(lookup.step.args[1], "jnp.clip")
    if expanded is None or equal is None or clip is None or len(clip.step.args) != 3:
        return None
    indices, low, high = clip.step.args
    rows, rank = lookup.step.args[0].shape[0], len(indices.shape) if isinstance(indices, Variable) else -1
    same = {id(part) for part in equal.step.args} == {id(indices), id(clip.outputs[0])}
    last = len(expanded.step.args) > 1 and list(np.atleast_1d(expanded.step.args[1])) in ([rank], [-1])
    return indices if same and last and (number(low), number(high)) == (-rows, rows - 1) else None


def normalization(op: Op, matcher: Matcher) -> Layer | None:
    """`(x - mean(x)) * rsqrt(mean((x - mean(x))²) + epsilon) * scale + bias`, and the same without the mean."""
    out = op.outputs[0]
    if out.dtype not in (np.float32, *NARROW) or not out.shape:
        return None
    if out.dtype in NARROW:
        return _in_single_precision(op, matcher)
    if op.step.name == FIRST:
        x, groups, epsilon, *affine = op.step.args
        channels = x.shape[1]
        scale, bias = (matcher.vector(value, channels) for value in affine)
        if scale is None or bias is None:
            return None
        config = {"num_features": channels, "num_groups": groups, "epsilon": epsilon}
        return Layer("GroupNorm", config, {"scale": scale, "bias": bias}, (x,), (out,), "norm")
    size = out.shape[-1]
    if not isinstance(size, int):
        return None
    scaled, bias = matcher.with_bias(op, size)
    if scaled.step.name != "*":
        return None
    for scale, normal in (scaled.step.args, scaled.step.args[::-1]):
        weight = matcher.vector(scale, size)
        grouped = matcher.step(normal, "helper.group_norm") if weight is not None and bias is not None else None
        if grouped is not None and weight is not None and bias is not None:
            x, groups, epsilon = grouped.step.args
            config = {"num_features": size, "num_groups": groups, "epsilon": epsilon}
            return Layer("GroupNorm", config, {"scale": weight, "bias": bias}, (x,), (out,), "norm")
        standardized = _standardized(normal, matcher) if weight is not None else None
        if standardized is None or weight is None:
            continue
        x, epsilon, centered = standardized
        if x.shape != out.shape or x.dtype != out.dtype or (bias is not None and not centered):
            return None
        weights = {"scale": weight} | ({"bias": bias} if bias is not None else {})
        kind = "LayerNorm" if centered else "RMSNorm"
        config = {"num_features": size, "epsilon": epsilon}
        return Layer(kind, config, weights, (x,), (out,), "norm")
    return None


def _in_single_precision(op: Op, matcher: Matcher) -> Layer | None:
    """Return a normalization of float16 or bfloat16 whose statistics are in single precision, and so is the division."""
    out = op.outputs[0]
    size = out.shape[-1]
    if not isinstance(size, int):
        return None
    scaled, bias = matcher.with_bias(op, size)
    factors = scaled.step.args if scaled.step.name == "*" else ()
    for scale, normal in (factors, factors[::-1]) if factors else ():
        weight, narrowed = matcher.vector(scale, size), matcher.step(normal, "astype")
        standardized = _standardized(narrowed.step.args[0], matcher) if narrowed is not None else None
        widened = matcher.step(standardized.x, "astype") if standardized is not None else None
        if weight is None or standardized is None or widened is None or standardized.x.dtype != np.float32:
            continue
        x = widened.step.args[0]
        if not isinstance(x, Variable) or (x.shape, x.dtype) != (out.shape, out.dtype):
            return None
        if not are_of_type(x, weight, bias) or (bias is not None and not standardized.centered):
            return None
        weights = {"scale": weight} | ({"bias": bias} if bias is not None else {})
        config = {"num_features": size, "epsilon": standardized.epsilon, "in_single": True}
        return Layer("LayerNorm" if standardized.centered else "RMSNorm", config, weights, (x,), (out,), "norm")
    return None


def _standardized(value: RuntimeValue, matcher: Matcher) -> Standardized | None:
    """Return the division by the root mean square over the last axis that a value is, as operators define it."""
    product = matcher.step(value, "*")
    numerator, factor = product.step.args if product is not None else (None, None)
    root = matcher.step(factor, "lax.rsqrt")
    shifted = matcher.step(root.step.args[0], "+") if root is not None else None
    mean, epsilon = shifted.step.args if shifted is not None else (None, None)
    constant, square = number(epsilon), matcher.step(_mean_of(mean, matcher), "*")
    if constant is None or square is None or not isinstance(numerator, Variable):
        return None
    if any(arg is not numerator for arg in square.step.args):
        return None
    difference = matcher.step(numerator, "-")
    x, average = difference.step.args if difference is not None else (None, None)
    if isinstance(x, Variable) and _mean_of(average, matcher) is x:
        return Standardized(x, constant, True)
    return Standardized(numerator, constant, False)


def _mean_of(value: RuntimeValue, matcher: Matcher) -> RuntimeValue:
    """Return the operand of a mean over the last axis that keeps it."""
    op = matcher.step(value, "jnp.mean")
    if op is None or len(op.step.args) != 1 or not isinstance(op.step.args[0], Variable):
        return None
    averaged: Variable = op.step.args[0]
    axis, rank = op.step.kwargs.get("axis"), len(averaged.shape)
    axes = (axis,) if isinstance(axis, int) else axis
    last = isinstance(axes, tuple) and len(axes) == 1 and axes[0] in (-1, rank - 1)
    return averaged if last and op.step.kwargs == {"axis": axis, "keepdims": True} else None


def batch_normalization(op: Op, matcher: Matcher) -> Layer | None:
    """Batch normalization: the whole of an operator, whose last step this is; by its statistics, or those of the batch."""
    node = matcher.weights.nodes.get(op.step.node)
    if op.operator != "BatchNormalization" or node is None or matcher.last[id(op.step.node)] is not op:
        return None
    if node.attributes.get("spatial", 1) != 1:
        return None
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
    if x.shape[axis] != scale.shape[0] or not (
        is_of_batch(average, "jnp.mean", x, axis, matcher) if training else isinstance(average, HostValue)
    ):
        return None
    config = {
        "num_features": scale.shape[0],
        "epsilon": float(np.float32(node.attributes.get("epsilon", 1e-5))),
        "momentum": float(np.float32(node.attributes.get("momentum", 0.9))),
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
"""Returns the layer whose last operator this is, or None; the matcher answers questions about the operators before it."""

RECOGNISERS: list[Recogniser] = [
    linear,
    quantized_linear,
    convolution,
    grouped_linear,
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
