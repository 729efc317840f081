"""The masks of an attention: which scores they hide, and whether that is known to be those after a query's own
position.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, dims_of, is_op, source
from jaxport.graph.facts.forms import Band, unit
from jaxport.graph.facts.knowledge import Knowledge
from jaxport.graph.matching import Axis, Part, Seen
from jaxport.onnx_facts import SELECTIONS

#: The bias that hides a score, and the largest number that counts as hiding it.
HIDDEN, LOW = -1e30, -1e9


@dataclass(frozen=True)
class Axes:
    """The labels of the axes of an attention; None for an absent axis.

    Attributes:
      batch, heads, group: the batch, the heads of keys and values, and the queries that share one of these heads.
      queries, keys: the sequences.
      inner, outer: the vectors of queries and keys, which are multiplied, and those of values, which are averaged.
      windows: what attends apart beside batches and heads, such as windows of an image.
      are_windows_heads: whether windows are merged with the heads, next to which they are, and not with the batch.
    """

    batch: Axis
    heads: Axis
    group: Axis
    queries: Axis
    keys: Axis
    inner: Axis
    outer: Axis
    windows: Axis = None
    are_windows_heads: bool = False

    @property
    def batches(self) -> list[Axis]:
        """The axes that are merged into the batch."""
        return [self.batch] if self.windows is None or self.are_windows_heads else [self.batch, self.windows]

    @property
    def all_heads(self) -> list[Axis]:
        """The axes that are merged into the heads of keys and values."""
        return [self.windows, self.heads] if self.are_windows_heads else [self.heads]

    @property
    def operands(self) -> list[tuple[Axis, list[Axis], Axis]]:
        """The sequence, the heads and the vectors of the queries, the keys, the values and the result."""
        many, few = [*self.all_heads, self.group], self.all_heads
        return [
            (self.queries, many, self.inner),
            (self.keys, few, self.inner),
            (self.keys, few, self.outer),
            (self.queries, many, self.outer),
        ]

    @property
    def are_merged(self) -> bool:
        """Whether the heads are in the axis of the batch."""
        parts = [part for part in (self.batch, self.heads) if isinstance(part, Part)]
        return len(parts) == 2 and parts[0].whole == parts[1].whole

    @property
    def scores(self) -> list[list[Axis]]:
        """The axes of the scores."""
        return [self.batches, [*self.all_heads, self.group], [self.queries], [self.keys]]


@dataclass(frozen=True)
class Mask:
    """A mask of the scores: `seen` is a bias, or a condition that selects one of two numbers to be added."""

    seen: Seen
    numbers: tuple[float, float] | None

    def is_causal(self, axes: Axes, known: Knowledge) -> bool:
        """Whether it hides exactly the keys after a query's own position."""
        if self.kept is not None:
            return self._is_lower_triangle(axes)
        band = self.visible(known)
        if band is None or not {axes.queries, axes.keys} <= {*self.seen.axes} or None in (axes.queries, axes.keys):
            return False
        rank = len(self.seen.axes)
        query, key = (unit(self.seen.axes.index(axis), rank) for axis in (axes.queries, axes.keys))
        return band.conditions == {query - key}

    def visible(self, known: Knowledge) -> Band | None:
        """Return where it hides no scores, and adds nothing to them, as a function of positions; None if that is not
        known.
        """
        facts = known.of(self.seen.value)
        band, numbers = facts.band, self.numbers
        if numbers is None and facts.choice is not None:
            band, *numbers = facts.choice
        if band is None or numbers is None:
            return None
        inside, outside = map(float, numbers)
        if inside == 0 and (band.is_always or outside <= LOW):
            return band
        return band.inverse() if outside == 0 and (band.is_never or inside <= LOW) else None

    @functools.cached_property
    def kept(self) -> np.ndarray | None:
        """Which scores it does not hide, along its axes; None if that is not known before the model runs."""
        array = constant_of(self.seen.value)
        if array is None or self.numbers is None:
            return None if array is None else array > _lowest(array.dtype)
        return np.where(array, *self.numbers) > LOW

    def _is_lower_triangle(self, axes: Axes) -> bool:
        array = constant_of(self.seen.value)
        if array is None or self.kept is None or None in (axes.queries, axes.keys):
            return False
        if not {axes.queries, axes.keys} <= {*self.seen.axes}:
            return False
        added = np.where(array, *self.numbers) if self.numbers is not None else array
        places = [self.seen.axes.index(axis) for axis in (axes.queries, axes.keys)]
        kept = np.moveaxis(self.kept, places, (-2, -1))
        return bool((kept == np.tri(*kept.shape[-2:], dtype=bool)).all()) and not added[self.kept].any()

    def keeps_some(self, axes: Axes, known: Knowledge) -> bool:
        """Whether each query is known to keep a key."""
        if axes.keys not in self.seen.axes:
            return False
        place = self.seen.axes.index(axes.keys)
        if self.kept is not None:
            return bool(self.kept.any(axis=place).all())
        band, dims = self.visible(known), dims_of(self.seen.value)
        return band is not None and dims is not None and band.keeps_some(place, dims)


def additive(bias: Seen) -> Mask | None:
    """Return the mask that a bias is if it is known to be moderate, or to choose between two numbers."""
    chosen = bias.operands("Where")
    if chosen is not None:
        condition, one, other = chosen[0], *map(hiding, chosen[1:])
        if one is not None and other is not None:
            return Mask(condition, (one, other))
    return Mask(bias, None) if _is_bounded(bias.value) else None


def _lowest(dtype: np.dtype) -> float:
    """Return the largest number of a dtype that counts as hiding a score."""
    return float(np.finfo(np.float16).min) if dtype == np.float16 else LOW


def hiding(seen: Seen) -> float | None:
    """Return the number that a value is, or None; the lowest float16, which is all that the type has to hide with, as
    `HIDDEN`.
    """
    number = seen.scalar
    is_lowest = seen.value.dtype is ir.DataType.FLOAT16 and number == float(np.finfo(np.float16).min)
    return HIDDEN if is_lowest else number


def _is_bounded(value: ir.Value) -> bool:
    """Whether a value is a constant of moderate numbers, or gathered from one."""
    while is_op(node := value.producer(), *SELECTIONS):
        value = source(node)
    array = constant_of(value)
    return array is not None and array.dtype.kind == "f" and float(np.abs(array).max(initial=0)) < -HIDDEN
