"""Weights in 4 bits: their groups, how they are rounded, and how they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxport.errors import InvalidArgument

GROUPS = (16, 32, 64, 128, 256)
"""The sizes of groups that runtimes have kernels for."""
CHUNK = 2**18
"""The number of weights that are rounded at a time: so many as stay in the processor's cache."""


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
        """Return the size of the groups of a column of `depth` weights: the shortest one that holds all of it, or
        `group`.

        >>> from jaxport import Int4
        >>> Int4(group=128).size(40), Int4(group=128).size(400)
        (64, 128)
        """
        return min(self.group, next((size for size in GROUPS if size >= depth), self.group))

    def bits(self, depth: int) -> int:
        """Return the number of bits of a column of `depth` weights, with its scales and zero points.

        >>> from jaxport import Int4
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


def pairs(levels: np.ndarray) -> np.ndarray:
    """Pack 4-bit numbers along the last axis into bytes, the first of two in the lower half."""
    odd = levels.shape[-1] % 2
    even = np.concatenate([levels, np.zeros((*levels.shape[:-1], odd), levels.dtype)], -1)
    return (even[..., ::2] | even[..., 1::2] << 4).astype(np.uint8)


def signed(levels: np.ndarray) -> np.ndarray:
    """Return levels from 0 to 15 as signed numbers of 4 bits."""
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
    """Yield the parts of some rows or columns of a size that are computed together, while they are in the processor's
    cache.
    """
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

    Levels that span less than the block clip its largest weights. For normally distributed weights the best share of
    the span makes the error 1 % smaller, but that of the largest weights a third larger, and models no better.

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
