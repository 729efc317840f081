"""Recognise attention: softmax(Q Kᵀ · scale + biases, masked) V, in any order of the axes.

The two matrix products around a Softmax are read as sums over labelled axes, so it does not matter which operand was
transposed, or whether heads are merged, split or grouped (fewer heads of keys than of queries).

`recognized` tells what a graph spells out; `attention` replaces it by the operator Attention (opset 23). These masks
are accepted, since the operator gives the same result with them:
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
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import Arrangement, atoms, goes_into_transpose, sizes_of, with_parts
from jaxport.graph.axis_groups import quotient
from jaxport.graph.editing import Dim, begins_at, constant_of, dims_of, integers, is_op, is_weight, static_dims
from jaxport.graph.facts.knowledge import Knowledge
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle
from jaxport.graph.fusions.scores import uncapped, uncast, unrounded, unscaled, weighed_by
from jaxport.graph.masks import HIDDEN, LOW, Axes, Mask, additive, hiding
from jaxport.graph.matching import Axis, Part, Reduced, Seen, joined, parts_of
from jaxport.onnx_facts import VIEWS

Groups = Callable[[list[Axis], Axis, list[Axis], Axis], Sequence[Sequence[Axis]]]
"""Returns the axes of an operand, given its axes of batches, positions, heads and vectors."""

#: The product that ends an attention.
ANCHOR = Anchor(at=("MatMul",), below=("Softmax",), through=(*VIEWS, "Cast", "Slice", "Where"))


@begins_at({"MatMul"}, {"Softmax"})
def attention(model: ir.Model) -> str:
    """Replace attention by the operator Attention, in the graph, its subgraphs and its functions."""
    opset, known = model.opset_imports[""], Knowledge(model, are_finite=False)

    def find(node: ir.Node) -> Fusion | str | None:
        whole = recognized(node)
        if not isinstance(whole, Attended):
            return whole
        return behind_views(node, whole, lambda one: either(one, lambda one: _fusion(one, opset, known)))

    return fuse(model, find, ANCHOR)


@dataclass(frozen=True)
class Scores:
    """Scaled scores before the softmax.

    Attributes:
      product: the scores without scale and masks.
      query, key: the operands of the product.
      scale: the factor.
      masks: the conditions that replace scores by low numbers.
      biases: what is added to the scores before.
      softcap: the largest size of a score before that, which a hyperbolic tangent bounds; zero if nothing does.
      factor: what the product is multiplied with beside the scale, the same for all keys: a temperature of each head.
      hidden_rows: see `Attended`.
    """

    product: Seen
    query: Seen
    key: Seen
    scale: float
    masks: tuple[Mask, ...]
    biases: tuple[Seen, ...]
    softcap: float = 0.0
    factor: Seen | None = None
    hidden_rows: str | None = None


@dataclass(frozen=True)
class Attended:
    """An attention.

    Attributes:
      operands: the queries, the keys, the values and the result.
      axes: the labels of all axes.
      sizes: the size along each.
      scale: the factor of the scores.
      masks: the conditions that replace scores by low numbers.
      biases: what is added to the scores before.
      weights: the dtype of the softmax.
      is_causal: whether keys after a query's own position are hidden, whatever the masks are.
      is_guarded: whether a row that is masked as a whole gives zeros.
      softcap: the largest size of a score before it is hidden, which a hyperbolic tangent bounds; zero if nothing does.
      sink: a further score for each head, which takes its share of the softmax and has no value.
      factor: what the scores are multiplied with beside the scale, before biases and masks: the same for all keys.
      hidden_rows: why a row that is masked as a whole is another one than if masks replaced the scores last; None if it
        is not.
    """

    operands: tuple[Seen, Seen, Seen, Seen]
    axes: Axes
    sizes: Mapping[Axis, Dim]
    scale: float
    masks: tuple[Mask, ...] = ()
    biases: tuple[Seen, ...] = ()
    weights: ir.DataType | None = None
    is_causal: bool = False
    is_guarded: bool = False
    softcap: float = 0.0
    sink: Seen | None = None
    factor: Seen | None = None
    hidden_rows: str | None = None

    @property
    def result(self) -> Seen:
        """What it computes."""
        return self.operands[3]

    @property
    def ungrouped(self) -> Attended:
        """It, with queries, keys and values seen through fewer views (see `Seen.ungrouped`)."""
        query, key, value, result = self.operands
        return replace(self, operands=(query.ungrouped, key.ungrouped, value.ungrouped, result))

    @property
    def leaves(self) -> list[ir.Value]:
        """The values that it is computed from."""
        further = [seen for seen in (self.sink, self.factor) if seen is not None]
        return [
            seen.value for seen in (*self.operands[:3], *(mask.seen for mask in self.masks), *self.biases, *further)
        ]

    @property
    def heads(self) -> tuple[int, int] | None:
        """The number of heads of queries, and of keys; None unless these and the sizes of vectors are known."""
        axes = (self.axes.group, self.axes.inner, self.axes.outer, *self.axes.all_heads)
        known = static_dims([self.sizes.get(axis) for axis in axes])
        return None if known is None else (known[0] * math.prod(known[3:]), math.prod(known[3:]))

    def arranged(self, groups: Groups) -> list[Arrangement] | None:
        """Return how queries, keys, values and the result get axes of these groups; None if one of them cannot."""
        pairs = zip(self.operands, self.axes.operands, strict=True)
        known = [how for seen, own in pairs if (how := self._arrangement(seen, groups(self.axes.batches, *own)))]
        return known if len(known) == len(self.operands) else None

    def over_scores(self, seen: Seen) -> Arrangement | None:
        """Return how a mask gets the axes of the scores, of one element where it has none; None if it cannot."""
        heads, group = self.axes.heads, self.axes.group
        own = atoms(seen.axes, [heads, group])
        is_partial = None not in (heads, group) and (heads in own) != (group in own)
        if is_partial:
            return None
        parts = {part.whole: part.count for part in own if isinstance(part, Part)}  # windows of the batch, for example
        apart = [
            [part for axis in group for part in (parts_of(axis, parts[axis]) if axis in parts else [axis])]
            for group in self.axes.scores
        ]
        how = self._arrangement(seen, apart, broadcasts=True)
        return how if how is None or all(map(self._is_told, how.spread or ())) else None

    def _is_told(self, size: Dim) -> bool:
        """Whether a size is a number, or a part of that of an operand of the last node, from which it is read."""
        node = self.result.value.producer()
        owns = [own for value in (() if node is None else node.inputs) for own in dims_of(value) or ()]
        return isinstance(size, int) or any(isinstance(quotient(own, size), int) for own in owns)

    def _arrangement(
        self, seen: Seen, groups: Sequence[Sequence[Axis]], *, broadcasts: bool = False
    ) -> Arrangement | None:
        sizes = self.sizes if not broadcasts else with_parts({**seen.sizes, **self.sizes})
        return Arrangement.of(dims_of(seen.value) or (), seen.axes, groups, sizes, broadcasts=broadcasts)


def either(whole: Attended, fusion: Callable[[Attended], Fusion | str]) -> Fusion | str:
    """Return the fusion of an attention, or else of what its operands are through fewer views; or why there is none."""
    found = fusion(whole)
    if isinstance(found, Fusion):
        return found
    further = fusion(whole.ungrouped)
    return further if isinstance(further, Fusion) else found


def behind_views(
    node: ir.Node, whole: Attended, fusion: Callable[[Attended], Fusion | str | None]
) -> Fusion | str | None:
    """Return the fusion of the attention that a product ends; where its batch has the heads, that of a view which tells
    them apart.
    """
    found = fusion(whole)
    if isinstance(found, Fusion) and not whole.axes.are_merged:
        return found
    seen = [recognized(node, view) for view in _views(node.outputs[0])]
    further = [fusion(one) for one in seen if isinstance(one, Attended)]
    return next((one for one in further[::-1] if isinstance(one, Fusion)), found)


def _views(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the views of a value that nothing else reads, the nearest first."""
    while not value.is_graph_output():
        users = [user for user, _ in value.uses() if not is_op(user, "Shape")]
        if len(users) != 1 or not is_op(user := users[0], *VIEWS) or user.inputs[0] is not value:
            return
        (value,) = user.outputs
        yield value


