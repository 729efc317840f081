"""Recognise Attention (opset 23): softmax(Q Kᵀ · scale + mask) V, in any order of the axes.

The two matrix products around a Softmax are read as sums over labelled axes, so it does not matter which operand was
transposed, or whether heads are merged, split or grouped (fewer heads of keys than of queries).

These masks are accepted, since the operator gives the same result with them:
1. `where(i >= j, scores, low)` of positions: the causal mask of the operator.
2. `where(mask, scores, low)` with a finite low number: a bias that is 0 or -1e30. A fully masked row then averages over
   all keys, as in the graph. A bias of -inf, or the lowest float, would give zeros there.
3. A bias that is known to be finite, or to be `where(mask, finite, low)`.

A program in half precision whose softmax is in float32 keeps it there: the operator is, too, and its weights are not
rounded before they are multiplied with the values.

Scores are assumed to be smaller than 1e9 in magnitude, so that adding the low number hides them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import Arrangement, atoms, goes_into_transpose, sizes_of
from jaxport.graph.editing import Dim, constant_of, dims_of, integer, is_op, source, static_dims
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle
from jaxport.graph.matching import Axis, Reduced, Seen, look
from jaxport.onnx_facts import SELECTIONS, VIEWS

#: The bias that hides a score, and the largest number that counts as hiding it.
HIDDEN, LOW = -1e30, -1e9


HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def attention(model: ir.Model) -> str:
    """Recognise Attention, in the graph, its subgraphs and its functions."""
    opset = model.opset_imports[""]
    return fuse(
        model, lambda node: _find(node, opset), Anchor(at=("MatMul",), below=("Softmax",), through=(*VIEWS, "Cast"))
    )


@dataclass(frozen=True)
class Axes:
    """The labels of the axes of an attention; None for an absent axis.

    Attributes:
      batch, heads, group: the batch, the heads of keys and values, and the queries that share one of these heads.
      queries, keys: the sequences.
      inner, outer: the vectors of queries and keys, which are multiplied, and those of values, which are averaged.
    """

    batch: Axis
    heads: Axis
    group: Axis
    queries: Axis
    keys: Axis
    inner: Axis
    outer: Axis


@dataclass(frozen=True)
class Scores:
    """Scaled scores before the softmax.

    Attributes:
      product: the scores without scale and mask.
      query, key: the operands of the product.
      scale: the factor.
      mask: what is added to the scores, or None.
      sizes: the size along each axis.
    """

    product: Seen
    query: Seen
    key: Seen
    scale: float
    mask: Mask | None
    sizes: dict[Axis, Dim]


@dataclass(frozen=True)
class Mask:
    """A mask of the scores: `seen` is the bias itself, or a condition that selects one of two numbers."""

    seen: Seen
    numbers: tuple[float, float] | None

    def is_causal(self, axes: Axes) -> bool:
        """Whether it hides exactly the keys after a query's own position."""
        operands = self.seen.operands("GreaterOrEqual") or (self.seen.operands("LessOrEqual") or [])[::-1]
        if len(operands) != 2 or self.numbers is None or not self.numbers[1] <= LOW < self.numbers[0] == 0:
            return False
        along = [[axis for axis in operand.axes if axis is not None] for operand in operands]
        return along == [[axes.queries], [axes.keys]] and all(map(_are_positions, operands))


def _find(node: ir.Node, opset: int) -> Fusion | str | None:
    result = Seen.whole(node.outputs[0])
    operands = None if result is None else result.contracted()
    if result is None or operands is None:
        return None
    for weights, value in (operands, operands[::-1]):
        weights, value = _uncast(weights, narrowed=True), _uncast(value)
        if not weights.is_op("Softmax") or weights.node.graph is not node.graph:
            continue
        keys = weights.axes[integer(weights.node, "axis", -1)]
        if keys not in value.axes or keys in result.axes or keys is None:
            continue
        scores = _scores(look(source(weights.node), weights.axes), keys)
        if isinstance(scores, str) or scores is None:
            return scores
        axes = _axes(scores, value, keys)
        if axes is None:
            return "its axes are not those of batches, heads, queries and keys"
        dtype = node.outputs[0].dtype
        if weights.value.dtype == ir.DataType.FLOAT:
            dtype = weights.value.dtype
        if dtype is ir.DataType.DOUBLE:
            return "the runtime's Attention of DOUBLE computes in single precision"
        return obstacle("Attention", dtype, opset) or _fusion(result, scores, value, axes, weights, dtype)
    return None


# The scores


def _scores(seen: Seen, keys: Axis) -> Scores | str | None:
    masked = _masked(seen)
    if isinstance(masked, str):
        return masked
    plain, mask = masked
    product, scale = _unscaled(plain)
    operands = product.contracted()
    if operands is None:
        return None
    sides = operands if keys in atoms(operands[1].axes) else operands[::-1]
    (query, left), (key, right) = (_unscaled(_uncast(one)) for one in sides)
    scale *= left * right
    if scale <= 0:
        return "its scale is not positive"
    return Scores(product, query, key, scale, mask, sizes_of(product, *operands, query, key))


