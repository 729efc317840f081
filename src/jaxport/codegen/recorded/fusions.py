"""Fusions that only printers need: to attention as JAX computes it, an operator of jaxport's own domain.

ONNX's Attention gives zeros for a row that is masked as a whole. A file that spells attention out gives NaN there, or
an average, and `jax.nn.dot_product_attention` computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import Arrangement, atoms, reshaped, sizes_of
from jaxport.graph.axis_groups import product
from jaxport.graph.editing import Dim, constant_of, dims_of, is_op, numpy_dtype, operand, source, static_dims
from jaxport.graph.facts.knowledge import Knowledge
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.graph.fusions.activations import ACTIVATIONS, GATED, activations
from jaxport.graph.fusions.attention import (
    ANCHOR,
    Attended,
    Groups,
    behind_views,
    either,
    heads_first,
    heads_merged,
    recognized,
)
from jaxport.graph.masks import HIDDEN, Axes, Mask, additive
from jaxport.graph.matching import Axis, Joined, Seen, joined, look
from jaxport.importer.ops import attending
from jaxport.importer.resolving.registry import op
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import cast, nn

DOMAIN = "jaxport"
"""The domain of the operators that files do not have."""

RUNTIME = "com.microsoft"
"""The domain of the operators that ONNX Runtime's optimizers write."""

AXES = Axes("batch", "heads", "group", "queries", "keys", "inner", "outer")
"""The labels of the axes of an operator that computes attention."""

PLAIN = {"softcap": 0.0, "left_window_size": -1, "right_window_size": -1}
"""The values of the attributes of ONNX's Attention with which it does what JAX's function does."""


HIDDEN_IN_HALF = -6e4
"""A number whose sums with scores are all the same in float16, which has 32 between its neighbours there."""


