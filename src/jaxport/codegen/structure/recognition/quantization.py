"""Quantized files: layers that keep their weights as integers, and values that are rounded to those of an integer type,
as one call.

Before and after:

    x @ block_dequantized(q, scales, zero_points, 4, 64)   →   QuantizedLinear(x), whose weights are `q`, `scales`,
    `zero_points` DequantizeLinear(QuantizeLinear(x, s, z), s, z)        →   fake_quantized(x, s, z, dtype)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxport.codegen.rewriting.patterns import bindings, pattern
from jaxport.codegen.rewriting.producers import Producers, is_number
from jaxport.codegen.rewriting.steps import REARRANGING, in_place, reads, renamed
from jaxport.codegen.structure.recognition.matching import Matcher, are_of_type
from jaxport.codegen.structure.recognition.stored import StoredOperand, stored_operands
from jaxport.codegen.tree import Layer, Op, Weight, present
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Step, Variable

BITS = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""The types of integers that are stored in bytes, and their widths."""
SCALES = (2.0**-80, 2.0**80)
"""Scales with which no product of a small integer is denormal or infinite."""

QUANTIZED = (
    "(jnp.clip(jnp.round(x / scale) + zero, low, high).astype(kind).astype(_) - zero) * scale",
    "jnp.clip(jnp.round(x / scale), low, high).astype(kind).astype(_) * scale",
)
"""A value that is rounded to one of an integer type."""


def with_rounding(steps: Sequence[Step], results: Iterable[Variable]) -> list[Step]:
    """Return the steps with one call in place of those that quantize a value and dequantize it again at once."""
    kept = {*results}
    uses = Counter(variable for step in steps for variable in reads(step))
    uses.update(kept)
    producers = Producers.of(steps)
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
    """Whether a value has been rounded to the same numbers before: a product with such a scale is exact enough to come
    back.
    """
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
    """Return `fake_quantized(x, scale, zero_point, dtype)` in place of a step, if nothing else reads what is before
    it.
    """
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


def _is_scalar(value: object) -> bool:
    return isinstance(value, HostValue) and not value.ndim and not value.symbolic