def _uncast(seen: Seen, *, narrowed: bool = False) -> Seen:
    """Return a half-precision value before its cast to float32, also if it was in float32 before being `narrowed`."""
    while seen.is_op("Cast"):
        before, after = source(seen.node).dtype, seen.value.dtype
        widens = before in HALVES and after == ir.DataType.FLOAT
        if not widens and not (narrowed and before == ir.DataType.FLOAT and after in HALVES):
            break
        seen = look(source(seen.node), seen.axes)
    return seen


def _unscaled(seen: Seen) -> tuple[Seen, float]:
    """Return a value without its constant factors and divisors, and their product."""
    scale = 1.0
    while len(seen.value.uses()) == 1 and not seen.value.is_graph_output():
        divided, factor = seen.operands("Div"), seen.commuted("Mul", lambda operand: operand.scalar)
        if divided is not None and divided[1].scalar:
            seen, scale = divided[0], scale / divided[1].scalar
        elif factor is not None:
            seen, scale = factor[1], scale * factor[0]
        else:
            break
    return seen, scale


def _masked(seen: Seen) -> tuple[Seen, Mask | None] | str:
    """Return the scores without their mask, and the mask."""
    chosen, added = seen.operands("Where"), seen.operands("Add")
    if chosen is not None:
        condition, one, other = chosen
        kept, low = (one, other.scalar) if other.scalar is not None else (other, one.scalar)
        if low is None or not low <= LOW:
            return "what is masked is not a low number"
        return kept, Mask(condition, (0.0, low) if kept is one else (low, 0.0))
    for scores, bias in (added, added[::-1]) if added is not None else ():
        if _unscaled(scores)[0].is_op("MatMul"):
            mask = _bias(bias)
            return "the bias that is added may hide all keys" if mask is None else (scores, mask)
    return seen, None


def _bias(seen: Seen) -> Mask | None:
    """Return the mask if a bias is known to be moderate, or to choose between two numbers."""
    chosen = seen.operands("Where")
    if chosen is not None:
        condition, one, other = chosen[0], chosen[1].scalar, chosen[2].scalar
        if one is not None and other is not None:
            return Mask(condition, (one, other))
    return Mask(seen, None) if _is_bounded(seen.value) else None


def _is_bounded(value: ir.Value) -> bool:
    """Whether a value is a constant of moderate numbers, or gathered from one."""
    while is_op(node := value.producer(), *SELECTIONS):
        value = source(node)
    array = constant_of(value)
    return array is not None and array.dtype.kind == "f" and float(np.abs(array).max(initial=0)) < -HIDDEN


def _are_positions(seen: Seen) -> bool:
    while seen.is_op("Cast"):
        seen = (seen.operands("Cast") or [seen])[0]
    array = constant_of(seen.value)
    if array is not None:
        return array.ndim > 0 and bool((array.ravel() == np.arange(array.size)).all())
    if not seen.is_op("Range"):
        return False
    start, _, step = map(constant_of, seen.node.inputs)
    return start is not None and step is not None and float(start) == 0 and float(step) == 1


# The axes


def _axes(scores: Scores, value: Seen, keys: Axis) -> Axes | None:
    """Return the role of each axis."""
    query, key = atoms(scores.query.axes, scores.key.axes), atoms(scores.key.axes, scores.query.axes)
    values = atoms(value.axes, scores.query.axes)
    inner = Reduced(scores.product.node, len(scores.product.axes) - 1)
    shared = [axis for axis in query if axis in key and axis != inner]
    alone = [axis for axis in query if axis not in key]
    outer = [axis for axis in values if axis not in (*shared, keys)]
    expected = {*shared, keys, inner} == set(key) and {*shared, keys, *outer} == set(values)
    if not expected or len(shared) > 2 or len(alone) > 2 or len(outer) > 1 or inner not in query:
        return None
    single = len(shared) == len(alone) == 1 and len(scores.query.axes) > 2  # one query of one sequence
    if len(shared) == 2:
        batch, heads = shared if isinstance(scores.sizes.get(shared[1]), int) else shared[::-1]
    elif shared and (query[:1] != shared or (single and _are_merged(scores.query, shared[0], alone[0]))):
        batch, heads = None, shared[0]
    else:
        batch, heads = (*shared, None)[0], None
    group = None
    if len(alone) == 2:  # the queries that share a head of keys lie next to it
        group = next(
            (axis for axis in alone if heads is not None and query.index(axis) == query.index(heads) + 1), None
        )
        if group is None:
            return None
    elif len(alone) == 1 and _are_merged(scores.query, heads, alone[0]):  # a single query
        group = alone[0]
    queries = next((axis for axis in alone if axis != group), None)
    return Axes(batch, heads, group, queries, keys, inner, (*outer, None)[0])