def recognized(node: ir.Node, view: ir.Value | None = None) -> Attended | str | None:
    """Return the attention that a product ends, the reason why a similar computation is none, or None.

    Args:
      node: the product.
      view: a view of its result, which is the result of the attention.
    """
    found = _recognized(node, view, lambda seen: seen)
    # Windows that go to the batch are seen as parts of two axes, where the views before them belong to the projections.
    return found if isinstance(found, Attended) else _recognized(node, view, lambda seen: seen.ungrouped) or found


def _recognized(node: ir.Node, view: ir.Value | None, through: Callable[[Seen], Seen]) -> Attended | str | None:
    result = Seen.whole(node.outputs[0] if view is None else view)
    operands = None if result is None or result.value is not node.outputs[0] else result.contracted()
    if result is None or operands is None:
        return None
    for weights, value in (operands, operands[::-1]):
        weights, value = unrounded(weights), through(uncast(value))
        weights, is_guarded = _unguarded(weights)
        weighed = weighed_by(weights)
        if weighed is None or weighed.node.graph is not node.graph:
            continue
        keys = weighed.keys
        if keys not in value.axes or keys in result.axes or keys is None:
            continue
        scores = _scores(weighed.scores, keys)
        if isinstance(scores, str) or scores is None:
            return scores
        scores = replace(scores, query=through(scores.query), key=through(scores.key))
        sizes = sizes_of(scores.product, *(scores.product.contracted(is_whole=True) or ()), scores.query, scores.key)
        axes = _axes(scores, sizes, value, keys, result)
        if axes is None:
            return "its axes are not those of batches, heads, queries and keys"
        sizes = sizes | sizes_of(result, weights, value) | {None: 1}
        own = result.along[:1]
        sides, scale, dtype = (
            (scores.query, scores.key, value, Seen(result.entry, own[0][0], result.entry, own)),
            scores.scale,
            weights.value.dtype,
        )
        sink = weighed.sink
        if sink is not None and not {*sink.axes} <= {axes.heads, axes.group, None, *joined_axes(axes)}:
            return "its sinks differ between positions"
        return Attended(
            sides,
            axes,
            sizes,
            scale,
            scores.masks,
            scores.biases,
            dtype,
            is_guarded=is_guarded,
            softcap=scores.softcap,
            sink=sink,
            factor=scores.factor,
            hidden_rows=scores.hidden_rows,
        )
    return None