@op(DOMAIN, "DotProductAttention")
def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return attention as the call of JAX that computes it."""
    is_half = query.dtype == np.float16
    if is_half:  # XLA does not compile JAX's function in float16 for CPUs; it computes scores in float32 anyway
        query, key, value = (cast(x, np.float32) for x in (query, key, value))
        bias = None if bias is None else cast(bias, np.float32)
    options = {"bias": bias, "mask": mask, "scale": scale, "is_causal": True if is_causal else None}
    options = {name: option for name, option in options.items() if option is not None}
    if softcap is not None or sink is not None or value.shape[-1] != query.shape[-1]:
        further = {"softcap": softcap, "sink": sink}
        options |= {name: option for name, option in further.items() if option is not None}
        return attending.attention(query, key, value, **options)
    result = nn.dot_product_attention(query, key, value, **options)
    return cast(result, np.float16) if is_half else result


def attention(model: ir.Model, *, strict: bool = False, has_helpers: bool = False) -> str:
    """Replace attention of float32, bfloat16 or float16 by DotProductAttention: what is spelled out, and the operators.

    Args:
      model: changed in place.
      strict: whether a spelled-out guard against NaN stays, and with it what it guards.
      has_helpers: whether source gets a function for the attention that JAX has none for: scores with a soft cap or a
        sink, and values of another size than keys.
    """
    find = partial(_find, known=Knowledge(model), strict=strict, has_helpers=has_helpers)
    return fuse(model, find, ANCHOR, Anchor(at=("Attention",)), Anchor(at=("MultiHeadAttention",), domain=RUNTIME))


def gated(model: ir.Model) -> str:
    """Replace `x * sigmoid(x)` by the operator Swish."""
    return activations(model, GATED)


def gelu(model: ir.Model) -> str:
    """Replace what computes GELU by its operator."""
    return activations(model, [one for one in ACTIVATIONS if one.op_type == "Gelu"])


def _find(node: ir.Node, known: Knowledge, *, strict: bool, has_helpers: bool) -> Fusion | str | None:
    whole = recognized(node) if node.op_type in ANCHOR.at else _of_operator(node, known)
    if strict and isinstance(whole, Attended) and whole.is_guarded and node.op_type in ANCHOR.at:
        return "it has a guard against NaN"
    if not isinstance(whole, Attended):
        return whole
    if node.op_type not in ANCHOR.at:
        return _fusion(whole, known, has_helpers)
    return behind_views(node, whole, lambda one: _fusion(one, known, has_helpers))


def _fusion(whole: Attended, known: Knowledge, has_helpers: bool) -> Fusion | str:
    return either(whole, lambda whole: _call(whole, known, has_helpers))


def _call(whole: Attended, known: Knowledge, has_helpers: bool) -> Fusion | str:
    if whole.hidden_rows is not None:
        return whole.hidden_rows
    if not _is_of_one_type(whole):
        return "it is not of float32, bfloat16 or float16"
    if whole.axes.heads is None and len(whole.result.axes) < 4:
        return "it has no heads"
    has_helpers = has_helpers and whole.operands[0].value.dtype is ir.DataType.FLOAT
    if (whole.softcap or whole.sink is not None) and not has_helpers:
        return "its scores have a soft cap, or a sink"
    # A bias of zeros is not computed any more, but what computes it may be read elsewhere.
    read, whole = whole.leaves, _nearest(_with_masks(whole, known))
    arranged = _arranged(whole)
    size = whole.sizes.get(whole.axes.inner)
    if whole.heads is None or arranged is None or not isinstance(size, int):
        return "its shapes cannot be told before it runs"
    outer = whole.sizes[whole.axes.outer]
    if size != outer and not (has_helpers and isinstance(outer, int)):
        return "its keys and values are of different sizes"
    masking, sink, factor = Masking.of(whole, known), _sink(whole), _factor(whole)
    if isinstance(masking, str) or isinstance(sink, str) or isinstance(factor, str):
        return next(reason for reason in (masking, sink, factor) if isinstance(reason, str))
    attributes: dict[str, Any] = {} if _is_usual_scale(whole, size) else {"scale": whole.scale}
    if masking.is_causal:
        attributes["is_causal"] = 1
    if whole.softcap:
        attributes["softcap"] = whole.softcap

    def build(builder: Builder) -> ir.Value:
        sides = zip(arranged[:3], whole.operands[:3], strict=True)
        operands = [*(how.apply(builder, builder.now(one.value)) for how, one in sides), *masking.emit(builder)]
        mask = operands[-1]
        if factor is not None:
            operands[0] = _multiplied(builder, operands[0], *factor)
        if sink is not None:
            operands.append(sink[1].apply(builder, builder.owned(sink[0].value)))
        result = builder.emit("DotProductAttention", operands, arranged[3].merged, **attributes)
        node = result.producer()
        assert node is not None
        node.domain = DOMAIN
        return arranged[3].revert(builder, masking.emit_zeros(builder, mask, result))

    return Fusion("DotProductAttention", whole.result.value, [*whole.leaves, *read], build, ignored=("Shape",))


def _sink(whole: Attended) -> tuple[Seen, Arrangement] | str | None:
    """Return the sink of an attention, and how it has one axis of all heads; None if it has none; or why it has
    another.
    """
    sink, axes = whole.sink, whole.axes
    if sink is None:
        return None
    how = Arrangement.of(dims_of(sink.value) or (), sink.axes, [[*axes.all_heads, axes.group]], whole.sizes)
    if how is None or whole.heads is None or how.merged != whole.heads[:1]:
        return "its sink is not one number for each head"
    return sink, how


def _factor(whole: Attended) -> tuple[Seen, Arrangement] | str | None:
    """Return what scores are multiplied with, and how it gets their axes; None if there is nothing; or why that is
    another.
    """
    factor = whole.factor
    if factor is None:
        return None
    how = whole.over_scores(factor)
    if how is None or {factor.value.dtype, whole.operands[0].value.dtype} != {ir.DataType.FLOAT}:
        return "the axes, or the type, of what its scores are multiplied with are others"
    return factor, how


def _multiplied(builder: Builder, query: ir.Value, factor: Seen, how: Arrangement) -> ir.Value:
    """Return queries times the factor of their scores, with heads after positions."""
    value, (batch, heads, length, _) = how.apply(builder, builder.owned(factor.value)), how.merged
    turned = [batch, length, heads, 1]
    value = builder.viewed(value, turned) if length == 1 else builder.transposed(value, (0, 2, 1, 3))
    return builder.emit("Mul", [query, value], dims_of(query))


def _is_of_one_type(whole: Attended) -> bool:
    """Whether queries, keys, values and the result are of float32, bfloat16 or float16, and what is added is as wide or
    narrower.

    JAX's function computes scores and their softmax in single precision, whatever the type of its operands is.
    """
    (dtype, *others), single = {seen.value.dtype for seen in whole.operands}, ir.DataType.FLOAT
    added = {seen.value.dtype for seen in whole.biases}
    return not others and dtype in (single, ir.DataType.BFLOAT16, ir.DataType.FLOAT16) and added <= {single, dtype}


def _is_usual_scale(whole: Attended, size: int) -> bool:
    """Whether scores are divided by the root of the size of a key, as exactly as the type of the keys says that."""
    dtype = numpy_dtype(whole.operands[0].value)
    is_rounded = dtype.itemsize < 4 and dtype.type(whole.scale) == dtype.type(size**-0.5)
    return is_rounded or math.isclose(whole.scale * size**0.5, 1, rel_tol=1e-6)


def _positions_first(batch: list[Axis], along: Axis, heads: list[Axis], vector: Axis) -> list[list[Axis]]:
    return [batch, [along], heads, [vector]]


def _arranged(whole: Attended) -> list[Arrangement] | None:
    """Return how queries, keys, values and the result have heads after positions; None if one of them cannot."""
    arranged = []
    for seen, own in zip(whole.operands, whole.axes.operands, strict=True):
        groups = _positions_first(whole.axes.batches, *own)
        labels, own_axes, sizes = [*map(_label, groups)], seen.axes, dict(whole.sizes)
        for place, label in enumerate(labels):
            if label not in seen.axes:
                continue
            groups[place] = [label]
            if isinstance(label, Joined):  # all heads are one axis already, which is not split
                merged = ("merged", place)
                groups[place] = [merged]
                own_axes = tuple(merged if axis == label else axis for axis in own_axes)
                sizes[merged] = sizes.get(label) or product([sizes[part] for part in label.parts])
        arranged.append(Arrangement.of(dims_of(seen.value) or (), own_axes, groups, sizes))
    return None if None in arranged else arranged


def _nearest(whole: Attended) -> Attended:
    """Return an attention of the values that are nearest to its products, so that the views behind stay as they are."""
    absent = {field.name: field.name for field in fields(Axes) if getattr(whole.axes, field.name) is None}
    absent = {name: label for name, label in absent.items() if name not in ("group", "windows")}
    axes, sizes = replace(whole.axes, **absent), {**whole.sizes, **dict.fromkeys(absent, 1)}
    operands = [
        _nearest_view(seen, _positions_first(axes.batches, *own), sizes)
        for seen, own in zip(whole.operands, axes.operands, strict=True)
    ]
    return replace(
        whole,
        operands=tuple(operands),
        axes=axes,
        sizes=sizes,
        masks=tuple(
            replace(mask, seen=_nearest_view(mask.seen, axes.scores, sizes, broadcasts=True)) for mask in whole.masks
        ),
        biases=tuple(_nearest_view(bias, axes.scores, sizes, broadcasts=True) for bias in whole.biases),
    )


def _nearest_view(
    seen: Seen, groups: Sequence[Sequence[Axis]], sizes: Mapping[Axis, Dim], *, broadcasts: bool = False
) -> Seen:
    """Return the first view of a value that has an axis for each group, in any order; the value itself if none has.

    It is the one behind an Expand if it `broadcasts` anyway.
    """
    wanted, value = [_label(group) for group in groups], seen.entry
    for labels, _ in seen.along:
        present = [label for label in labels if label is not None]
        is_expanded = broadcasts and is_op(value.producer(), "Expand") and value is not seen.value
        if len(labels) == len(wanted) and {*present} <= {*wanted} and not is_expanded:
            absent = iter([label for label in wanted if label not in present and sizes.get(label) == 1])
            axes = tuple(next(absent, None) if label is None else label for label in labels)
            return Seen(value, axes, seen.entry, seen.along)
        producer = value.producer()
        value = value if value is seen.value or producer is None else source(producer)
    return seen


@dataclass(frozen=True)
class Masking:
    """What is added to scores, and which of them are hidden.

    Attributes:
      biases: what is added, and how it gets the axes of the scores.
      conditions: what holds for visible scores, and how it gets these axes.
      negated: the conditions that hold for hidden scores instead.
      is_causal: whether the keys after each query are hidden.
      is_zeroing: whether the result is zero for a query that sees no key.
    """

    biases: Sequence[tuple[Seen, Arrangement]]
    conditions: Sequence[tuple[Seen, Arrangement]]
    negated: Sequence[Seen]
    is_causal: bool
    is_zeroing: bool = False

    @classmethod
    def of(cls, whole: Attended, known: Knowledge) -> Masking | str:
        """Return the masking of an attention; or why JAX's function does not compute it."""
        masks = [part for mask in whole.masks for part in _apart(mask, whole.axes, known)]
        causal = [mask for mask in masks if mask.is_causal(whole.axes, known)]
        chosen = [mask for mask in masks if mask not in causal and not _hides_nothing(mask, known)]
        is_causal = whole.is_causal or bool(causal)
        hiding = [mask for mask in chosen if not all(map(math.isfinite, mask.numbers or ()))]
        # Each of several masks may keep a key that another one hides.
        may_hide_all = bool(hiding) and (
            is_causal or len(chosen) > 1 or not all(mask.keeps_some(whole.axes, known) for mask in hiding)
        )
        if may_hide_all and not whole.is_guarded:
            return "a row that is masked with -inf as a whole would not be NaN"
        if whole.is_guarded and not all(_is_finite(bias, known) for bias in whole.biases):
            return "the bias that is added may hide all keys"
        if may_hide_all and (len(hiding) < len(chosen) or is_causal):
            return "its masks hide keys in several ways"
        conditions = [mask.seen for mask in chosen]
        arranged = {seen: how for seen in (*whole.biases, *conditions) if (how := whole.over_scores(seen)) is not None}
        if len(arranged) < len({*whole.biases, *conditions}):
            return "the axes of its mask are others"
        return cls(
            [(seen, arranged[seen]) for seen in whole.biases],
            [(seen, arranged[seen]) for seen in conditions],
            [mask.seen for mask in chosen if mask.numbers is not None and mask.numbers[0] != 0],
            is_causal,
            may_hide_all,
        )

    def emit(self, builder: Builder) -> list[ir.Value | None]:
        """Emit the bias and the mask of the operator; None for one that it does not have."""

        def visible(seen: Seen, how: Arrangement) -> ir.Value:
            condition = _broadcastable(builder, seen, how)
            if seen not in self.negated:
                return condition
            return builder.emit("Not", [condition], dims_of(condition), ir.DataType.BOOL)

        biases = [_broadcastable(builder, seen, how) for seen, how in self.biases]
        conditions = [visible(seen, how) for seen, how in self.conditions]
        return [combined(builder, "Add", biases), combined(builder, "And", conditions)]

    def emit_zeros(self, builder: Builder, mask: ir.Value | None, result: ir.Value) -> ir.Value:
        """Emit zeros for the queries that see no key, if there may be some."""
        dims = dims_of(mask)
        if not self.is_zeroing or mask is None or dims is None:
            return result
        kinds = ir.DataType.BOOL
        seen = builder.emit("ReduceMax", [mask, builder.integers([3], "axes")], [*dims[:3], 1], kinds, keepdims=1)
        zero = builder.constant(np.zeros((), numpy_dtype(result)), "zero")
        return builder.emit("Where", [builder.transposed(seen, (0, 2, 1, 3)), result, zero], dims_of(result))


