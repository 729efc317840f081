"""Recognise RotaryEmbedding (opset 23): pairs of elements rotated by angles that depend on the position.

    y[i] = x[i] cos[j] - x[p] sin[j],  y[p] = x[p] cos[j] + x[i] sin[j]

However it is written, elements are sums of products: they are computed on symbols, and looked at as a linear function of the elements
of `x`. Pairs are halves, `p = i + n`, or neighbours, `p = i + 1`. The last elements of `x` may be passed on as they are.

The axes are those of batches, positions, heads and vectors, in any order; the tables are of positions, or of positions
and batches. In half precision there may be casts between the operators: the operator computes in the dtype of the
products, and rounds once.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from jaxport.graph.arranging import Arrangement, goes_into_transpose
from jaxport.graph.axes.elements import RULES, Piece, linear_operands, pieces
from jaxport.graph.axes.emission import ElementEmission
from jaxport.graph.axes.sums import ElementSum
from jaxport.graph.axis_groups import axis_groups
from jaxport.graph.editing import Dim, begins_at, dims_of, is_op
from jaxport.graph.facts.forms import ZERO, Form, uniform
from jaxport.graph.facts.knowledge import Knowledge
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle
from jaxport.graph.fusions.scores import HALVES, uncast
from jaxport.graph.matching import Axis, Seen, joined, look
from jaxport.graph.patterns import SUMS
from jaxport.onnx_facts import MOVEMENTS, VIEWS
from jaxport.sizes.sums import SizeSum, size_sum

#: The label of the axis of vectors; the other axes are labelled by position.
VECTOR = 3
#: Values that are looked at between a result and the elements that are rotated.
MOST_VALUES = 64

#: What is between products and a rotated value.
THROUGH = (*VIEWS, *RULES, "Gather", "Slice", "Split")
ANCHOR = Anchor(at=(*SUMS, "Concat", "Reshape", "Where"), below=("MatMul", "Mul"), through=THROUGH)


@begins_at({"MatMul", "Mul"}, set(ANCHOR.at))
def rotary(model: ir.Model) -> str:
    """Recognise RotaryEmbedding, in the graph, its subgraphs and its functions."""
    opset, knowledge = model.opset_imports[""], Knowledge(model)
    return fuse(model, lambda node: _find(node, opset, knowledge), ANCHOR)


Row = tuple[Piece, dict[int, ElementSum]]
"""Elements of vectors, with the factor of each element of `x` that they are computed from, by how far it is away."""


@dataclass(frozen=True)
class Rotation:
    """A rotation of pairs of elements.

    Attributes:
      result: the rotated value; the labels of its axes are their positions.
      x: the operand.
      order: the labels of its axes, the slowest first.
      first: the first elements of pairs.
      cos, sin: the elements of the tables, by their place in `first`.
      interleaved: whether pairs are neighbours instead of halves.
      dtype: the dtype of the products of elements and tables.
    """

    result: ir.Value
    x: ir.Value
    order: Sequence[int]
    first: Piece
    cos: ElementSum
    sin: ElementSum
    interleaved: bool
    dtype: ir.DataType

    @property
    def count(self) -> int:
        """How many elements of a vector are rotated."""
        return 2 * len(self.first.places)


def _find(node: ir.Node, opset: int, knowledge: Knowledge) -> Fusion | str | None:
    result, dims = node.outputs[0], dims_of(node.outputs[0])
    if dims is None or len(dims) != VECTOR + 1 or not isinstance(dims[VECTOR], int) or result.dtype is None:
        return None
    rotations = (_rotation(result, dims, x, knowledge) for x in _candidates(result))
    rotation = next((rotation for rotation in rotations if rotation is not None), None)
    if rotation is None:
        return None
    along = _labels(rotation.cos) | _labels(rotation.sin)
    if not _labels(rotation.cos) & _labels(rotation.sin) >= {VECTOR}:
        return "its angles are those of all pairs"
    along = along - {0, VECTOR} or {axis for axis in (1, 2) if dims[axis] == 1}  # a sequence of length one
    if len(along) != 1:
        return "its angles depend on more than the position"
    return obstacle("RotaryEmbedding", rotation.dtype, opset) or _fusion(rotation, dims, next(iter(along)))


def _candidates(result: ir.Value) -> list[ir.Value]:
    """Return values of which several elements make one of the result, and that have as many; those before views come first."""
    ways, waiting, seen = Counter[ir.Value](), deque([result]), set[ir.Value]()
    multiplies = False
    while waiting and len(seen) < MOST_VALUES:
        value = waiting.popleft()
        if (node := value.producer()) is None or value in seen:
            continue
        seen.add(value)
        operands = linear_operands(node)
        multiplies = multiplies or (bool(operands) and is_op(node, "MatMul", "Mul"))
        for operand in operands:
            ways[operand] += 1 + ways[value] * is_op(node, *MOVEMENTS)
            waiting.append(operand)
    size = _size(result)
    floats = [value for value, count in ways.items() if count > 1 and value.dtype is not None]
    return [value for value in floats if _size(value) == size][::-1] if multiplies else []


def _size(value: ir.Value) -> SizeSum:
    """Return how many elements a value has."""
    return math.prod(map(size_sum, dims_of(value) or ()), start=size_sum(1))


def _labels(total: ElementSum) -> set[int]:
    """Return the axes that a sum depends on."""
    slopes = (form.slopes for leaf in total.leaves() for form in leaf.index)
    return {axis for own in slopes for axis, slope in enumerate(own) if slope != ZERO}


# Recognition


def _rotation(result: ir.Value, dims: Sequence[Dim], x: ir.Value, knowledge: Knowledge) -> Rotation | None:
    """Return the rotation of the elements of a value that another one is; None if it is another function of them."""
    found: list[Row] = []
    begins: list[set[Form]] = []
    for piece in pieces(result, VECTOR, {x}, knowledge):
        own = uniform(size_sum(piece.places.start), len(dims)) + piece.elements.label(VECTOR) * piece.places.step
        factors = {element.place - own: factor for element, factor in (piece.total.linear() or {}).items()}
        numbers = {form.constant.value: factor for form, factor in factors.items()}
        if len({form.slopes for form in factors}) != 1 or len(factors) > 2 or None in numbers:
            return None
        found.append((piece, {number: factor for number, factor in numbers.items() if number is not None}))
        begins.append({*factors})
    base = next((form for form in set.intersection(*begins) if form.constant == ZERO), None) if begins else None
    if base is None or sum(len(piece.places) for piece, _ in found) != dims[VECTOR]:
        return None
    order, paired = _order(x, base, dims), _paired(found)
    dtypes, narrowed = (
        {dtype for piece, _ in found for dtype in getattr(piece.elements, name)} for name in ("products", "narrowed")
    )
    dtype = next(iter(dtypes), None)
    if order is None or paired is None or dtype is None or dtypes | narrowed != {dtype}:
        return None
    rotation = Rotation(result, x, order, *paired, dtype)
    if rotation.count != dims[VECTOR] and x.dtype != dtype and not (x.dtype in HALVES and dtype == ir.DataType.FLOAT):
        return None  # what is passed on would be rounded, too
    return rotation


def _order(x: ir.Value, base: Form, dims: Sequence[Dim]) -> list[int] | None:
    """Return the axes of vectors in the order in which their elements follow one another; None if others are between them."""
    order, stride, left = [VECTOR], size_sum(dims[VECTOR]), {axis for axis in range(VECTOR) if dims[axis] != 1}
    while left:
        axis = next((axis for axis in left if base.slopes[axis] == stride), None)
        if axis is None:
            return None
        left.remove(axis)
        order.insert(0, axis)
        stride = stride * size_sum(dims[axis])
    return order if stride == _size(x) else None


def _paired(found: Sequence[Row]) -> tuple[Piece, ElementSum, ElementSum, bool] | None:
    """Return the first elements of pairs, their tables, and whether pairs are neighbours; None if none are rotated."""
    turned = [each for each in found if len(each[1]) == 2]
    if len(turned) != 2 or any(factors.get(0) != ElementSum.of(1) for _, factors in found if len(factors) == 1):
        return None
    (first, factors), (second, others) = turned
    count, places = len(first.places), (first.places, second.places)
    interleaved = count > 1 and places == (range(0, 2 * count, 2), range(1, 2 * count, 2))
    apart = 1 if interleaved else count
    if not interleaved and places != (range(count), range(count, 2 * count)):
        return None
    if {*factors} != {0, apart} or {*others} != {0, -apart}:
        return None
    cos, sin = factors[0], others[-apart]
    is_turned = others[0] == cos and factors[apart] == sin.scaled(-1) and (cos.number is None or sin.number is None)
    return (first, cos, sin, interleaved) if is_turned else None


# Replacement


def _fusion(rotation: Rotation, dims: list[Dim], sequence: int) -> Fusion | str:
    heads, half = dims[3 - sequence], rotation.count // 2
    sizes: dict[Axis, Dim] = dict(enumerate(dims))
    tables = ElementEmission(
        rotation.first.elements, [[0], [sequence], [VECTOR]], sizes | {VECTOR: half}, rotation.dtype
    )
    x, options = _seen(rotation, dims), []
    if x is None:
        return "its vectors are not in one piece"
    for flat in (True, False):
        groups = [[0], [sequence], [3 - sequence, VECTOR]] if flat else [[0], [3 - sequence], [sequence], [VECTOR]]
        before = Arrangement.of(dims_of(x.value) or (), x.axes, groups, sizes)
        result = Arrangement.of(dims, range(4), groups, sizes)
        if before is not None and result is not None:
            moves = before.moves + (result.moves != goes_into_transpose(rotation.result))
            only_views = 1 in (dims[sequence], dims[3 - sequence])  # a single step, or a single head
            options.append((0 if only_views else moves, not flat, before, result))
    known = [leaf for table in (rotation.cos, rotation.sin) for leaf in tables.leaves(table)]
    if not isinstance(heads, int) or None in known or not options:
        return "its shapes cannot be told before it runs"
    _, _, before, result = min(options, key=lambda option: option[:2])

    def build(builder: Builder) -> ir.Value:
        dtype, shape = rotation.dtype, [dims[0], dims[sequence], half]
        caches = [
            builder.expanded(builder.cast(tables.emit(builder, table), dtype), shape)
            for table in (rotation.cos, rotation.sin)
        ]
        attributes: dict[str, Any] = {"interleaved": 1} if rotation.interleaved else {}
        attributes |= {"rotary_embedding_dim": rotation.count} if rotation.count != dims[VECTOR] else {}
        attributes |= {"num_heads": heads} if len(before.merged) == 3 or rotation.count != dims[VECTOR] else {}
        arranged = builder.cast(before.apply(builder, builder.now(x.value)), dtype)
        turned = builder.emit("RotaryEmbedding", [arranged, *caches], before.merged, dtype, **attributes)
        return result.revert(builder, builder.cast(turned, rotation.result.dtype))

    leaves = [x.value, *(leaf for leaf in known if leaf is not None)]
    return Fusion("RotaryEmbedding", rotation.result, leaves, build, ignored=("Shape",))


def _seen(rotation: Rotation, dims: Sequence[Dim]) -> Seen | None:
    """Return what is rotated, before all views and casts that it is seen through."""
    value: ir.Value | None = rotation.x
    order = [dims[axis] for axis in rotation.order]
    while value is not None:
        groups = axis_groups(dims_of(value) or (), order) or ()
        if groups and all(len(before) == 1 or not after for before, after in groups):
            axes = {axis: joined([rotation.order[at] for at in after]) if len(after) > 1 else rotation.order[after[0]]
                    for (axis,), after in groups if after}  # fmt: skip
            return uncast(look(value, [axes.get(axis) for axis in range(len(dims_of(value) or ()))]))
        node = value.producer()
        value = node.inputs[0] if node is not None and is_op(node, "Reshape") else None
    return None