def _unguarded(weights: Seen) -> tuple[Seen, bool]:
    """Return `x` of `where(isnan(x), 0, x)`, and whether there was such a guard."""
    chosen = weights.operands("Where")
    if chosen is not None:
        condition, zero, other = chosen
        tested = condition.operands("IsNaN")
        if tested is not None and (tested[0].value, tested[0].axes) == (other.value, other.axes) and zero.scalar == 0:
            return other, True
    return weights, False


def joined_axes(axes: Axes) -> list[Axis]:
    """Return the labels of the axis that the heads and their queries are merged into."""
    both = [axes.heads, axes.group]
    return [] if None in both else [joined(both)]


# The scores


def _scores(seen: Seen, keys: Axis) -> Scores | str | None:
    masks, behind, hidden_rows = [], [], None
    while True:
        if (outside := _outside(seen, keys)) is not None:
            seen, added, hidden_rows = outside
            behind += added
            continue
        if (chosen := unrounded(seen).operands("Where")) is None:
            break
        condition, one, other = chosen
        seen, low = (one, hiding(other)) if other.scalar is not None else (other, hiding(one))
        if low is None or not low <= LOW:
            return "what is masked is not a low number"
        masks.append(Mask(condition, (0.0, low) if seen is one else (low, 0.0)))
    summed, biases = _unbiased(seen, keys) or (seen, ())
    hidden = _hidden_before_scale(summed, keys)
    if isinstance(hidden, str):
        return hidden
    plain, factor, further = hidden or (summed, 1.0, ())
    masks += further
    bounded, softcap = uncapped(plain)
    scaled, scale = unscaled(bounded)
    scale *= (softcap or 1.0) * factor
    product, temperature, further_scale = _unfactored(unrounded(scaled), keys)
    scale *= further_scale
    operands = product.contracted(is_whole=True)
    if operands is None:
        return None
    sides = operands if keys in atoms(operands[1].axes) else operands[::-1]
    (query, left), (key, right) = map(unscaled, sides)
    scale *= left * right
    if scale <= 0:
        return "its scale is not positive"
    return Scores(
        product, query, key, scale, tuple(masks), (*biases, *behind), softcap * factor, temperature, hidden_rows
    )