def _with_masks(whole: Attended, known: Knowledge) -> Attended:
    """Return an attention with masks in place of what is added to scores for nothing but to hide some."""
    added = {bias: additive(bias) for bias in whole.biases}
    hiding = {
        bias: mask
        for bias, mask in added.items()
        if mask is not None and (_hides(mask, whole) or mask.is_causal(whole.axes, known))
    }
    biases = tuple(bias for bias in whole.biases if bias not in hiding and known.of(bias.value).number != 0)
    return replace(whole, masks=(*whole.masks, *hiding.values()), biases=biases)


def _hides(mask: Mask, whole: Attended) -> bool:
    """Whether the sum with a mask of two numbers does not depend on the scores that it hides."""
    if mask.numbers is None or max(mask.numbers) != 0:
        return False
    hidden = HIDDEN_IN_HALF if whole.operands[0].value.dtype is ir.DataType.FLOAT16 else HIDDEN
    return min(mask.numbers) <= hidden and (whole.is_guarded or min(mask.numbers) > -math.inf)


def _hides_nothing(mask: Mask, known: Knowledge) -> bool:
    """Whether the condition of a mask is known to hold for all visible scores, or for none."""
    condition, band = constant_of(mask.seen.value), mask.visible(known)
    if band is not None and band.is_always:
        return True
    return condition is not None and mask.numbers is not None and bool((condition == (mask.numbers[0] == 0)).all())


