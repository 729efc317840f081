"""Reorder and regroup the axes of a value by their labels."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from jaxport.graph.axis_groups import product, quotient
from jaxport.graph.editing import Dim, dims_of, is_op, source
from jaxport.graph.fusing import Builder, is_view
from jaxport.graph.matching import Axis, Joined, Part, Reduced, Seen, parts_of
from jaxport.onnx_facts import RESHAPING


def atoms(axes: Iterable[Axis], split: Iterable[Axis] = ()) -> list[Axis]:
    """Return the labels of axes with merged ones split, and those of which `split` has a part split into all their
    parts.
    """
    counts = {part.whole: part.count for part in _apart(split) if isinstance(part, Part)}
    labels: list[Axis] = []
    for axis in _apart(axes):
        labels.extend(parts_of(axis, counts[axis]) if axis in counts else [axis])
    return [axis for axis in labels if axis is not None]


def _apart(axes: Iterable[Axis]) -> Iterator[Axis]:
    for axis in axes:
        yield from _apart(axis.parts) if isinstance(axis, Joined) else (axis,)


def sizes_of(*seen: Seen) -> dict[Axis, Dim]:
    """Return the size along each label, including those that a matrix product sums over."""
    sizes: dict[Axis, Dim] = {}
    for one in seen:
        sizes.update(one.sizes)
        if one.is_op("MatMul"):
            left = dims_of(source(one.node))
            if left:
                sizes[Reduced(one.node, len(one.axes) - 1)] = left[-1]
    return with_parts(sizes)


def with_parts(sizes: dict[Axis, Dim]) -> dict[Axis, Dim]:
    """Return sizes, with those of parts that the sizes of wholes and of their other parts give."""
    for label in list(sizes):  # the size of the whole and one of two parts give the other
        if isinstance(label, Part) and label.count == 2 and label.whole in sizes:
            other = Part(label.whole, 1 - label.place, 2)
            whole, known = sizes[label.whole], sizes[label]
            rest = quotient(whole, known) if other not in sizes else None
            if rest is not None:
                sizes[other] = rest
        if isinstance(label, Joined):  # and so do the sizes of all parts but one
            absent, whole = [part for part in label.parts if part not in sizes], sizes[label]
            others = [sizes[part] for part in label.parts if part in sizes]
            if len(absent) == 1 and isinstance(whole, int) and all(isinstance(size, int) for size in others):
                sizes[absent[0]] = whole // math.prod(size for size in others if isinstance(size, int))
    return sizes


@dataclass(frozen=True)
class Arrangement:
    """A split, a permutation and a merge of a value's axes.

    Attributes:
      dims: the shape of the value.
      apart: its shape with all axes split.
      order: the permutation of the split axes.
      merged: the final shape.
      spread: the shape of what is merged, where that is broadcast before; None if it is not.
    """

    dims: tuple[Dim, ...]
    apart: tuple[Dim, ...]
    order: tuple[int, ...]
    merged: tuple[Dim, ...]
    spread: tuple[Dim, ...] | None = None

    @classmethod
    def of(
        cls,
        dims: Sequence[Dim],
        axes: Sequence[Axis],
        groups: Sequence[Sequence[Axis]],
        sizes: Mapping[Axis, Dim],
        *,
        broadcasts: bool = False,
    ) -> Arrangement | None:
        """Return the arrangement that merges axes into groups; an empty group gives an axis of size one.

        If it `broadcasts`, a value that has some axes of a group is repeated along the others. Return None if an axis
        is in no group, a size is unknown, or a shape cannot be written as a constant.
        """
        wanted = [label for group in groups for label in group]
        own = atoms(axes, wanted)
        if any(label not in wanted or label not in sizes for label in own) or len(set(own)) != len(own):
            return None
        present = [[label for label in group if label in own] for group in groups]
        absent: list[Axis] = []
        if broadcasts:
            partial = [bool(one) and len(one) < len(group) for one, group in zip(present, groups, strict=True)]
            whole = [[label for label in group if label is not None] for group in groups]
            present = [every if is_part else one for is_part, every, one in zip(partial, whole, present, strict=True)]
            absent = [label for group in present for label in group if label not in own]
            if any(label not in sizes for label in absent):
                return None
        own += absent
        order = tuple(own.index(label) for group in present for label in group)
        merged = tuple(product([sizes[label] for label in group]) for group in present)
        apart = tuple(1 if label in absent else sizes[label] for label in own)
        spread = tuple(sizes[label] for group in present for label in group) if absent else None
        arrangement = cls(tuple(dims), apart, order, merged, spread)
        steps = [*arrangement._steps(), *arrangement._steps_back()]
        return arrangement if all(is_view(*step) or target(*step) is not None for step in steps) else None

    @property
    def turned(self) -> tuple[Dim, ...]:
        """Return the shape with all axes split, in their new order."""
        return tuple(self.apart[axis] for axis in self.order)

    @property
    def moves(self) -> bool:
        """Whether any axis changes its position."""
        return list(self.order) != sorted(self.order)

    @functools.cached_property
    def goes_apart(self) -> bool:
        """Whether the axes are split before they are merged: to move or repeat them, or because no constant describes
        both at once.
        """
        steps = (self.dims, self.merged), (self.merged, self.dims)
        return (
            self.moves
            or self.spread is not None
            or not all(is_view(*step) or target(*step) is not None for step in steps)
        )

    def _steps(self) -> list[tuple[tuple[Dim, ...], tuple[Dim, ...]]]:
        if not self.goes_apart:
            return [(self.dims, self.merged)]
        return [(self.dims, self.apart), (self.spread or self.turned, self.merged)]

    def _steps_back(self) -> list[tuple[tuple[Dim, ...], tuple[Dim, ...]]]:
        return [(after, before) for before, after in reversed(self._steps())]

    def apply(self, builder: Builder, value: ir.Value) -> ir.Value:
        """Return the value in the new arrangement."""
        if not self.goes_apart:
            return reshaped(builder, value, self.merged)
        value = builder.transposed(reshaped(builder, value, self.apart), self.order)
        if self.spread is not None:
            value = builder.expanded(value, self.spread)
        return reshaped(builder, value, self.merged)

    def revert(self, builder: Builder, value: ir.Value) -> ir.Value:
        """Return a value that is in the new arrangement in the old one."""
        if not self.goes_apart:
            return reshaped(builder, value, self.dims)
        value = reshaped(builder, value, self.turned)
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return reshaped(builder, builder.transposed(value, back), self.dims)


def target(before: Sequence[Dim], after: Sequence[Dim]) -> list[int] | None:
    """Return the constant operand of a Reshape to a shape, or None if no constant describes it.

    >>> target(["B", "T", 4, 8], ["B", "T", 32]), target(["B", 4, "T"], ["B*T", 4])
    ([0, 0, 32], [-1, 4])
    """
    if 0 in after or 0 in before:
        return None
    copied = [i < len(before) and before[i] == d for i, d in enumerate(after)]
    vector = [d if isinstance(d, int) else 0 if same else -1 for d, same in zip(after, copied, strict=True)]
    return vector if vector.count(-1) <= 1 else None


def reshaped(builder: Builder, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
    """Return a value reshaped to some dims; the value itself if it has them."""
    old = dims_of(value)
    if old is None or old == list(dims):
        return value
    if is_view(old, dims):
        return builder.viewed(value, dims)
    vector = builder.integers(target(old, dims) or [], "shape")
    return builder.emit("Reshape", [value, vector], dims, value.dtype)


def goes_into_transpose(value: ir.Value) -> bool:
    """Whether the only use of a value is a Transpose, perhaps behind a Reshape."""
    while len(value.uses()) == 1 and not value.is_graph_output():
        ((user, _),) = value.uses()
        if is_op(user, "Transpose"):
            return True
        if not is_op(user, *RESHAPING):
            return False
        value = user.outputs[0]
    return False