def _outside(seen: Seen, keys: Axis) -> tuple[Seen, list[Seen], str] | None:
    """Return masked scores without what is done to them: an addition, or a limit; what is added, and what this
    changes.
    """
    limit = unrounded(seen).commuted("Max", lambda operand: (number := operand.scalar) is not None and number <= LOW)
    if limit is not None:
        return limit[1], [], "its scores are limited, those that a mask hides, too"
    terms = unrounded(seen).operands("Add") if _unbiased(seen, keys) is None else None
    for term, other in zip(terms or (), (terms or ())[::-1], strict=True):
        numbers = [part.scalar for part in (unrounded(term).operands("Where") or ())[1:]]
        if any(number is not None and number <= LOW for number in numbers) and None in numbers:
            return term, [unrounded(other)], "what is added to its scores is added to those that a mask hides, too"
    return None


def _unfactored(scaled: Seen, keys: Axis) -> tuple[Seen, Seen | None, float]:
    """Return a product without a factor that is the same for all keys, such as a learned temperature, that, and the
    scale below.
    """
    factors = scaled.operands("Mul") or []
    for inner, factor in zip(factors, factors[::-1], strict=True):
        bare, scale = unscaled(inner)
        product = unrounded(bare)
        if product.is_op("MatMul") and keys not in atoms(factor.axes):
            return product, factor, scale
    return scaled, None, 1.0


def _hidden_before_scale(seen: Seen, keys: Axis) -> tuple[Seen, float, tuple[Mask, ...]] | str | None:
    """Return the scores, the factor and the masks of `(scores + mask) * factor`; or why they are not masks; None of any
    other value.
    """
    total, factor = unscaled(seen)
    parts = _unbiased(total, keys) if factor != 1 and unrounded(total).operands("Add") is not None else None
    if parts is None:
        return None
    masks = []
    for mask in map(additive, parts[1]):
        numbers = (0.0,) if mask is None or mask.numbers is None else mask.numbers
        if mask is None or max(numbers) != 0 or not min(numbers) * factor <= LOW:
            return "what is added to its scores is scaled with them"
        masks.append(replace(mask, numbers=(numbers[0] * factor, numbers[-1] * factor)))
    return parts[0], factor, tuple(masks)


def _unbiased(seen: Seen, keys: Axis) -> tuple[Seen, tuple[Seen, ...]] | None:
    """Return the product that a value is a sum with, perhaps scaled, perhaps after a sum, and the other terms; None if
    it has none.
    """
    if _unfactored(unrounded(unscaled(uncapped(seen)[0])[0]), keys)[0].is_op("MatMul"):
        return seen, ()
    total, factor = unscaled(seen)
    if factor != 1 and unrounded(total).operands("Add") is not None and _unbiased(total, keys) is not None:
        return seen, ()
    terms = unrounded(seen).operands("Add") or []
    for term, bias in zip(terms, terms[::-1], strict=True):
        inner = _unbiased(term, keys)
        if inner is not None:
            return inner[0], (*inner[1], unrounded(bias))
    return None


# The axes