def _apart(mask: Mask, axes: Axes, known: Knowledge) -> list[Mask]:
    """Return both masks that a mask of two conditions is, if one of them hides the keys behind each query; or the mask
    itself.
    """
    if mask.numbers is None or not all(map(math.isfinite, mask.numbers)):
        return [mask]
    operands = mask.seen.operands("And" if mask.numbers[0] == 0 else "Or") or []
    parts = [replace(mask, seen=one) for one in operands]
    return parts if any(part.is_causal(axes, known) for part in parts) else [mask]


def _is_finite(seen: Seen, known: Knowledge) -> bool:
    return known.of(seen.value).is_finite


def _broadcastable(builder: Builder, seen: Seen, how: Arrangement) -> ir.Value:
    """Return a value that broadcasts to the scores: without the axes of one element that broadcasting adds."""
    if how.merged == (*[1] * (len(how.merged) - len(how.dims)), *how.dims):
        return builder.now(seen.value)
    return how.apply(builder, builder.now(seen.value))


def combined(builder: Builder, op_type: str, terms: Sequence[ir.Value]) -> ir.Value | None:
    """Return the sum or the conjunction of values, with all axes of the scores; None of none."""
    if not terms:
        return None
    total = reduce(partial(builder.pairwise, op_type), terms)
    dims = dims_of(total) or []
    return reshaped(builder, total, [*[1] * (len(AXES.scores) - len(dims)), *dims])


