"""Quantized files: weights that are dequantized once, and values that are rounded to those of an integer type, as one call.

Before and after:

    DequantizeLinear(q, s) of a stored `q`, read by one product   →   a layer whose kernel is `q * s`, computed once
    DequantizeLinear(QuantizeLinear(x, s, z), s, z)               →   fake_quantized(x, s, z, dtype)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from jaxport.codegen.rewriting.patterns import bindings, pattern
from jaxport.codegen.rewriting.producers import Producers, is_number
from jaxport.codegen.rewriting.steps import REARRANGING, in_place, reads, renamed
from jaxport.codegen.tree import Layer, Op, Weight
from jaxport.importer.ops.quantization import dequantize
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.recording import Step, Variable
from jaxport.importer.values.stored import tensor_value
from jaxport.jaxprs.dims import static

__all__ = [
    "dequantized",
    "dynamic_linear",
    "quantized_linear",
    "stored_embedding",
    "stored_kernel",
    "stored_linear",
    "with_rounding",
]

OPTIONS = ("axis", "block_size")
BITS = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""The types of integers that are stored in bytes, and their widths."""
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


class _Stored(NamedTuple):
    """A tensor of integers, and the node that dequantizes it for one operator alone."""

    tensor: ir.Value
    node: ir.Node

    @property
    def name(self) -> str:
        return self.tensor.name or ""


def _stored(node: object) -> Iterator[_Stored]:
    """Yield the operands of a node that the file has quantized, and that nothing else reads."""
    for operand in node.inputs[:MOST_OPERANDS] if isinstance(node, ir.Node) else ():
        source = operand.producer() if operand is not None else None
        if source is None or source.op_type != "DequantizeLinear" or len(operand.uses()) != 1:  # type: ignore[union-attr]
            continue
        tensor, scale = source.inputs[:2]
        if tensor is None or tensor.const_value is None or scale is None or scale.const_value is None:
            continue
        if len(tensor.uses()) == 1:
            yield _Stored(tensor, source)


def dequantized(value: RuntimeValue, node: object, made: Mapping[Variable, Op]) -> Weight | None:
    """Return the weight that an operand of a node is, if the file has it quantized, and nothing else reads that.

    `made` has the operators that make values.
    """
    if not isinstance(value, Variable | HostValue):
        return None
    for stored in _stored(node):
        if isinstance(value, HostValue):
            return Weight(stored.name, value.shape, value.dtype, lambda: value.data, trained=True)
        order = _order(value, stored.node, made)
        if order is not None:
            shape, read = static(value.shape), partial(_values, stored.node, order)
            return Weight(stored.name, shape, np.dtype(value.dtype), read)
    return None


def _order(value: Variable | HostValue, node: ir.Node, made: Mapping[Variable, Op]) -> list[int] | None:
    """Return the order in which a value has the axes of what a node dequantizes; None if it is another value."""
    rank = len(value.shape)
    plain, turned = [*range(rank)], [*range(rank)][::-1]
    if isinstance(value, HostValue):
        if value.symbolic:
            return None
        values = _values(node)
        return next((order for order in (plain, turned) if np.array_equal(values.transpose(order), value.data)), None)
    op, order = made.get(value), plain
    if op is not None and op.step.name in ("T", "jnp.transpose"):
        source, *axes = op.step.args
        order, op = [*axes[0]] if axes else turned, made.get(source)
    return order if op is not None and op.step.node is node else None


def _tensors(node: ir.Node) -> list[np.ndarray]:
    """Return the tensor of the file that a node dequantizes, its scale, and its zero point if it has one."""
    return [tensor_value(part.const_value).data for part in node.inputs if part is not None and part.const_value]


def _options(node: ir.Node) -> dict[str, int]:
    return {key: node.attributes[key].as_int() for key in OPTIONS if key in node.attributes}


