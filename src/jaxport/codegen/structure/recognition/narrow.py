"""Layers in half precision that a file computes in float32, because a runtime has no kernel in half precision.

An export of a model in bfloat16 casts what a layer takes to float32, and rounds its result: such a layer takes and
returns bfloat16, as JAX's own do, and sums in float32. Small weights may be stored as float32 that bfloat16 can
represent.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from jaxport.codegen.structure.recognition.matching import Matcher
from jaxport.codegen.tree import Layer, Op, Weight, present
from jaxport.importer.values.recording import Variable

NARROW = (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16))
"""Types that are computed in single precision."""


def rounded_linear(op: Op, matcher: Matcher) -> Layer | None:
    """`round(widened x @ kernel)`, or this sum, which is rounded too, with a bias."""
    out = op.outputs[0]
    inside = rounded(out, matcher)
    if inside is None or not out.shape or not isinstance(out.shape[-1], int):
        return None
    product, bias = with_narrow_bias(inside, out, matcher)
    if product is None or product.step.name not in ("jnp.matmul", "@") or product.step.kwargs:
        return None
    x, kernel = narrow_operand(product.step.args[0], out, matcher), narrow_weight(product.step.args[1], out, matcher)
    if x is None or kernel is None or len(kernel.shape) != 2 or product.outputs[0].shape != out.shape:
        return None
    config = {"in_features": kernel.shape[0], "out_features": kernel.shape[1], "in_single": True}
    return Layer("Linear", config, present(kernel=kernel, bias=bias), (x,), (out,), "linear")


def rounded_normalization(op: Op, inside: Layer | None, matcher: Matcher) -> Layer | None:
    """`round(layer(widened x))` of a normalization in float32.

    Args:
      op: the rounding.
      inside: the normalization whose result it rounds, if that is one.
      matcher: the operators around it.
    """
    out = op.outputs[0]
    x = None if inside is None else narrow_operand(inside.inputs[0], out, matcher)
    if inside is None or x is None or inside.kind not in ("LayerNorm", "RMSNorm") or not inside.weights:
        return None
    weights = {role: _stored_as(weight, out.dtype) for role, weight in inside.weights.items()}
    known = {role: weight for role, weight in weights.items() if weight is not None}
    if len(known) < len(weights):
        return None
    return Layer(inside.kind, {**inside.config, "in_single": True}, known, (x,), (out,), "norm")


def rounded(value: object, matcher: Matcher) -> Op | None:
    """Return the operator whose result in float32 a value is, rounded to half precision, if nothing else reads it."""
    if not isinstance(value, Variable) or value.dtype not in NARROW:
        return None
    rounding = matcher.step(value, "astype")
    inside = None if rounding is None else rounding.step.args[0]
    if not isinstance(inside, Variable) or inside.dtype != np.float32 or matcher.uses[inside] != 1:
        return None
    return matcher.made.get(inside)


def narrow_operand(value: object, like: Variable, matcher: Matcher) -> Variable | None:
    """Return the value in the half precision of another one that a value in float32 is, if it is one that was cast."""
    widening = matcher.step(value, "astype")
    x = None if widening is None else widening.step.args[0]
    return x if isinstance(x, Variable) and x.dtype == like.dtype and x not in matcher.weights.names else None


def with_narrow_bias(op: Op, like: Variable, matcher: Matcher) -> tuple[Op | None, Weight | None]:
    """Return the product in front of an addition of a bias, which rounds it, and the bias; or the operator itself."""
    if op.step.name != "+":
        return op, None
    for bias, other in (op.step.args, op.step.args[::-1]):
        narrow = narrow_operand(other, like, matcher)
        weight = None if narrow is None else _bias(bias, like, matcher)
        if narrow is None or weight is None:
            continue
        if matcher.uses[other] == 1 and matcher.uses[narrow] == 1:
            return rounded(narrow, matcher), weight
    return None, None


def narrow_weight(value: object, like: Variable, matcher: Matcher) -> Weight | None:
    """Return the parameter that a value in float32 is, in the half precision of another value, which can represent
    it.
    """
    widening = matcher.step(value, "astype")
    weight = matcher.parameter(value if widening is None else widening.step.args[0])
    return None if weight is None else _stored_as(weight, like.dtype)


def _bias(value: object, like: Variable, matcher: Matcher) -> Weight | None:
    """Return the parameter along the last axis that a value in float32 is, in the half precision of another value."""
    widening, size = matcher.step(value, "astype"), like.shape[-1]
    if not isinstance(size, int):
        return None
    weight = matcher.vector(value if widening is None else widening.step.args[0], size)
    return None if weight is None else _stored_as(weight, like.dtype)


def _stored_as(weight: Weight, dtype: np.dtype) -> Weight | None:
    """Return a weight in half precision; None if that cannot represent it."""
    if weight.dtype == dtype:
        return weight
    array = weight.read() if weight.dtype == np.float32 else None
    if array is None or not np.array_equal(array.astype(dtype).astype(np.float32), array, equal_nan=True):
        return None
    return replace(weight, dtype=np.dtype(dtype), read=lambda: weight.read().astype(dtype))
