"""Recognise attention to a key-value cache: ONNX Runtime's GroupQueryAttention writes the new rows and attends to all.

The keys and the values are what was cached with new rows: behind it (`concatenate`), or in place of some of its rows
(`dynamic_update_slice`). The conditions on scores are read as inequalities of positions:
a key is seen from its own position on, which the operator always sees to, so that it has to be known; for a number of
positions, its window; what holds for all these keys is left out, and everything else, such as padding, is a bias of it.

The operator takes float32 and float16. It counts the rows of a cache; those behind the last one it leaves alone if past
and present are one buffer, and zeros otherwise. A row of scores that conditions hide as a whole is averaged over the
keys up to its position, where the program averages over all. Several new rows behind a cache need a batch of one
sequence; single ones may have a place of their own in each sequence. So only steps of decoders, whose callers keep to
these terms, have static caches, padding and any batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.affine import NOTHING, Condition, Known, Position, conjunction, values_in
from jaxport.graph.arranging import Arrangement
from jaxport.graph.editing import Dim, dims_of
from jaxport.graph.fusing import Builder, Fusion, fuse, spread
from jaxport.graph.fusions.attention import ANCHOR, Attended, behind_views, heads_merged, recognized
from jaxport.graph.fusions.cached_rows import NEW, Cache
from jaxport.graph.fusions.narrowing import Narrowing
from jaxport.graph.fusions.scores import uncast_value, unrounded
from jaxport.graph.fusions.unusual_caches import unusual_cache
from jaxport.graph.masks import HIDDEN, LOW, Mask, additive
from jaxport.graph.matching import Seen, between
from jaxport.onnx_facts import CACHED_ATTENTION, RUNTIME_DOMAIN
from jaxport.sizes.sums import SizeSum, size_sum

KERNELS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
#: The place of the first cache among the operator's inputs.
PAST = 3
#: The place of what is added to scores.
BIAS = 10
#: What the size of the operator's vectors is a multiple of.
WIDTH = 8


@dataclass(frozen=True)
class Terms:
    """What the callers of a graph keep to.

    Attributes:
      known: what is known of its sizes.
      is_step: whether it is a step of a decoder.
      positions: an input with the positions of tokens, which are at most the rows of the cache before them.
      total: the number of rows that the longest sequence has with its new ones.
    """

    known: Known = NOTHING
    is_step: bool = False
    positions: ir.Value | None = None
    total: SizeSum | None = None


def cached_attention(model: ir.Model, terms: Terms) -> str:
    """Replace attention to caches by GroupQueryAttention, in the main graph."""

    def find(node: ir.Node) -> Fusion | str | None:
        whole = recognized(node)
        if node.graph is not model.graph or not isinstance(whole, Attended):
            return None
        return behind_views(node, whole, partial(_found, terms=terms))

    report = fuse(model, find, ANCHOR)
    if any(is_cached_attention(node) for node in model.graph):
        model.opset_imports[RUNTIME_DOMAIN] = 1
    return report


def is_cached_attention(node: ir.Node | None) -> bool:
    """Whether a node is a GroupQueryAttention of ONNX Runtime."""
    return node is not None and (node.domain, node.op_type) == (RUNTIME_DOMAIN, CACHED_ATTENTION)


@dataclass(frozen=True)
class CachedStep:
    """An attention to a cache.

    Attributes:
      whole: the attention.
      keys, values: the cache.
      total: the number of rows that count; None for that of the longest sequence, if nothing is added to scores.
      window: how many keys are seen; None for all.
      conditions: what hides further keys.
      added: what is added to scores.
      arranged: how the queries, the new keys and values, and the result have three axes.
    """

    whole: Attended
    keys: Cache
    values: Cache
    total: SizeSum | None
    window: int | None
    conditions: Sequence[Condition]
    added: Sequence[Seen]
    arranged: Sequence[Arrangement]

    @property
    def dtype(self) -> ir.DataType:
        """The dtype that it is computed in."""
        own = self.whole.operands[0].value.dtype
        return ir.DataType.FLOAT if own is None or own not in KERNELS else own

    def fusion(self) -> Fusion:
        """Return the replacement by the operator."""
        return Fusion(CACHED_ATTENTION, self.whole.result.value, self.whole.leaves, self._emit)

    def _emit(self, builder: Builder) -> ir.Value:
        whole, dtype, result = self.whole, self.dtype, self.arranged[3]
        sides = (whole.operands[0], self.keys.new, self.values.new)
        arranging = zip(self.arranged[:3], sides, strict=True)
        rows = [builder.cast(how.apply(builder, builder.now(one.value)), dtype) for how, one in arranging]
        past = [builder.cast(builder.now(cache.past), dtype) for cache in (self.keys, self.values)]
        last, total = self._rows(builder, result.merged[0])
        heads = whole.heads
        assert heads is not None
        attributes: dict[str, Any] = {"num_heads": heads[0], "kv_num_heads": heads[1], "scale": whole.scale}
        attributes |= {} if self.window is None else {"local_window_size": self.window}
        attributes |= {"softcap": whole.softcap} if whole.softcap else {}
        operands = [*rows, *past, last, total, None, None, None]
        operands += [self._bias(builder), self._sink(builder)]
        while operands[-1] is None:
            operands.pop()
        stamps = [(dtype, result.merged), *((dtype, dims_of(cache.present)) for cache in (self.keys, self.values))]
        attended, *present = builder.emit_many(CACHED_ATTENTION, operands, stamps, RUNTIME_DOMAIN, **attributes)
        for cache, value in zip((self.keys, self.values), present, strict=True):
            builder.replace(cache.present, builder.cast(value, cache.present.dtype))
        return result.revert(builder, builder.cast(attended, whole.result.value.dtype))

    def _rows(self, builder: Builder, batch: Dim) -> tuple[ir.Value, ir.Value]:
        """Return the place of the last row of each sequence, and the number of rows."""
        places, int32 = self.keys.places, ir.DataType.INT32
        one = builder.constant(np.ones(1, np.int32), "one")
        if places is None:
            assert self.total is not None
            total = _emitted(builder, self.total)
            return builder.expanded(builder.emit("Sub", [total, one], [1], int32), [batch]), total
        first, count = (
            builder.cast(builder.viewed(places, [batch]), int32),
            _emitted(builder, size_sum(self.keys.count)),
        )
        counts = builder.emit("Add", [first, count], [batch], int32)
        if self.total is None:
            total = builder.emit("ReduceMax", [counts], [1], int32, keepdims=1)
        else:
            total = _emitted(builder, self.total)
        return builder.emit("Sub", [counts, one], [batch], int32), total

    def _sink(self, builder: Builder) -> ir.Value | None:
        sink = self.whole.sink
        if sink is None:
            return None
        own = Arrangement.of(
            dims_of(sink.value) or (), sink.axes, [[self.whole.axes.heads, self.whole.axes.group]], self.whole.sizes
        )
        assert own is not None
        return builder.cast(own.apply(builder, builder.owned(sink.value)), self.dtype)

    def _bias(self, builder: Builder) -> ir.Value | None:
        """Return what the operator adds to the scores: a row for each query, a column for each key."""
        if not self.conditions and not self.added:
            return None
        assert self.total is not None
        added = [self._shown(builder, seen) for seen in self.added]
        total = reduce(partial(builder.pairwise, "Add"), added) if added else None
        bias = self._hiding(builder, total) if self.conditions else total
        assert bias is not None
        return builder.expanded(bias, [*(dims_of(bias) or ())[:2], self.keys.count, _dim(self.total)])

    def _shown(self, builder: Builder, seen: Seen) -> ir.Value:
        """Return a value with the axes of the scores, without the columns behind the last row."""
        how = self.whole.over_scores(seen)
        assert how is not None
        value = how.apply(builder, builder.owned(seen.value))
        if self.keys.is_static:
            total = self.total
            assert total is not None
            value = Narrowing(builder, _dim(total), partial(_emitted, builder, total)).first(value, 3)
        return value if value.dtype is ir.DataType.BOOL else builder.cast(value, self.dtype)

    def _hiding(self, builder: Builder, added: ir.Value | None) -> ir.Value:
        """Return what is added, or zero, where all conditions hold; elsewhere a number that hides, to which nothing is
        added.

        In half precision, a sum with the lowest number would not be finite.
        """
        low = max(HIDDEN, float(np.finfo(self.dtype.numpy()).min) / 2)
        zero, hidden = (
            builder.constant(np.asarray(number, self.dtype.numpy()), name)
            for number, name in ((0, "seen"), (low, "hidden"))
        )
        shown = zero if added is None else added
        held, broken = (
            [self._shown(builder, one.seen) for one in self.conditions if one.holds == holds] for holds in (True, False)
        )
        if not held:  # nothing to negate
            hides = reduce(partial(builder.pairwise, "Or"), broken)
            return builder.emit("Where", [hides, hidden, shown], spread(hides, added), self.dtype)
        held += [builder.emit("Not", [value], dims_of(value), ir.DataType.BOOL) for value in broken]
        visible = reduce(partial(builder.pairwise, "And"), held)
        return builder.emit("Where", [visible, shown, hidden], spread(visible, added), self.dtype)


def _terms(bias: Seen) -> list[Seen]:
    """Return the terms of a bias that is a mask and something else: `s + (0 + b)` is `s + b`, and a low number hides
    with either.
    """
    terms = unrounded(bias).operands("Add") or []
    masks = [mask for mask in map(additive, terms) if mask is not None and mask.numbers is not None]
    if any(max(mask.numbers or ()) == 0 and min(mask.numbers or ()) <= LOW for mask in masks):
        return [part for term in terms for part in _terms(term)]
    return [bias]


def _hiding_or_added(bias: Seen) -> Mask | Seen:
    """Return the mask that a bias is; the bias itself if it hides nothing, whatever it is added to."""
    mask = additive(bias)
    return bias if mask is None or (mask.numbers is not None and min(mask.numbers) > LOW) else mask


def _dim(total: SizeSum) -> Dim:
    return str(total) if total.terms else total.number


def _emitted(builder: Builder, total: SizeSum, dtype: ir.DataType = ir.DataType.INT32) -> ir.Value:
    """Return a sum as a vector of one element."""
    int64 = ir.DataType.INT64
    for value in builder.root.inputs:
        for axis, dim in enumerate(dims_of(value) or ()):
            if total.terms and size_sum(dim) == total:
                shape = builder.emit("Shape", [value], [1], int64, start=axis, end=axis + 1)
                return builder.cast(shape, dtype)
    sizes = [size_sum(dim) for value in builder.root.inputs for dim in dims_of(value) or ()]
    for one, other in itertools.combinations_with_replacement(sizes, 2):
        if total.terms and one + other == total and one.terms and other.terms:
            pair = [_emitted(builder, part, int64) for part in (one, other)]
            return builder.cast(builder.emit("Add", pair, [1], int64), dtype)
    parts = []
    for key, factor in total.terms.items():
        if isinstance(key, Seen):
            part = builder.cast(builder.viewed(key.value, [1]), int64)
        else:
            part = builder.shape([str(SizeSum({key: 1}))])
        if factor != 1:
            part = builder.emit("Mul", [part, builder.integers([factor], "factor")], [1], int64)
        parts.append(part)
    if total.number or not parts:
        parts.append(builder.integers([total.number], "size"))
    whole = reduce(lambda one, other: builder.emit("Add", [one, other], [1], int64), parts)
    if not total.terms:
        return builder.constant(np.array([total.number], dtype.numpy()), "size")
    return builder.cast(whole, dtype)


# Which attention it is


def _found(whole: Attended, terms: Terms) -> Fusion | str | None:
    step = _step(whole, terms)
    return step.fusion() if isinstance(step, CachedStep) else step


def _step(whole: Attended, terms: Terms) -> CachedStep | str | None:
    """Return the attention to a cache that an attention is, why the operator cannot compute it, or None if it has
    none.
    """
    if whole.axes.windows is not None:
        return None  # windows of an image
    whole = _with_roles_of_cache(whole)
    axes, known = whole.axes, terms.known
    pairs = ((whole.operands[1], axes.inner), (whole.operands[2], axes.outer))
    caches = [Cache.of(seen, (axes.batch, axes.heads, axes.keys, vector), known) for seen, vector in pairs]
    if None in caches:
        return unusual_cache(whole.operands[1:3])
    keys, values = caches
    if isinstance(keys, str):
        return keys
    if isinstance(values, str):
        return values
    assert keys is not None
    assert values is not None
    hindrance = _hindrance(whole, keys, values, terms)
    if hindrance is not None:
        return hindrance
    sizes = {**whole.sizes, NEW: keys.count}
    rows = (axes.queries, NEW, NEW, axes.queries)
    sides = (whole.operands[0], keys.new, values.new, whole.result)
    arranged = [
        Arrangement.of(dims_of(seen.value) or (), seen.axes, heads_merged(axes.batches, along, heads, vector), sizes)
        for seen, along, (_, heads, vector) in zip(sides, rows, axes.operands, strict=True)
    ]
    if None in arranged:
        return "its shapes cannot be told before it runs"
    visible = _Visible(whole, keys, terms)
    hindrance = visible.read()
    if hindrance is not None:
        return hindrance
    conditions, added = visible.conditions, visible.added
    total = keys.start + size_sum(keys.count) if keys.places is None else terms.total if conditions or added else None
    if total is None and (conditions or added):
        return "its rows are written in a place of their own for each sequence, and the number of all rows is not known"
    if (conditions or added) and not terms.is_step:
        return "a row of its mask may hide all keys, which the operator would average up to the position of the query"
    if any(whole.over_scores(one) is None for one in (*(one.seen for one in conditions), *added)):
        return "the axes of its mask are others"
    return CachedStep(
        whole, keys, values, total, visible.window, conditions, added, [how for how in arranged if how is not None]
    )


def _with_roles_of_cache(whole: Attended) -> Attended:
    """Return an attention whose batch and heads are the first two axes of its keys: one of them may have a single
    element.
    """
    labels, axes = whole.operands[1].axes, whole.axes
    if len(labels) != len(axes.scores) or {*labels[:2]} - {None} != {axes.batch, axes.heads} - {None}:
        return whole
    return replace(whole, axes=replace(axes, batch=labels[0], heads=labels[1]))


def _hindrance(whole: Attended, keys: Cache, values: Cache, terms: Terms) -> str | None:
    """Return why the operator cannot attend to a cache, or None."""
    if whole.factor is not None:
        return "its scores have a factor that is not a number"
    dtypes = {one.value.dtype for one in whole.operands[:3]}
    widths = whole.sizes.get(whole.axes.inner), whole.sizes.get(whole.axes.outer)
    if len(dtypes) > 1 or dtypes & {ir.DataType.DOUBLE, None}:
        return "its cache is of another dtype than its queries, or of one that the operator lacks"
    if whole.heads is None or not isinstance(widths[0], int):
        return "the number or size of its heads is not known"
    if widths[0] != widths[1] or widths[0] % WIDTH:
        return f"the operator takes vectors of one size, a multiple of {WIDTH}, not {widths[0]} and {widths[1]}"
    if keys.start != values.start or keys.is_static != values.is_static:
        return "keys and values are written in different places"
    if whole.hidden_rows is not None and not terms.is_step:
        return whole.hidden_rows
    if keys.is_static and not (terms.is_step and dtypes <= {*KERNELS}):
        return (
            "a static cache is one buffer for past and present, as callers of a decoder step have it, in float32 "
            "or float16"
        )
    if not terms.is_step and keys.batch != 1 and keys.count != 1:
        return "the operator takes several new rows behind a cache for a batch of one sequence"
    inner = {*(between(whole.result.value, whole.leaves) or ())}
    if any(user not in inner for cache in (keys, values) for user in cache.present.consumers()):
        return "its cache is read elsewhere, too"
    return None


@dataclass
class _Visible:
    """Which keys the queries of an attention see, read condition by condition.

    Attributes:
      whole: the attention.
      keys: its cache.
      terms: what the callers of the graph keep to.
      window: how many keys a query sees, up to its own position; None for all.
      conditions: what hides further keys.
      added: what is added to the scores.
      is_causal: whether the keys after the position of a query are known to be hidden.
    """

    whole: Attended
    keys: Cache
    terms: Terms
    window: int | None = None
    conditions: list[Condition] = field(default_factory=list)
    added: list[Seen] = field(default_factory=list)
    is_causal: bool = False

    def read(self) -> str | None:
        """Read all masks and biases; return why the operator has none like these, or None."""
        if self.whole.is_causal:
            return "its mask counts the positions of queries from the first key"
        terms = [term for bias in self.whole.biases for term in _terms(bias)]
        for mask in (*self.whole.masks, *map(_hiding_or_added, terms)):
            if isinstance(mask, Seen):
                self.added.append(mask)
            elif mask.numbers is None:
                self.added.append(mask.seen)
            elif max(mask.numbers) == 0 and min(mask.numbers) <= LOW:
                for condition in conjunction(mask.seen, self.terms.known, mask.numbers[0] == 0):
                    self._add(condition)
            else:
                return "its mask does not choose between a score and a low number"
        # A growing cache ends with the only new row: no key lies after it, and the mask need not say so.
        if self.is_causal or (self.keys.count == 1 and not self.keys.is_static):
            return None
        return "its mask is not known to hide the keys after the position of a query"

    def _add(self, condition: Condition) -> None:
        total = condition.sum
        query, key = Position(self.whole.axes.queries), Position(self.whole.axes.keys)
        moved = None if total is None else self._beside_own(total)
        if total is None or moved is None or values_in(moved):
            if total is not None and self._follows_positions(total):
                self.is_causal = True
            self.conditions.append(condition)
            return
        rest, factor = moved.without(query, key), total.factor(key)
        if factor == -1 and rest == SizeSum({}):  # a key is at most at the position of the query
            self.is_causal = True
        elif factor == 1 and not rest.terms and rest.number >= 0:
            width = rest.number + 1
            self.window = width if self.window is None else min(width, self.window)
        elif not self._holds_for_all(moved, factor):
            self.conditions.append(condition)

    def _beside_own(self, total: SizeSum) -> SizeSum | None:
        """Return a sum with the place of a key counted from that of the query; None if it depends on anything else.

        The place of a query is that of its new row: the first one's, and its position among the new ones.
        """
        query, key = Position(self.whole.axes.queries), Position(self.whole.axes.keys)
        is_single = self.keys.count == 1
        factor = total.factor(key)
        if abs(factor) != 1 or any(isinstance(one, Position) and one not in (query, key) for one in total.terms):
            return None
        if total.factor(query) != -factor and not is_single:
            return None
        return total.without(query) + self.keys.start * factor

    def _holds_for_all(self, moved: SizeSum, factor: int) -> bool:
        """Whether what is left of a sum is not negative for any key up to the position of a query."""
        query, key = Position(self.whole.axes.queries), Position(self.whole.axes.keys)
        rest = moved.without(query, key)
        if factor == -1:  # at most a number of positions ahead of the query
            return self.terms.known.is_positive_or_zero(rest)
        return self.terms.known.is_positive_or_zero(rest - self.keys.start - size_sum(self.keys.count) + 1)

    def _follows_positions(self, total: SizeSum) -> bool:
        """Whether a key is at most at the position of the query's token, as its caller counts: before its row."""
        key, (value, *others) = Position(self.whole.axes.keys), values_in(total) or [None]
        if (
            value is None
            or others
            or self.terms.positions is None
            or uncast_value(value.value) is not self.terms.positions
        ):
            return False
        along = [axis for axis in value.axes if axis is not None]
        own = [axis for axis in (self.whole.axes.batch, self.whole.axes.queries) if axis is not None]
        ahead = total.without(value, key)
        factors = total.factor(value), total.factor(key)
        is_along = along == [axis for axis in own if axis in along]
        return is_along and factors == (1, -1) and not ahead.terms and ahead.number <= 0