def _values(node: ir.Node, order: Sequence[int] = ()) -> np.ndarray:
    """Return the result of a node that dequantizes a tensor of the file, perhaps with its axes in another order."""
    values = np.asarray(dequantize(*_tensors(node), **_options(node)))
    return values.transpose(order) if order else values


def with_rounding(steps: Sequence[Step], results: Iterable[Variable]) -> list[Step]:
    """Return the steps with one call in place of those that quantize a value and dequantize it again at once."""
    kept = {*results}
    uses = Counter(variable for step in steps for variable in reads(step))
    uses.update(kept)
    producers = Producers()
    for step in steps:
        producers.note(step)
    rounded: dict[Variable, Step] = {}
    same: dict[Variable, Variable] = {}
    done: list[Step] = []
    for original in steps:
        step = renamed(_rounding(original, producers, uses) or original, same)
        if step.name == "helper.fake_quantized":
            if step.outputs not in kept and _is_rounded(step, rounded, same, producers):
                same[step.outputs] = step.args[0]
                continue
            rounded[step.outputs] = step
        done.append(step)
    return done


def _is_rounded(
    step: Step, rounded: Mapping[Variable, Step], same: Mapping[Variable, Variable], producers: Producers
) -> bool:
    """Whether a value has been rounded to the same numbers before: a product with such a scale is exact enough to come back."""
    x, scale, *others = step.args
    if not isinstance(scale, HostValue) or not SCALES[0] < abs(float(scale.data)) < SCALES[1]:
        return False
    while x not in rounded and (before := _rearranged(x, producers)) is not None:
        x = same.get(before, before)
    before = rounded.get(x)
    return before is not None and bool(before.args[1].data == scale.data) and list(before.args[2:]) == others


def _rearranged(x: Variable, producers: Producers) -> Variable | None:
    """Return the value that another has elements of, and nothing else."""
    made = producers.made.get(x) or producers.parts.get(x, (None,))[0]
    if made is None or not (made.name in REARRANGING or made.name == "jnp.split" or made.form == "index"):
        return None
    return made.args[0] if isinstance(made.args[0], Variable) else None


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


class _Matrix(NamedTuple):
    """A matrix as integers that begin at 0, a row for each column of the matrix, in blocks with a scale each."""

    numbers: np.ndarray
    bits: int
    block_size: int
    scales: np.ndarray
    zero_points: np.ndarray


def stored_linear(op: Op, matcher: Matcher) -> Layer | None:
    """`x @ kernel`, of a kernel that the file has as integers of 8 bits or less, with a scale for all, a column or a block."""
    out = op.outputs[0]
    if not out.shape or not isinstance(out.shape[-1], int):
        return None
    product, bias = matcher.with_bias(op, out.shape[-1])
    if product.step.name not in ("jnp.matmul", "@") or product.step.kwargs or product.outputs[0].shape != out.shape:
        return None
    x, kernel = product.step.args
    if not isinstance(x, Variable) or not isinstance(kernel, Variable | HostValue) or len(kernel.shape) != 2:
        return None
    if not x.dtype == kernel.dtype == out.dtype or (bias is not None and bias.dtype != x.dtype):
        return None
    found = ((stored, _matrix(kernel, stored.node, matcher.made)) for stored in _stored(product.step.node))
    name, matrix = next(((stored.name, each) for stored, each in found if each is not None), ("", None))
    if matrix is None or matrix.scales.dtype != kernel.dtype:
        return None
    (rows, blocks), width = matrix.scales.shape, matrix.block_size * matrix.bits // 8
    weights = {
        "packed": Weight(name, (rows, blocks, width), np.dtype(np.uint8), lambda: _packed(matrix), trained=False),
        "scales": Weight("", (rows, blocks), matrix.scales.dtype, lambda: matrix.scales, trained=False),
    }
    if np.any(matrix.zero_points != 2 ** (matrix.bits - 1)):
        weights["zero_points"] = Weight(
            "", (rows, blocks), np.dtype(np.uint8), lambda: matrix.zero_points, trained=False
        )
    config = {"in_features": kernel.shape[0], "out_features": rows, "bits": matrix.bits, "is_dequantized": True}
    config["block_size"] = matrix.block_size if blocks > 1 else None
    return Layer(
        "QuantizedLinear", config, weights | ({"bias": bias} if bias is not None else {}), (x,), (out,), "linear"
    )