def _of_operator(node: ir.Node, known: Knowledge) -> Attended | str | None:
    """Return the attention that an operator computes, unless it has a cache, or a bias that may hide a whole row.

    The operators are those of ONNX, which gives zeros for a row that is masked as a whole, and of ONNX Runtime, whose
    masks are always added.
    """
    options = {name: attribute.value for name, attribute in node.attributes.items()}
    is_flat, is_runtime = "q_num_heads" in options or "num_heads" in options, bool(node.domain)
    place = 5 if is_runtime else 3
    values, mask = [*node.inputs[:3], node.outputs[0]], operand(node, place)
    shapes = [dims for value in values if (dims := dims_of(value)) is not None]
    others = [*node.inputs[3:place], *node.inputs[place + 1 :]]
    if any(others) or any(options.get(name, plain) != plain for name, plain in PLAIN.items()):
        return "it does more than JAX's function"
    if len(shapes) < len(values) or {*map(len, shapes)} != {3 if is_flat else 4}:
        return "its shapes cannot be told before it runs"
    if is_flat:
        heads = [options.get(name, options.get("num_heads")) for name in ("q_num_heads", "kv_num_heads")]
    else:
        heads = [dims[1] for dims in shapes[:2]]
    counts = static_dims([*heads, *(dims[-1] for dims in shapes)])
    if counts is None:
        return "its shapes cannot be told before it runs"
    many, few, *widths = counts
    inner, outer = (widths[0] // many, widths[3] // many) if is_flat else (widths[0], widths[3])
    groups = heads_merged if is_flat else heads_first
    expanded = _before_expansion(values[1:3], groups) if many == few else []
    sizes_before = {each.sizes.get(AXES.heads) for each in expanded}
    if len(sizes_before) == 1 and isinstance(size := sizes_before.pop(), int):
        few = size
    axes = AXES if many > few else replace(AXES, group=None)
    seen = [_labelled(value, groups(axes.batches, *own)) for value, own in zip(values, axes.operands, strict=True)]
    if many > few and expanded:
        seen[1:3] = expanded
    biases = () if mask is None else (_labelled(mask, axes.scores[4 - len(dims_of(mask) or ()) :]),)
    conditions = tuple(Mask(bias, (0.0, -math.inf)) for bias in biases if bias.entry.dtype is ir.DataType.BOOL)
    biases = biases if not conditions else ()
    if not is_runtime and any(additive(bias) is None and not _is_finite(bias, known) for bias in biases):
        return "its bias may hide a whole row"
    sizes = sizes_of(*seen, *biases, *(mask.seen for mask in conditions)) | {
        None: 1,
        axes.heads: few,
        axes.group: many // few,
        "inner": inner,
        "outer": outer,
    }
    scale = options.get("scale", inner**-0.5)
    if is_runtime:  # whose default is written as zero, too
        scale = scale or inner**-0.5
    is_causal = bool(options.get("is_causal") or options.get("unidirectional"))
    if options.get("unidirectional") and sizes[axes.queries] != sizes[axes.keys]:
        return "its last query sees all keys"
    return Attended(
        (seen[0], seen[1], seen[2], seen[3]), axes, sizes, scale, conditions, biases, is_causal=is_causal,
        is_guarded=not is_runtime,
    )  # fmt: skip


def _before_expansion(values: Sequence[ir.Value], groups: Groups) -> list[Seen]:
    """Return keys and values as they are before they are expanded to all heads of queries; [] if they are not."""
    sides = zip(values, AXES.operands[1:3], strict=True)
    seen = [
        _labelled(one, groups(AXES.batches, along, [AXES.heads, AXES.group], size)) for one, (along, _, size) in sides
    ]
    return [] if any(AXES.group in atoms(each.axes) for each in seen) else seen


def _labelled(value: ir.Value, groups: Sequence[Sequence[Axis]]) -> Seen:
    """Return a value as seen with one axis for each group of labels."""
    return look(value, map(_label, groups))


def _label(group: Sequence[Axis]) -> Axis:
    """Return the label of the axis that a group is merged into."""
    own = [label for label in group if label is not None]
    return own[0] if len(own) == 1 else joined(own)