def _axes(scores: Scores, sizes: Mapping[Axis, Dim], value: Seen, keys: Axis, result: Seen) -> Axes | None:
    """Return the role of each axis."""
    query, key = atoms(scores.query.axes, scores.key.axes), atoms(scores.key.axes, scores.query.axes)
    values = atoms(value.axes, scores.query.axes)
    inner = Reduced(scores.product.node, len(scores.product.axes) - 1)
    shared = [axis for axis in query if axis in key and axis != inner]
    alone = [axis for axis in query if axis not in key]
    outer = [axis for axis in values if axis not in (*shared, keys)]
    expected = {*shared, keys, inner} == set(key) and {*shared, keys, *outer} == set(values)
    most_shared = 2 if len(alone) > 1 else 3  # batches, windows and heads
    if not expected or len(shared) > most_shared or len(alone) > 2 or len(outer) > 1 or inner not in query:
        return None
    if len(shared) == most_shared == 3 and {*shared} <= {*result.axes}:
        order = _order_behind(result)
        batch, windows, heads = sorted(shared, key=order.index)
        places = [order.index(axis) for axis in (batch, windows, heads)]
        is_heads = places[1] != places[0] + 1 and places[1] + 1 == places[2]
        return Axes(batch, heads, None, (*alone, None)[0], keys, inner, (*outer, None)[0], windows, is_heads)
    single = len(shared) == len(alone) == 1 and len(scores.query.axes) > 2  # one query of one sequence
    if len(shared) > 2:
        return None
    if len(shared) == 2:
        batch, heads = shared if isinstance(sizes.get(shared[1]), int) else shared[::-1]
    elif shared and (query[:1] != shared or (single and _are_merged(scores.query, shared[0], alone[0]))):
        batch, heads = None, shared[0]
    else:
        batch, heads = (*shared, None)[0], None
    group = None
    if len(alone) == 2:  # the queries that share a head of keys lie next to it
        group = next(
            (axis for axis in alone if heads is not None and query.index(axis) == query.index(heads) + 1), None
        )
        if heads is None:  # all share the only head of keys: positions have a mask, or a size with a name
            masked = {axis for mask in scores.masks for axis in atoms(mask.seen.axes)}
            shared_by = [axis for axis in alone if isinstance(sizes.get(axis), int) and axis not in masked]
            group = shared_by[0] if len(shared_by) == 1 else None
        if group is None:
            return None
    elif len(alone) == 1 and _are_merged(scores.query, heads, alone[0]):  # a single query
        group = alone[0]
    queries = next((axis for axis in alone if axis != group), None)
    return Axes(batch, heads, group, queries, keys, inner, (*outer, None)[0])


def _order_behind(result: Seen) -> list[Axis]:
    """Return the axes of a result in the order in which its only reader has them."""
    users = [user for user, _ in result.value.uses()]
    order = integers(users[0], "perm") if len(users) == 1 and is_op(users[0], "Transpose") else None
    return [*result.axes] if order is None else [result.axes[axis] for axis in order]


def _are_merged(seen: Seen, first: Axis, second: Axis) -> bool:
    """Whether two axes are adjacent parts of one axis of a value."""
    pairs = [pair for axis in seen.axes for pair in itertools.pairwise(atoms([axis]))]
    return first is not None and (first, second) in pairs


# The operator


def heads_merged(batch: list[Axis], along: Axis, heads: list[Axis], vector: Axis) -> list[list[Axis]]:
    """Return the axes of operands with three axes."""
    return [batch, [along], [*heads, vector]]


def heads_first(batch: list[Axis], along: Axis, heads: list[Axis], vector: Axis) -> list[list[Axis]]:
    """Return the axes of operands with four axes."""
    return [batch, heads, [along], [vector]]