def stored_kernel(kernel: RuntimeValue, node: object, made: Mapping[Variable, Op]) -> dict[str, Weight] | None:
    """Return the kernel of a convolution, outputs first, if the file has it as 8-bit integers with one scale or one for each output.

    Its integers are (*sizes, in, out).
    """
    if not isinstance(kernel, Variable | HostValue):
        return None
    for stored in _stored(node):
        integers, scale, *others = _tensors(stored.node)
        axis = _options(stored.node).get("axis", 1) % max(integers.ndim, 1)
        if integers.dtype.name not in ("int8", "uint8") or (scale.size > 1 and (scale.ndim, axis) != (1, 0)):
            continue
        if _order(kernel, stored.node, made) != [*range(integers.ndim)]:
            continue
        outputs, order = integers.shape[0], (*range(2, integers.ndim), 1, 0)
        parts = {"kernel": integers.transpose(order), "scales": np.broadcast_to(scale.reshape(-1), (outputs,))}
        if others and np.any(others[0]):
            parts["zero_points"] = np.broadcast_to(others[0].reshape(-1), (outputs,))
        names = {"kernel": stored.name}
        return {
            role: Weight(names.get(role, ""), part.shape, part.dtype, partial(np.asarray, part), trained=False)
            for role, part in parts.items()
        }
    return None


