"""Choose between a number that hides scores and others once, where a graph does so condition by condition.

    where(padded, low, where(later, low, x))      where(padded | later, low, x)

The result is the same, bit for bit. Masks of transformers are made this way, and a mask of one choice is one that
fusions of attention can read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Dim, begins_at, dims_of, numpy_dtype, source
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.graph.masks import LOW, hiding
from jaxport.graph.matching import Seen, look
from jaxport.onnx_facts import VIEWS

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


@begins_at({"Where"})
def choices(model: ir.Model) -> str:
    """Merge nested choices of one low number, in the graph, its subgraphs and its functions."""
    return fuse(model, _find, Anchor(at=("Where",), below=("Where",), through=(*VIEWS, "Cast")))


@dataclass(frozen=True)
class HidingChoice:
    """What a Where chooses.

    Attributes:
      condition: its condition.
      hides: whether it chooses the low number where the condition holds, and not where it does not.
      low: the number, as a value.
      other: what it chooses elsewhere.
    """

    condition: Seen
    hides: bool
    low: Seen
    other: Seen

    @classmethod
    def of(cls, seen: Seen, casts: Sequence[np.dtype] = (), low: float | None = None) -> HidingChoice | None:
        """Return the choice that a value is of a number, which is one after casts, or else one that hides scores; None
        of others.
        """
        condition, one, other = seen.operands("Where") or (None, None, None)
        if condition is None or one is None or other is None:
            return None
        for part, rest, hides in ((one, other, True), (other, one, False)):
            number = part.scalar if low is not None else hiding(part)
            if number is not None and (number <= LOW if low is None else _cast(number, casts) == low):
                return cls(condition, hides, part, rest)
        return None


def _find(node: ir.Node) -> Fusion | None:
    whole = Seen.whole(node.outputs[0])
    outer = None if whole is None or whole.value.dtype not in FLOATS else HidingChoice.of(whole)
    if whole is None or outer is None:
        return None
    found, casts = [outer], []
    low, dims = outer.low.scalar, dims_of(node.outputs[0])
    while (inner := _behind(found[-1].other, casts, low)) is not None:
        found.append(inner[0])
        casts = inner[1]
    if len(found) == 1 or dims is None or (casts and found[-1].other.scalar is None):
        return None
    if not all(_is_in_order(part) for part in (*(choice.condition for choice in found[1:]), found[-1].other)):
        return None
    result = node.outputs[0]
    leaves = [part.value for choice in found for part in (choice.condition, choice.low)]
    leaves.append(found[-1].other.value)
    return Fusion("Where", result, leaves, lambda builder: _build(builder, found, casts, dims, result.dtype))


def _behind(seen: Seen, casts: Sequence[np.dtype], low: float | None) -> tuple[HidingChoice, list[np.dtype]] | None:
    """Return the choice of a number that is what a value is after casts, and all casts behind it."""
    further = [*casts]
    while seen.is_op("Cast") and seen.value.dtype in FLOATS and source(seen.node).dtype in FLOATS:
        further.insert(0, numpy_dtype(seen.value))
        seen = look(source(seen.node), seen.axes)
    choice = HidingChoice.of(seen, further, low)
    return None if choice is None else (choice, further)


def _build(
    builder: Builder, found: Sequence[HidingChoice], casts: list[np.dtype], dims: list[Dim], dtype: ir.DataType | None
) -> ir.Value:
    conditions = [_over(builder, choice.condition, len(dims)) for choice in found]
    hides = all(choice.hides for choice in found)
    if not hides:  # what is chosen where all of them show it
        conditions = [
            builder.emit("Not", [condition], dims_of(condition), ir.DataType.BOOL) if choice.hides else condition
            for choice, condition in zip(found, conditions, strict=True)
        ]
    joined = functools.reduce(functools.partial(builder.pairwise, "Or" if hides else "And"), conditions)
    low, last = builder.now(found[0].low.value), found[-1].other
    if casts and last.scalar is not None:
        other = builder.constant(np.asarray(_cast(last.scalar, casts), casts[-1]), "seen")
    else:
        other = _over(builder, last, len(dims))
    return builder.emit("Where", [joined, low, other] if hides else [joined, other, low], dims, dtype)


def _cast(number: float, casts: Sequence[np.dtype]) -> float:
    """Return a number after casts."""
    for dtype in casts:
        with np.errstate(over="ignore"):
            number = float(np.asarray(number).astype(dtype))
    return number


def _is_in_order(seen: Seen) -> bool:
    """Whether the axes of a value are in the order of those that it is seen from."""
    axes = [axis for axis in seen.axes if axis is not None]
    return all(isinstance(axis, int) for axis in axes) and axes == sorted(axes)  # type: ignore[type-var]


def _over(builder: Builder, seen: Seen, rank: int) -> ir.Value:
    """Return a value that broadcasts to the result, of one element along the axes between that it does not have."""
    dims = dict(zip(seen.axes, own := dims_of(seen.value) or (), strict=True))
    first = min((axis for axis in seen.axes if isinstance(axis, int)), default=rank)
    return builder.viewed(seen.value, [dims.get(axis, 1) for axis in range(min(first, rank - len(own)), rank)])
