"""Quantized files: weights that are dequantized once, and values that are rounded to those of an integer type, as one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from jaxport.codegen.rewriting.patterns import bindings, pattern
from jaxport.codegen.rewriting.producers import Producers, is_number
from jaxport.codegen.rewriting.steps import in_place, reads, renamed
from jaxport.codegen.tree import Layer, Op, Weight
from jaxport.importer.ops.quantization import dequantize
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.recording import Step, Variable
from jaxport.importer.values.stored import tensor_value
from jaxport.jaxprs.dims import static

__all__ = ["dequantized", "quantized_linear", "with_rounding"]

OPTIONS = ("axis", "block_size")
SCALES = (2.0**-80, 2.0**80)
"""Scales with which no product of a small integer is denormal or infinite."""

MOST_OPERANDS = 4
"""Of what has more operands, such as a sum, none is the weight of a layer."""

QUANTIZED = (
    "(jnp.clip(jnp.round(x / scale) + zero, low, high).astype(kind).astype(_) - zero) * scale",
    "jnp.clip(jnp.round(x / scale), low, high).astype(kind).astype(_) * scale",
)
"""A value that is rounded to one of an integer type."""

Value = Variable | HostValue

if TYPE_CHECKING:
    from jaxport.codegen.structure.recognition.matching import Matcher


def dequantized(value: RuntimeValue, node: object) -> Weight | None:
    """Return the weight that an operand of a node is, if the file has it quantized, and nothing else reads that."""
    if not isinstance(value, Variable | HostValue) or not isinstance(node, ir.Node):
        return None
    for operand in node.inputs[:MOST_OPERANDS]:
        source = operand.producer() if operand is not None else None
        if source is None or source.op_type != "DequantizeLinear" or len(operand.uses()) != 1:  # type: ignore[union-attr]
            continue
        tensors = [part.const_value if part is not None else None for part in source.inputs]
        stored = source.inputs[0]
        if tensors[0] is None or tensors[1] is None or stored is None or len(stored.uses()) != 1:
            continue
        if isinstance(value, HostValue):
            return Weight(stored.name or "", value.shape, value.dtype, lambda: value.data, trained=True)
        if tuple(value.shape) == tuple(tensors[0].shape):
            return Weight(stored.name or "", static(value.shape), np.dtype(value.dtype), partial(_values, source))
    return None


def _values(node: ir.Node) -> np.ndarray:
    """Return the result of a node that dequantizes a tensor of the file."""
    tensors = [tensor_value(part.const_value).data for part in node.inputs if part is not None and part.const_value]
    options = {key: node.attributes[key].as_int() for key in OPTIONS if key in node.attributes}
    return np.asarray(dequantize(*tensors, **options))


def with_rounding(steps: Sequence[Step], results: Iterable[Variable]) -> list[Step]:
    """Return the steps with one call in place of those that quantize a value and dequantize it again at once."""
    kept = {*results}
    uses = Counter(variable for step in steps for variable in reads(step))
    uses.update(kept)
    producers = Producers()
    for step in steps:
        producers.note(step)
    rounded: dict[Variable, Step] = {}
    same: dict[Variable, Value] = {}
    done: list[Step] = []
    for original in steps:
        step = renamed(_rounding(original, producers, uses) or original, same)
        if step.name == "helper.fake_quantized":
            if step.outputs not in kept and _is_rounded(step, rounded):
                same[step.outputs] = step.args[0]
                continue
            rounded[step.outputs] = step
        done.append(step)
    return done


def _is_rounded(step: Step, rounded: Mapping[Variable, Step]) -> bool:
    """Whether a value has been rounded to the same numbers before: a product with such a scale is exact enough to come back."""
    x, scale, *others = step.args
    before = rounded.get(x)
    if before is None or not SCALES[0] < abs(float(scale.data)) < SCALES[1]:
        return False
    return bool(before.args[1].data == scale.data) and list(before.args[2:]) == others


def _rounding(step: Step, producers: Producers, uses: Mapping[Variable, int]) -> Step | None:
    """Return `fake_quantized(x, scale, zero_point, dtype)` in place of a step, if nothing else reads what is before it."""
    found = (next(bindings(pattern(text), step, producers), None) for text in QUANTIZED)
    bound = next((each for each in found if each is not None), None)
    if getattr(step.node, "op_type", "") != "DequantizeLinear" or bound is None:
        return None
    x, scale, zero = bound["x"], bound["scale"], bound.get("zero", HostValue(np.asarray(0, np.int32)))
    dtype, limits = np.dtype(bound["kind"]), np.iinfo(np.dtype(bound["kind"]))
    if not isinstance(x, Variable) or not (
        is_number(bound["low"], limits.min) and is_number(bound["high"], limits.max)
    ):
        return None
    if not _is_scalar(scale) or not _is_scalar(zero) or not _is_read_once(step, x, producers, uses):
        return None
    return in_place(step, "helper.fake_quantized", x, scale, int(zero.data.item()), dtype)


def _is_read_once(step: Step, x: Variable, producers: Producers, uses: Mapping[Variable, int]) -> bool:
    """Whether what a step reads, up to a value, is read once."""
    inner = [variable for variable in reads(step) if variable is not x]
    return all(uses[each] == 1 and _is_read_once(producers.made[each], x, producers, uses) for each in inner)


def _is_scalar(value: RuntimeValue) -> bool:
    return isinstance(value, HostValue) and not value.ndim and not value.symbolic


def quantized_linear(op: Op, matcher: Matcher) -> Layer | None:
    """A product with a matrix of few bits: `x @ block_dequantized(packed, scales, zero_points, bits, in_features)`."""
    out = op.outputs[0]
    size = out.shape[-1] if out.shape else None
    product, bias = matcher.with_bias(op, size) if isinstance(size, int) else (op, None)
    if product.step.name not in ("jnp.matmul", "@") or product.step.kwargs or product.outputs[0].shape != out.shape:
        return None
    x, kernel = product.step.args
    made = matcher.step(kernel, "helper.block_dequantized")
    if made is None or matcher.uses[kernel] != 1 or not isinstance(x, Variable):
        return None
    packed, scales, zero_points, bits, columns = made.step.args
    stored = [part for part in (packed, scales, zero_points) if part is not None]
    if not all(isinstance(part, HostValue) for part in stored) or scales.dtype != x.dtype:
        return None
    rows, blocks, width = packed.shape
    weights = {"packed": _kept(packed, packed.shape), "scales": _kept(scales, (rows, blocks))}
    if zero_points is not None:
        if zero_points.dtype != np.uint8:
            return None
        weights["zero_points"] = replace(
            _kept(zero_points, (rows, blocks)), read=lambda: _unpacked(zero_points.data.reshape(rows, -1), bits, blocks)
        )
    config = {"in_features": columns, "out_features": rows, "bits": bits, "block_size": width * 8 // bits}
    return Layer(
        "QuantizedLinear", config, weights | ({"bias": bias} if bias is not None else {}), (x,), (out,), "linear"
    )


def _kept(value: HostValue, shape: tuple[int, ...]) -> Weight:
    """Return a tensor of the file that is not trained."""
    return Weight(
        value.name or "", shape, np.dtype(value.dtype), lambda: np.asarray(value.data).reshape(shape), trained=False
    )


def _unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return the numbers in the bytes of each row, without those that only fill the last byte."""
    numbers = (packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8(2**bits - 1)
    return numbers.reshape(len(packed), -1)[:, :count]