def _matrix(kernel: Variable | HostValue, node: ir.Node, made: Mapping[Variable, Op]) -> _Matrix | None:
    """Return the integers of a matrix that a node dequantizes, and that perhaps was turned then; None if it is another."""
    integers, scale, *others = _tensors(node)
    bits = BITS.get(integers.dtype.name)
    if bits is None or integers.ndim != 2 or (len(others) and others[0].shape != scale.shape):
        return None
    order = _order(kernel, node, made)
    if order is None:
        return None
    order = order[::-1]  # where the outputs of the layer are in the file, and where its inputs
    options, lowest = _options(node), 0 if integers.dtype.name.startswith("u") else -(2 ** (bits - 1))
    (rows, columns), axis = (integers.shape[at] for at in order), options.get("axis", 1) % 2
    numbers = (integers.transpose(order).astype(np.int16) - lowest).astype(np.uint8)
    zero_point = (others[0] if others else np.zeros(scale.shape, np.int8)).astype(np.int16) - lowest
    if scale.size == 1:
        whole = [np.broadcast_to(part.reshape(1, 1), (rows, 1)) for part in (scale, zero_point)]
    elif scale.ndim == 1 and axis == order[0]:
        whole = [part[:, None] for part in (scale, zero_point)]
    elif scale.ndim == 2 and axis == order[1] and options.get("block_size"):
        whole = [part.transpose(order) for part in (scale, zero_point)]
    else:
        return None
    scales, zero_points = whole
    block_size = options["block_size"] if len(scales[0]) > 1 else columns + -columns % (8 // bits)
    if block_size * bits % 8:
        return None
    return _Matrix(numbers, bits, block_size, scales, zero_points.astype(np.uint8))


def _packed(matrix: _Matrix) -> np.ndarray:
    """Return the integers of a matrix in bytes, the first in the lowest bits, as (outputs, blocks, bytes)."""
    (rows, columns), (_, blocks) = matrix.numbers.shape, matrix.scales.shape
    whole = np.zeros((rows, blocks * matrix.block_size), np.uint8)
    whole[:, :columns] = matrix.numbers
    parts = whole.reshape(rows, blocks, -1, 8 // matrix.bits)
    return np.bitwise_or.reduce(parts << np.arange(0, 8, matrix.bits, dtype=np.uint8), axis=-1)


def dynamic_linear(op: Op, matcher: Matcher) -> Layer | None:
    """`dynamic_product(x, kernel, scale, zero_point)`, of a matrix of int8, and perhaps a bias."""
    out = op.outputs[0]
    size = out.shape[-1] if out.shape else None
    product, bias = matcher.with_bias(op, size) if isinstance(size, int) else (op, None)
    if product.step.name != "helper.dynamic_product" or product.outputs[0].shape != out.shape:
        return None
    x, kernel, scale, *others = product.step.args
    constants = [kernel, scale, *others]
    if not isinstance(x, Variable) or not all(isinstance(each, HostValue) for each in constants):
        return None
    rows, columns = kernel.shape
    spread = lambda value: lambda: np.broadcast_to(value.data, (columns,))
    weights = {"kernel": _kept(kernel, kernel.shape)}
    weights |= {
        role: Weight("", (columns,), np.dtype(value.dtype), spread(value), trained=False)
        for role, value in zip(("scales", "zero_points"), (scale, *others), strict=False)
    }
    config = {"in_features": rows, "out_features": columns}
    weights |= {"bias": bias} if bias is not None else {}
    return Layer("DynamicQuantizedLinear", config, weights, (x,), (out,), "linear")


LOOKUPS = (
    "(jnp.take(table, indices, axis=0).astype(_) - zero_point) * scale",
    "jnp.take(table, indices, axis=0).astype(_) * scale",
)
"""Rows of a table of integers, dequantized."""


def stored_embedding(op: Op, matcher: Matcher) -> Layer | None:
    """Rows of a table that the file has as integers of 8 bits, with one scale: dequantized behind the lookup, or before it."""
    out, zero_point = op.outputs[0], HostValue(np.zeros((), np.int8))
    bound = next((found for text in LOOKUPS if (found := matcher.bound(text, op.step)) is not None), None)
    if bound is not None:
        table, indices, scale = bound["table"], bound["indices"], bound["scale"]
        zero_point = bound.get("zero_point", zero_point)
        parts = [table, scale, zero_point]
        if not all(isinstance(part, HostValue) and not part.symbolic for part in parts):
            return None
        name, integers, scale, zero = table.name or "", *(np.asarray(part.data) for part in parts)
    else:
        bound = matcher.bound("jnp.take(table, indices, axis=0)", op.step)
        stored = [] if bound is None else [*_stored(op.step.node)][:1]
        if bound is None or not stored or _order(bound["table"], stored[0].node, matcher.made) != [0, 1]:
            return None
        indices, name = bound["indices"], stored[0].name
        integers, scale, zero = [*_tensors(stored[0].node), zero_point.data][:3]
    if integers.dtype.name not in ("int8", "uint8") or integers.ndim != 2 or scale.size != 1 or zero.size != 1:
        return None
    if scale.dtype != out.dtype or not isinstance(indices, Variable) or np.dtype(indices.dtype).kind not in "iu":
        return None
    arrays = {"embedding": integers, "scale": scale.reshape(()), "zero_point": zero.reshape(()).astype(integers.dtype)}
    if not np.array_equal(arrays["zero_point"], zero.reshape(())):
        return None
    weights = {
        role: Weight(name if role == "embedding" else "", array.shape, array.dtype, partial(np.asarray, array), False)
        for role, array in arrays.items()
    }
    config = {"num_embeddings": integers.shape[0], "features": integers.shape[1]}
    return Layer("QuantizedEmbed", config, weights, (indices,), op.outputs, "embed")


def _kept(value: HostValue, shape: tuple[int, ...]) -> Weight:
    """Return a tensor of the file that is not trained."""
    return Weight(
        value.name or "", shape, np.dtype(value.dtype), lambda: np.asarray(value.data).reshape(shape), trained=False
    )


def _unpacked(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return the numbers in the bytes of each row, without those that only fill the last byte."""
    numbers = (packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8(2**bits - 1)
    return numbers.reshape(len(packed), -1)[:, :count]
