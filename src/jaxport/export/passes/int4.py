"""Store the weights of products in 4 bits, with a scale per group of a column, and the zero point of each if they have any.

`block_int4` emits MatMulNBits of com.microsoft, or the standard's DequantizeLinear of blocks, which ONNX Runtime turns into
that. Large tables are stored in 8 bits, and a tied head shares its table: a second copy in 4 bits would be larger, and
further from float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.export.passes.dense import Dense, Int8, NodeFilter, Stored, Tables, everywhere, integer_product
from jaxport.graph.editing import dims_of
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.onnx_facts import QUANTIZED

MICROSOFT = "com.microsoft"
GROUPS = (16, 32, 64, 128, 256)
"""The sizes of groups that runtimes have kernels for."""
MOST_MATRICES = 256
"""The number of matrices of a stack up to which each gets a product of its own."""
ACCURACY = 4
"""The accuracy level of MatMulNBits: the runtime may round the other operand to 8 bits, by its own groups. One token of
GPT-2 takes two thirds of the time, and its error is the same."""
CHUNK = 2**18
"""The number of weights that are rounded at a time: so many as stay in the processor's cache."""
ROUNDING = "jaxport.rounding"
"""The key of the metadata of a product that says how far its weights of 4 bits are from those of the function."""


@dataclass(frozen=True)
class Int4:
    """Weights of products in 4 bits, for `to_onnx(precision=...)`; "int4" is short for `Int4()`.

    The options are those of `jaxport.mox.quantize(dtype="int4", group=..., symmetric=...)`.

    >>> import jax.numpy as jnp, numpy as np, jaxport
    >>> weights = np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
    >>> precision = jaxport.Int4(group=128, symmetric=True)
    >>> exported = jaxport.to_onnx(lambda x: jnp.tanh(x @ weights), [("B", 256)], precision=precision)
    >>> [value.shape.numpy() for value in exported.model.graph.initializers.values()]
    [(256, 64), (2, 64)]

    Attributes:
      group: how many weights along the last input axis share a scale: 16, 32, 64, 128 or 256. It need not divide their
        number; a shorter column is a single group.
      symmetric: whether zero is stored as zero; otherwise the levels span the range of each group, and a zero point is
        stored as well.

    Raises:
      InvalidArgument: there are no kernels for the size of the groups, or `symmetric` is not a bool.
    """

    group: int = 32
    symmetric: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.symmetric, bool):
            raise InvalidArgument(
                f"`symmetric` is {self.symmetric!r}", where="`Int4(symmetric=...)`", instead="True or False"
            )
        if not isinstance(self.group, int) or self.group not in GROUPS:
            raise InvalidArgument(
                f"groups of {self.group!r} weights have no kernels in any runtime",
                where="`Int4(group=...)`",
                instead=", ".join(map(str, GROUPS)),
            )

    def __str__(self) -> str:
        options = [f"{name}={value}" for name, value in vars(self).items() if value != vars(Int4)[name]]
        return f"int4({', '.join(options)})" if options else "int4"

    def size(self, depth: int) -> int:
        """Return the size of the groups of a column of `depth` weights: the shortest one that holds all of it, or `group`.

        >>> Int4(group=128).size(40), Int4(group=128).size(400)
        (64, 128)
        """
        return min(self.group, next((size for size in GROUPS if size >= depth), self.group))

    def bits(self, depth: int) -> int:
        """Return the number of bits of a column of `depth` weights, with its scales and zero points.

        >>> Int4().bits(64), Int4(group=64, symmetric=True).bits(64)
        (328, 288)
        """
        size = self.size(depth)
        return -(-depth // size) * (4 * size + 32 + (0 if self.symmetric else 4))


@dataclass(frozen=True)
class Levels:
    """Weights [K, N] in 4 bits.

    Attributes:
      levels: from 0 to 15, [N, groups, size]; beyond the end of a column they are the zero point.
      scale: [N, groups]; that of a symmetric group may be negative.
      zero: the zero points, [N, groups]; 8 in symmetric groups.
    """

    levels: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    def weights(self, depth: int) -> np.ndarray:
        """Return the weights that the levels stand for, [depth, N]."""
        rounded = (self.levels.astype(np.float32) - self.zero[..., None]) * self.scale[..., None]
        return rounded.reshape(len(rounded), -1)[:, :depth].T


def block_int4(model: ir.Model, *, contrib: bool, form: Int4 = Int4(), where: NodeFilter = everywhere) -> str:
    """Store the weights of products in 4 bits, in the graph and its subgraphs; tables in 8.

    Args:
      model: changed in place.
      contrib: whether to use ONNX Runtime's own operator rather than the standard's blocks.
      form: the groups.
      where: whether a node may be changed.
    """
    tables, groups = Tables(Int8()), _Groups(form)

    def find(node: ir.Node) -> Fusion | str | None:
        dense = Dense.of(node, stacks=True) if where(node) else None
        if not isinstance(dense, Dense):
            return dense or tables.find(node, where)
        dims = dims_of(node.outputs[0])
        if tables.shares(dense):
            operator, build = "MatMulInteger", lambda builder: integer_product(builder, dense, tables, dims)
        elif form.bits(depth := dense.weights.shape[-2]) >= 32 * depth:
            return "its weights are too few to be smaller in 4 bits"
        elif dense.weights.ndim > 2 and not _is_separable(dense, dims):
            return "it multiplies by a stack of matrices that are not one for each of the first axis"
        else:
            operator = "MatMulNBits" if contrib else "MatMul of 4 bits"
            one = groups.by_operator if contrib else groups.by_blocks
            build = lambda builder: _for_each(builder, dense, dims, one)
        return Fusion(operator, node.outputs[0], dense.leaves, build)

    report = fuse(model, find, Anchor(at=QUANTIZED))
    if contrib and any(node.domain == MICROSOFT for node in model.graph.all_nodes()):
        model.opset_imports[MICROSOFT] = 1
    return report


Product = Callable[[Builder, Dense, "list | None"], ir.Value]


def _is_separable(dense: Dense, dims: list | None) -> bool:
    """Whether a product with a stack of matrices is one product for each of them."""
    of_x = dims_of(dense.x)
    if dims is None or of_x is None or dense.weights.ndim != 3 or len(dims) != 3 or not 2 <= len(of_x) <= 3:
        return False
    return len(dense.weights) <= MOST_MATRICES and (len(of_x) == 2 or of_x[0] in (1, len(dense.weights)))


def _for_each(builder: Builder, dense: Dense, dims: list | None, product: Product) -> ir.Value:
    """Emit a product, or one for each matrix of a stack, side by side: there are kernels for single matrices."""
    if dense.weights.ndim == 2 or dims is None:
        return product(builder, dense, dims)
    of_x, results = dims_of(dense.x) or [], []
    for index, weights in enumerate(dense.weights):
        x = dense.x
        if len(of_x) == 3 and of_x[0] == 1:
            x = builder.viewed(x, of_x[1:])
        elif len(of_x) == 3:
            place = builder.constant(np.array(index, np.int64), "index")
            x = builder.emit("Gather", [x, place], of_x[1:], ir.DataType.FLOAT, axis=0)
        made = product(builder, replace(dense, x=x, weights=weights, index=index), dims[1:])
        results.append(builder.viewed(made, [1, *dims[1:]]))
    return builder.emit("Concat", results, dims, ir.DataType.FLOAT, axis=0)


class _Groups:
    """Weights of products in 4 bits: one set of tensors for all uses of a weight."""

    def __init__(self, form: Int4) -> None:
        self.form = form
        self._stored = Stored()
        self._roundings: dict[ir.Value, str] = {}

    def by_operator(self, builder: Builder, dense: Dense, dims: list | None) -> ir.Value:
        """Emit a product as ONNX Runtime's own operator."""

        def parts(levels: Levels) -> list[tuple[np.ndarray, str]]:
            made = [(_pairs(levels.levels), "int4"), (levels.scale.ravel(), "scale")]
            return made if self.form.symmetric else [*made, (_pairs(levels.zero).ravel(), "zero_point")]

        depth, count = dense.weights.shape
        tensors = self._tensors(builder, dense, parts)
        attributes = {
            "K": depth, "N": count, "bits": 4, "block_size": self.form.size(depth), "accuracy_level": ACCURACY
        }  # fmt: skip
        inputs = [dense.x, *tensors]
        result = builder.emit("MatMulNBits", inputs, dims, ir.DataType.FLOAT, MICROSOFT, **attributes)
        return self._finished(builder, result, dense, tensors, dims)

    def by_blocks(self, builder: Builder, dense: Dense, dims: list | None) -> ir.Value:
        """Emit a product with the standard's DequantizeLinear of blocks."""
        depth, count = dense.weights.shape

        def parts(levels: Levels) -> list[tuple[np.ndarray, str]]:
            whole = levels.levels.reshape(count, -1)[:, :depth].T
            made = [(_signed(whole), "int4"), (levels.scale.T, "scale")]
            return made if self.form.symmetric else [*made, (_signed(levels.zero.T), "zero_point")]

        tensors = self._tensors(builder, dense, parts)
        # ONNX Runtime looks for the weights only in the graph of the DequantizeLinear, so this one is not in a subgraph.
        editor, root, size = builder.editor, builder.root, self.form.size(depth)
        if builder.node.graph is root:
            weights = builder.emit(
                "DequantizeLinear", tensors, [depth, count], ir.DataType.FLOAT, axis=0, block_size=size
            )
        else:
            constants = {value.producer() for value in tensors}
            last = next((node for node in reversed(root) if node in constants), None)
            weights = editor.insert(
                root, "DequantizeLinear", tensors, after=last, like=dense.held, shape=[depth, count],
                dtype=ir.DataType.FLOAT, axis=0, block_size=size,
            )  # fmt: skip
        result = builder.emit("MatMul", [dense.x, weights], dims, ir.DataType.FLOAT)
        return self._finished(builder, result, dense, tensors, dims)

    def _tensors(
        self, builder: Builder, dense: Dense, parts: Callable[[Levels], list[tuple[np.ndarray, str]]]
    ) -> list[ir.Value]:
        roundings: list[str] = []

        def make() -> list[tuple[np.ndarray, str]]:
            levels = quantized(dense.weights, self.form)
            roundings.append(f"{rounding_error(dense.weights, levels):.4f}")
            return parts(levels)

        tensors = self._stored.tensors(builder, dense, make)
        for rounding in roundings:
            self._roundings[tensors[0]] = rounding
        return tensors

    def _finished(
        self, builder: Builder, result: ir.Value, dense: Dense, tensors: list[ir.Value], dims: list | None
    ) -> ir.Value:
        """Record how far the weights of a product are from what they were, relative to their norm, and add its bias."""
        producer = result.producer()
        assert producer is not None
        producer.metadata_props[ROUNDING] = self._roundings[tensors[0]]
        return result if dense.bias is None else builder.emit("Add", [result, dense.bias], dims, ir.DataType.FLOAT)


def _pairs(levels: np.ndarray) -> np.ndarray:
    """Pack 4-bit numbers along the last axis into bytes, the first of two in the lower half."""
    odd = levels.shape[-1] % 2
    even = np.concatenate([levels, np.zeros((*levels.shape[:-1], odd), levels.dtype)], -1)
    return (even[..., ::2] | even[..., 1::2] << 4).astype(np.uint8)


def _signed(levels: np.ndarray) -> np.ndarray:
    return (levels.astype(np.int8) - 8).astype(ml_dtypes.int4)


def rounding_error(weights: np.ndarray, stored: Levels) -> float:
    """Return the norm of the difference that 4 bits make to weights, relative to the norm of the weights."""
    depth, count = weights.shape
    of_weights = of_difference = 0.0
    for columns in _chunks(count, depth):
        part = Levels(stored.levels[columns], stored.scale[columns], stored.zero[columns])
        exact = weights[:, columns].astype(np.float64)
        of_weights += float(np.square(exact).sum())
        of_difference += float(np.square(part.weights(depth) - exact).sum())
    return (of_difference / of_weights) ** 0.5 if of_weights else 0.0


def _chunks(count: int, size: int) -> Iterator[slice]:
    """Yield the parts of some rows or columns of a size that are computed together, while they are in the processor's cache."""
    step = max(1, CHUNK // max(1, size))
    yield from (slice(start, min(start + step, count)) for start in range(0, count, step))


def quantized(weights: np.ndarray, form: Int4) -> Levels:
    """Return weights [K, N] in 4 bits; the scale of each group is the one with the least squared error.

    >>> stored = quantized(np.float32([[2.5], [-1.25]]), Int4())
    >>> stored.levels[0, 0, :3].tolist(), stored.scale.tolist(), stored.zero.tolist()
    ([15, 0, 5], [[0.25]], [[5]])
    >>> stored = quantized(np.float32([[2.5], [-1.25]]), Int4(symmetric=True))
    >>> stored.levels[0, 0, :3].tolist(), stored.scale.tolist(), stored.zero.tolist()
    ([0, 12, 8], [[-0.3125]], [[8]])
    """
    depth, count = weights.shape
    size = form.size(depth)
    groups = -(-depth // size)
    levels = np.empty((count, groups, size), np.uint8)
    scale, zero = np.empty((count, groups), np.float32), np.empty((count, groups), np.uint8)
    for part in _chunks(groups, size * count):
        blocks = np.zeros(((part.stop - part.start) * size, count), np.float32)
        rows = weights[part.start * size : part.stop * size]
        blocks[: len(rows)] = rows
        found = _nearest_levels(blocks.reshape(-1, size, count), form)
        levels[:, part] = found[0].transpose(2, 0, 1)
        scale[:, part], zero[:, part] = found[1].T, found[2].T
    return Levels(levels, scale, zero)


def _nearest_levels(blocks: np.ndarray, form: Int4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the levels that span each block, with the scales of least squared error, and the zero points.

    Levels that span less than the block clip its largest weights. For normally distributed weights the best share of the span
    makes the error 1 % smaller, but that of the largest weights a third larger, and models no better.

    Args:
      blocks: the weights, [groups, size, N]: what is computed of a block runs along N, which lies together in memory.
    """
    least, greatest = np.minimum(blocks.min(1), 0), np.maximum(blocks.max(1), 0)
    if form.symmetric:
        # The largest weight has the level -8, whatever its sign: 7 would leave one of the 16 levels without use.
        span = np.where(greatest > -least, greatest, least) / np.float32(-8)
    else:
        span = greatest / np.float32(15) - least / np.float32(15)
    span[span == 0] = 1
    zero = np.full_like(span, 8) if form.symmetric else np.clip(np.rint(-least / span), 0, 15)
    ratio = blocks / span[:, None]
    levels = np.rint(ratio)
    levels += zero[:, None]
    np.clip(levels, 0, 15, out=levels)
    steps = levels - zero[:, None]
    squares = np.einsum("gsn,gsn->gn", steps, steps)
    # The factor is undefined if all levels are the zero point.
    factor = np.where(squares > 0, np.einsum("gsn,gsn->gn", steps, ratio) / np.where(squares > 0, squares, 1), 1)
    scale = (span * np.where(factor > 0, factor, 1)).astype(np.float32)
    return levels.astype(np.uint8), scale, zero.astype(np.uint8)