def quantized_linear(op: Op, matcher: Matcher) -> Layer | None:
    """A product with a matrix of few bits: `x @ block_dequantized(packed, scales, zero_points, bits, in_features)`."""
    product = matcher.product(op)
    made = matcher.step(product.kernel, "helper.block_dequantized") if product is not None else None
    if product is None or made is None or matcher.uses[product.kernel] != 1:
        return None
    packed, scales, zero_points, bits, columns = made.step.args
    stored = [part for part in (packed, scales, zero_points) if part is not None]
    if not all(isinstance(part, HostValue) for part in stored) or scales.dtype != product.x.dtype:
        return None
    rows, blocks, width = packed.shape
    offsets = None
    if zero_points is not None:
        if zero_points.dtype != np.uint8:
            return None
        read = lambda: _unpacked(zero_points.data.reshape(rows, -1), bits, blocks)
        offsets = replace(_kept(zero_points, (rows, blocks)), read=read)
    config = {"in_features": columns, "out_features": rows, "bits": bits, "block_size": width * 8 // bits}
    parts = {"packed": _kept(packed, packed.shape), "scales": _kept(scales, (rows, blocks)), "zero_points": offsets}
    return product.layer("QuantizedLinear", config, **parts)


class _Matrix(NamedTuple):
    """A matrix as integers that begin at 0, a row for each column of the matrix, in blocks with a scale each."""

    numbers: np.ndarray
    bits: int
    block_size: int
    scales: np.ndarray
    zero_points: np.ndarray


def stored_linear(op: Op, matcher: Matcher) -> Layer | None:
    """`x @ kernel`, of a kernel that the file has as integers of 8 bits or less, with a scale for all, a column or a
    block.
    """
    product, out = matcher.product(op), op.outputs[0]
    kernel = None if product is None else product.kernel
    if product is None or not isinstance(kernel, Variable | HostValue) or len(kernel.shape) != 2:
        return None
    if not product.x.dtype == kernel.dtype == out.dtype or not are_of_type(product.x, product.bias):
        return None
    found = ((stored, _matrix(kernel, stored, matcher.made)) for stored in stored_operands(product.op.step.node))
    name, matrix = next(((stored.name, each) for stored, each in found if each is not None), ("", None))
    if matrix is None or matrix.scales.dtype != kernel.dtype:
        return None
    (rows, blocks), width = matrix.scales.shape, matrix.block_size * matrix.bits // 8
    packed = Weight(name, (rows, blocks, width), np.dtype(np.uint8), lambda: _packed(matrix), trained=False)
    is_shifted = np.any(matrix.zero_points != 2 ** (matrix.bits - 1))
    zero_points = Weight.constant(matrix.zero_points) if is_shifted else None
    config = {"in_features": kernel.shape[0], "out_features": rows, "bits": matrix.bits, "is_dequantized": True}
    config["block_size"] = matrix.block_size if blocks > 1 else None
    scales = Weight.constant(matrix.scales)
    return product.layer("QuantizedLinear", config, packed=packed, scales=scales, zero_points=zero_points)


def stored_kernel(kernel: object, node: object, made: Mapping[Variable, Op]) -> dict[str, Weight] | None:
    """Return the kernel of a convolution, outputs first, if the file has it as 8-bit integers with one scale or one for
    each output.

    Its integers are (*sizes, in, out).
    """
    if not isinstance(kernel, Variable | HostValue):
        return None
    for stored in stored_operands(node):
        integers, scale, *others = stored.arrays
        axis = stored.options.get("axis", 1) % max(integers.ndim, 1)
        if integers.dtype.name not in ("int8", "uint8") or (scale.size > 1 and (scale.ndim, axis) != (1, 0)):
            continue
        if stored.order(kernel, made) != [*range(integers.ndim)]:
            continue
        spread = lambda numbers, size=integers.shape[0]: Weight.constant(np.broadcast_to(numbers.reshape(-1), (size,)))
        whole = Weight.constant(integers.transpose((*range(2, integers.ndim), 1, 0)), stored.name)
        zero_points = spread(others[0]) if others and np.any(others[0]) else None
        return present(kernel=whole, scales=spread(scale), zero_points=zero_points)
    return None


def _matrix(kernel: Variable | HostValue, stored: StoredOperand, made: Mapping[Variable, Op]) -> _Matrix | None:
    """Return the integers of a matrix that was dequantized, and that perhaps was turned then; None if it is another."""
    integers, scale, *others = stored.arrays
    bits = BITS.get(integers.dtype.name)
    if bits is None or integers.ndim != 2 or (len(others) and others[0].shape != scale.shape):
        return None
    order = stored.order(kernel, made)
    if order is None:
        return None
    order = order[::-1]  # where the outputs of the layer are in the file, and where its inputs
    options, lowest = stored.options, 0 if integers.dtype.name.startswith("u") else -(2 ** (bits - 1))
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
    product = matcher.product(op, "helper.dynamic_product")
    if product is None or not all(isinstance(each, HostValue) for each in product.op.step.args[1:]):
        return None
    kernel, scale, *others = product.op.step.args[1:]
    rows, columns = kernel.shape
    spread = lambda value: Weight.constant(np.broadcast_to(value.data, (columns,)))
    config = {"in_features": rows, "out_features": columns}
    parts = dict(zip(("scales", "zero_points"), map(spread, (scale, *others)), strict=False))
    return product.layer("DynamicQuantizedLinear", config, kernel=_kept(kernel, kernel.shape), **parts)


LOOKUPS = (
    "(jnp.take(table, indices, axis=0).astype(_) - zero_point) * scale",
    "jnp.take(table, indices, axis=0).astype(_) * scale",
)
"""Rows of a table of integers, dequantized."""


def stored_embedding(op: Op, matcher: Matcher) -> Layer | None:
    """Rows of a table that the file has as integers of 8 bits, with one scale: dequantized behind the lookup, or before
    it.
    """
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
        stored = None if bound is None else next(stored_operands(op.step.node), None)
        if bound is None or stored is None or stored.order(bound["table"], matcher.made) != [0, 1]:
            return None
        indices, name = bound["indices"], stored.name
        integers, scale, zero = [*stored.arrays, zero_point.data][:3]
    if integers.dtype.name not in ("int8", "uint8") or integers.ndim != 2 or scale.size != 1 or zero.size != 1:
        return None
    if scale.dtype != out.dtype or not isinstance(indices, Variable) or np.dtype(indices.dtype).kind not in "iu":
        return None
    offset = zero.reshape(()).astype(integers.dtype)
    if not np.array_equal(offset, zero.reshape(())):
        return None
    weights = {"embedding": Weight.constant(integers, name), "scale": Weight.constant(scale.reshape(()))}
    weights["zero_point"] = Weight.constant(offset)
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