def _are_merged(seen: Seen, first: Axis, second: Axis) -> bool:
    """Whether two axes are adjacent parts of one axis of a value."""
    pairs = [pair for axis in seen.axes for pair in itertools.pairwise(atoms([axis]))]
    return first is not None and (first, second) in pairs


def _groups(axes: Axes, along: Axis, heads: list[Axis], vector: Axis, flat: bool) -> list[list[Axis]]:
    """Return the axes of an operand: (batch, sequence, heads and vectors), or (batch, heads, sequence, vectors)."""
    if flat:
        return [[axes.batch], [along], [*heads, vector]]
    return [[axes.batch], heads, [along], [vector]]


def _fusion(
    result: Seen, scores: Scores, value: Seen, axes: Axes, weights: Seen, dtype: ir.DataType | None
) -> Fusion | str:
    sizes = scores.sizes | sizes_of(result, weights, value) | {None: 1}
    many, few = [axes.heads, axes.group], [axes.heads]
    known = static_dims([sizes.get(axis) for axis in (axes.heads, axes.group, axes.inner, axes.outer)])
    if known is None:
        return "the number or size of its heads is not known"
    kv_heads, per_head, *_ = known
    options = []
    for flat in (True, False):
        sides = (
            (scores.query, axes.queries, many, axes.inner),
            (scores.key, axes.keys, few, axes.inner),
            (value, axes.keys, few, axes.outer),
            (result, axes.queries, many, axes.outer),
        )
        arranged = [
            how
            for seen, along, heads, vector in sides
            if (
                how := Arrangement.of(
                    dims_of(seen.value) or (), seen.axes, _groups(axes, along, heads, vector, flat), sizes
                )
            )
        ]
        if len(arranged) == len(sides):
            turned = goes_into_transpose(result.value)
            options.append((sum(a.moves for a in arranged[:3]) + (arranged[3].moves != turned), not flat, arranged))
    causal = scores.mask is not None and scores.mask.is_causal(axes)
    hindrance = None if scores.mask is None or causal else _mask_hindrance(scores.mask, axes, sizes, dtype)
    if not options or hindrance is not None:
        return hindrance or "its shapes cannot be told before it runs"
    _, _, arranged = min(options, key=lambda option: option[:2])
    inputs = [scores.query.value, scores.key.value, value.value]

    def build(builder: Builder) -> ir.Value:
        arranging = zip(arranged[:3], inputs, strict=True)
        operands = [builder.cast(how.apply(builder, builder.now(one)), dtype) for how, one in arranging]
        flat = len(arranged[0].merged) == 3
        attributes: dict[str, Any] = {"q_num_heads": kv_heads * per_head, "kv_num_heads": kv_heads} if flat else {}
        if causal:
            attributes["is_causal"] = 1
        elif scores.mask is not None:
            operands.append(_added(builder, scores.mask, axes, sizes))
        shape = arranged[3].merged
        attended = builder.emit("Attention", operands, shape, dtype, scale=scores.scale, **attributes)
        return arranged[3].revert(builder, builder.cast(attended, result.value.dtype))

    leaves = [*inputs, *([scores.mask.seen.value] if scores.mask is not None else [])]
    return Fusion("Attention", result.value, leaves, build)


# The mask


def _mask_groups(axes: Axes) -> list[list[Axis]]:
    return [[axes.batch], [axes.heads, axes.group], [axes.queries], [axes.keys]]


def _mask_hindrance(mask: Mask, axes: Axes, sizes: dict[Axis, Dim], dtype: ir.DataType | None) -> str | None:
    """Return why the operator cannot take a mask, or None."""
    if dtype is not ir.DataType.FLOAT:
        return "a row that is masked as a whole is known to be right in single precision alone"
    if mask.numbers is not None and not np.isfinite(mask.numbers).all():
        return "a row that is masked with -inf as a whole would not be NaN"
    own = atoms(mask.seen.axes, [axes.heads, axes.group])
    ungrouped = axes.group is not None and (axes.heads in own) != (axes.group in own)
    known = Arrangement.of(dims_of(mask.seen.value) or (), mask.seen.axes, _mask_groups(axes), sizes)
    return "the axes of its mask are others" if ungrouped or known is None else None


def _added(builder: Builder, mask: Mask, axes: Axes, sizes: dict[Axis, Dim]) -> ir.Value:
    """Return a mask as the bias that the operator takes, expanded over all queries and keys."""
    how = Arrangement.of(dims_of(mask.seen.value) or (), mask.seen.axes, _mask_groups(axes), sizes)
    assert how is not None
    value = how.apply(builder, builder.now(mask.seen.value))
    if mask.numbers is not None:
        numbers = [
            builder.constant(np.asarray(max(number, HIDDEN), np.float32), "hidden" if number <= LOW else "seen")
            for number in mask.numbers
        ]
        value = builder.emit("Where", [value, *numbers], how.merged, ir.DataType.FLOAT)
    full = [*how.merged[:2], sizes[axes.queries], sizes[axes.keys]]
    return builder.expanded(value, full)