def _fusion(whole: Attended, opset: int, known: Knowledge) -> Fusion | str:
    if whole.is_guarded:
        return "a row that is masked as a whole gives zeros"
    if whole.hidden_rows is not None:
        return whole.hidden_rows
    dtype = whole.result.value.dtype
    if whole.weights == ir.DataType.FLOAT:
        dtype = whole.weights
    if dtype is ir.DataType.DOUBLE:
        return "the runtime's Attention of DOUBLE computes in single precision"
    if whole.softcap or whole.sink is not None:
        return "it has a sink, or a soft cap, which the operator applies behind a mask"
    if whole.factor is not None:
        return "its scores have a factor that is not a number"
    mask = _only_mask(whole)
    hindrance = mask if isinstance(mask, str) else obstacle("Attention", dtype, opset)
    if hindrance is not None:
        return hindrance
    assert not isinstance(mask, str)
    heads = whole.heads
    if heads is None:
        return "the number or size of its heads is not known"
    options = []
    for groups in (heads_merged, heads_first):
        arranged = whole.arranged(groups)
        if arranged is not None:
            turned = goes_into_transpose(whole.result.value)
            moves = sum(a.moves for a in arranged[:3]) + (arranged[3].moves != turned)
            options.append((moves, groups is heads_first, arranged))
    causal = mask is not None and mask.is_causal(whole.axes, known)
    hindrance = None if mask is None or causal else _mask_hindrance(mask, whole, dtype, known)
    if not options or hindrance is not None:
        return hindrance or "its shapes cannot be told before it runs"
    _, _, arranged = min(options, key=lambda option: option[:2])

    def build(builder: Builder) -> ir.Value:
        arranging = zip(arranged[:3], whole.operands[:3], strict=True)
        operands = [builder.cast(how.apply(builder, builder.now(one.value)), dtype) for how, one in arranging]
        attributes: dict[str, Any] = {}
        if len(arranged[0].merged) == 3:
            attributes = {"q_num_heads": heads[0], "kv_num_heads": heads[1]}
        if causal:
            attributes["is_causal"] = 1
        elif mask is not None:
            operands.append(_added(builder, mask, whole))
        shape = arranged[3].merged
        attended = builder.emit("Attention", operands, shape, dtype, scale=whole.scale, **attributes)
        return arranged[3].revert(builder, builder.cast(attended, whole.result.value.dtype))

    return Fusion("Attention", whole.result.value, whole.leaves, build)


# The mask of the operator


def _only_mask(whole: Attended) -> Mask | str | None:
    """Return the mask of an attention; or why the operator cannot take it."""
    if len(whole.masks) + len(whole.biases) > 1:
        return "it has more than one mask"
    if not whole.biases:
        return whole.masks[0] if whole.masks else None
    (bias,) = whole.biases
    array = constant_of(bias.value)
    is_hiding = array is not None and array.dtype.kind == "f" and bool((array.astype(np.float64) < -HIDDEN).all())
    return additive(bias) or (Mask(bias, None) if is_hiding else "the bias that is added may hide all keys")


def _mask_hindrance(mask: Mask, whole: Attended, dtype: ir.DataType | None, known: Knowledge) -> str | None:
    """Return why the operator cannot take a mask, or None."""
    if dtype is not ir.DataType.FLOAT:
        return "a row that is masked as a whole is known to be right in single precision alone"
    added = mask.numbers if mask.numbers is not None else constant_of(mask.seen.value)
    if added is not None and not np.isfinite(added).all() and not mask.keeps_some(whole.axes, known):
        return "a row that is masked with -inf as a whole would not be NaN"
    return None if whole.over_scores(mask.seen) is not None else "the axes of its mask are others"


def _added(builder: Builder, mask: Mask, whole: Attended) -> ir.Value:
    """Return a mask as the bias that the operator takes, expanded over all queries and keys."""
    how = whole.over_scores(mask.seen)
    assert how is not None
    array = constant_of(mask.seen.value)
    if array is not None and not is_weight(mask.seen.value):
        added = array if mask.numbers is None else np.where(array, *mask.numbers)
        constant = builder.constant(np.maximum(added, HIDDEN).astype(np.float32), mask.seen.value.name or "mask")
        return builder.expanded(how.apply(builder, constant), _over_all(how, whole))
    value = how.apply(builder, builder.now(mask.seen.value))
    if mask.numbers is None:
        value = builder.cast(value, ir.DataType.FLOAT)
    else:
        numbers = [
            builder.constant(np.asarray(max(number, HIDDEN), np.float32), "hidden" if number <= LOW else "seen")
            for number in mask.numbers
        ]
        value = builder.emit("Where", [value, *numbers], how.merged, ir.DataType.FLOAT)
    return builder.expanded(value, _over_all(how, whole))


def _over_all(how: Arrangement, whole: Attended) -> list[Dim]:
    """Return the shape of a mask that is expanded over all queries and keys."""
    return [*how.merged[:2], whole.sizes[whole.axes.queries], whole.sizes[whole.axes.keys]]
