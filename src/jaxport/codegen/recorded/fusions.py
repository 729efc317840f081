"""Fusions that only printers need: to attention as JAX computes it, an operator of jaxport's own domain.

ONNX's Attention gives zeros for a row that is masked as a whole. A file that spells attention out gives NaN there, or an
average, and `jax.nn.dot_product_attention` computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import Arrangement, reshaped, sizes_of
from jaxport.graph.editing import (
    Dim,
    constant_of,
    dims_of,
    numpy_dtype,
    operand,
    operator_name,
    source,
    sources,
    static_dims,
)
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.graph.fusions.activations import GATED, activations
from jaxport.graph.fusions.attention import (
    ANCHOR,
    HIDDEN,
    Attended,
    Axes,
    Mask,
    additive,
    heads_first,
    heads_merged,
    recognized,
)
from jaxport.graph.matching import Axis, Seen, joined, look
from jaxport.importer.resolving.registry import op
from jaxport.importer.values.host import RuntimeValue
from jaxport.importer.values.namespaces import nn

__all__ = ["DOMAIN", "attention", "gated", "products", "unmerged"]

DOMAIN = "jaxport"
"""The domain of the operators that files do not have."""

RUNTIME = "com.microsoft"
"""The domain of the operators that ONNX Runtime's optimizers write."""

AXES = Axes("batch", "heads", "group", "queries", "keys", "inner", "outer")
"""The labels of the axes of an operator that computes attention."""

PLAIN = {"softcap": 0.0, "left_window_size": -1, "right_window_size": -1}
"""The values of the attributes of ONNX's Attention with which it does what JAX's function does."""


@op(DOMAIN, "DotProductAttention")
def dot_product_attention(
    query: RuntimeValue,
    key: RuntimeValue,
    value: RuntimeValue,
    bias: RuntimeValue = None,
    mask: RuntimeValue = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> RuntimeValue:
    options = {"bias": bias, "mask": mask, "scale": scale, "is_causal": True if is_causal else None}
    options = {name: option for name, option in options.items() if option is not None}
    return nn.dot_product_attention(query, key, value, **options)


def attention(model: ir.Model) -> str:
    """Replace attention in single precision by DotProductAttention: what is spelled out, and the operators."""
    return fuse(model, _find, ANCHOR, Anchor(at=("Attention",)), Anchor(at=("MultiHeadAttention",), domain=RUNTIME))


def products(model: ir.Model) -> str:
    """Replace ONNX Runtime's FusedMatMul of activations by what it fuses, which the other fusions know."""
    return fuse(model, _product)


def _product(node: ir.Node) -> Fusion | None:
    result, dims = node.outputs[0], [dims_of(value) or () for value in node.inputs]
    options = {name: attribute.value for name, attribute in node.attributes.items()}
    if operator_name(node) != f"{RUNTIME}.FusedMatMul" or min(map(len, dims)) < 3:
        return None
    if options.get("transBatchA") or options.get("transBatchB") or result.dtype is not ir.DataType.FLOAT:
        return None

    def build(builder: Builder) -> ir.Value:
        def operand(place: int, name: str) -> ir.Value:
            *batch, row, column = range(len(dims[place]))
            order = [*batch, column, row] if options.get(name) else [*batch, row, column]
            return builder.transposed(source(node, place), order)

        product = builder.emit("MatMul", [operand(0, "transA"), operand(1, "transB")], dims_of(result))
        alpha = builder.constant(np.asarray(options.get("alpha", 1), np.float32), "alpha")
        return builder.emit("Mul", [product, alpha], dims_of(result))

    return Fusion("MatMul", result, sources(node), build)


def unmerged(model: ir.Model) -> str:
    """Replace what ONNX Runtime merges into its attention by operators: projections, biases, and masks of keys.

    What is left is its MultiHeadAttention of queries, keys, values, and perhaps a term of the scores.
    """
    return fuse(model, _unmerged, Anchor(at=("Attention", "MultiHeadAttention"), domain=RUNTIME))


def _unmerged(node: ir.Node) -> Fusion | None:
    merged = Merged.of(node)
    if merged is None:
        return None
    return Fusion("MultiHeadAttention", node.outputs[0], [value for value in node.inputs if value], merged.emit)


@dataclass(frozen=True)
class Merged:
    """An attention of ONNX Runtime.

    Attributes:
      operands: the queries, the keys and the values; or the one value that they are projected from.
      kernel: the matrix of the projection, if there is one.
      widths: the sizes of queries, keys and values along the last axis.
      bias: one vector for all of them.
      mask: a number for each key of a batch, positive if it is visible.
      term: what is added to the scores.
      hidden: what is added to the scores of hidden keys.
    """

    operands: Sequence[ir.Value]
    kernel: ir.Value | None
    widths: Sequence[int]
    bias: ir.Value | None
    mask: ir.Value | None
    term: ir.Value | None
    hidden: float

    @classmethod
    def of(cls, node: ir.Node) -> Merged | None:
        """Return the attention that a node computes; None if nothing is merged into it, or more than this."""
        options = {name: attribute.value for name, attribute in node.attributes.items()}
        first, second, third, fourth, fifth, term = (operand(node, place) for place in range(6))
        if node.op_type == "Attention":  # the fifth is a cache
            operands, kernel, bias, mask, is_cached = [first], second, third, fourth, fifth is not None
            widths = options.get("qkv_hidden_sizes") or [_last_size(kernel) // 3] * 3
        else:
            operands, kernel, bias, mask, is_cached = [first, second, third], None, fourth, fifth, False
            widths = [*map(_last_size, operands)]
        if is_cached or any(node.inputs[6:]) or options.get("do_rotary") or 0 in widths:
            return None
        if node.outputs[0].dtype is not ir.DataType.FLOAT or not (kernel or bias or mask):
            return None
        sequences = [value for value in operands if value is not None and len(dims_of(value) or ()) == 3]
        low = max(options.get("mask_filter_value", -10000.0), float(np.finfo(np.float32).min))
        merged = cls(sequences, kernel, widths, bias, mask, term, low)
        if len(sequences) < len(operands) or (mask is not None and dims_of(mask) != merged.over_keys[::3]):
            return None
        return merged

    @property
    def over_keys(self) -> list[Dim]:
        """The shape of a mask of keys that broadcasts to the scores."""
        batch, keys = ((dims_of(value) or ())[axis] for value, axis in ((self.operands[0], 0), (self.operands[-1], 1)))
        return [batch, 1, 1, keys]

    def emit(self, builder: Builder) -> ir.Value:
        """Emit the operators and ONNX Runtime's MultiHeadAttention of what they compute; return the result."""
        attributes = builder.node.attributes
        kept = {name: attributes[name].value for name in ("num_heads", "scale", "unidirectional") if name in attributes}
        terms = [value for value in (self.term, self._emit_mask(builder)) if value is not None]
        inputs = [*self._emit_operands(builder), None, None, _combined(builder, "Add", terms)]
        dims = dims_of(builder.node.outputs[0])
        return builder.emit("MultiHeadAttention", inputs, dims, domain=RUNTIME, **kept)

    def _emit_operands(self, builder: Builder) -> Sequence[ir.Value]:
        def split(value: ir.Value) -> list[ir.Value]:
            outer = (dims_of(value) or ())[:-1]
            stamps = [(value.dtype, [*outer, width]) for width in self.widths]
            return builder.emit_many("Split", [value, builder.integers(self.widths, "widths")], stamps, axis=len(outer))

        def added(value: ir.Value, bias: ir.Value | None) -> ir.Value:
            return value if bias is None else builder.emit("Add", [value, bias], dims_of(value))

        if self.kernel is not None:
            dims = [*(dims_of(self.operands[0]) or ())[:2], sum(self.widths)]
            return split(added(builder.emit("MatMul", [self.operands[0], self.kernel], dims), self.bias))
        biases = [None] * 3 if self.bias is None else split(self.bias)
        return [*map(added, self.operands, biases)]

    def _emit_mask(self, builder: Builder) -> ir.Value | None:
        if self.mask is None:
            return None
        numbers = [builder.constant(np.asarray(number, np.float32), "number") for number in (0, self.hidden)]
        zero = builder.constant(np.zeros((), numpy_dtype(self.mask)), "zero")
        mask = builder.viewed(self.mask, self.over_keys)
        visible = builder.emit("Greater", [mask, zero], self.over_keys, ir.DataType.BOOL)
        return builder.emit("Where", [visible, *numbers], self.over_keys)


def _last_size(value: ir.Value | None) -> int:
    """Return the size of the last axis; zero if it is not known."""
    (size,) = static_dims((dims_of(value) or [None])[-1:]) or [0]
    return size


def gated(model: ir.Model) -> str:
    """Replace `x * sigmoid(x)` by the operator Swish."""
    return activations(model, GATED)


def _find(node: ir.Node) -> Fusion | str | None:
    whole = recognized(node) if node.op_type in ANCHOR.at else _of_operator(node)
    return _fusion(whole) if isinstance(whole, Attended) else whole


def _fusion(whole: Attended) -> Fusion | str:
    if any(seen.value.dtype is not ir.DataType.FLOAT for seen in (*whole.operands, *whole.biases)):
        return "it is not in single precision"
    if whole.axes.heads is None and len(whole.result.axes) < 4:
        return "it has no heads"
    if whole.softcap or whole.sink is not None:
        return "its scores have a soft cap, or a sink"
    whole = _nearest(_with_masks(whole))
    arranged = _arranged(whole)
    size = whole.sizes.get(whole.axes.inner)
    if whole.heads is None or arranged is None or not isinstance(size, int):
        return "its shapes cannot be told before it runs"
    if size != whole.sizes[whole.axes.outer]:
        return "its keys and values are of different sizes"
    masking = Masking.of(whole)
    if isinstance(masking, str):
        return masking
    attributes: dict[str, RuntimeValue] = (
        {} if math.isclose(whole.scale * size**0.5, 1, rel_tol=1e-6) else {"scale": whole.scale}
    )
    if masking.is_causal:
        attributes["is_causal"] = 1

    def build(builder: Builder) -> ir.Value:
        sides = zip(arranged[:3], whole.operands[:3], strict=True)
        operands = [*(how.apply(builder, builder.now(one.value)) for how, one in sides), *masking.emit(builder)]
        result = builder.emit("DotProductAttention", operands, arranged[3].merged, **attributes)
        node = result.producer()
        assert node is not None
        node.domain = DOMAIN
        return arranged[3].revert(builder, result)

    return Fusion("DotProductAttention", whole.result.value, whole.leaves, build)


def _positions_first(batch: Axis, along: Axis, heads: list[Axis], vector: Axis) -> list[list[Axis]]:
    return [[batch], [along], heads, [vector]]


def _arranged(whole: Attended) -> list[Arrangement] | None:
    """Return how queries, keys, values and the result have heads after positions; None if one of them cannot."""
    arranged = []
    for seen, own in zip(whole.operands, whole.axes.operands, strict=True):
        groups = _positions_first(whole.axes.batch, *own)
        groups = [[label] if (label := _label(group)) in seen.axes else group for group in groups]
        arranged.append(Arrangement.of(dims_of(seen.value) or (), seen.axes, groups, whole.sizes))
    return None if None in arranged else arranged


def _nearest(whole: Attended) -> Attended:
    """Return an attention of the values that are nearest to its products, so that the views behind stay as they are."""
    absent = {field.name: field.name for field in fields(Axes) if getattr(whole.axes, field.name) is None}
    absent.pop("group", None)
    axes, sizes = replace(whole.axes, **absent), {**whole.sizes, **dict.fromkeys(absent, 1)}
    operands = [
        _nearest_view(seen, _positions_first(axes.batch, *own), sizes)
        for seen, own in zip(whole.operands, axes.operands, strict=True)
    ]
    return replace(
        whole,
        operands=tuple(operands),
        axes=axes,
        sizes=sizes,
        masks=tuple(replace(mask, seen=_nearest_view(mask.seen, axes.scores, sizes)) for mask in whole.masks),
        biases=tuple(_nearest_view(bias, axes.scores, sizes) for bias in whole.biases),
    )


def _nearest_view(seen: Seen, groups: Sequence[Sequence[Axis]], sizes: Mapping[Axis, Dim]) -> Seen:
    """Return the first view of a value that has an axis for each group, in any order; the value itself if none has."""
    wanted, value = [_label(group) for group in groups], seen.entry
    for labels, _ in seen.along:
        present = [label for label in labels if label is not None]
        if len(labels) == len(wanted) and {*present} <= {*wanted}:
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
    """

    biases: Sequence[tuple[Seen, Arrangement]]
    conditions: Sequence[tuple[Seen, Arrangement]]
    negated: Sequence[Seen]
    is_causal: bool

    @classmethod
    def of(cls, whole: Attended) -> Masking | str:
        """Return the masking of an attention; or why JAX's function does not compute it."""
        chosen = [mask for mask in whole.masks if not mask.is_causal(whole.axes) and not _hides_nothing(mask)]
        if any(not all(map(math.isfinite, mask.numbers or ())) and not mask.keeps_some(whole.axes) for mask in chosen):
            return "a row that is masked with -inf as a whole would not be NaN"
        conditions = [mask.seen for mask in chosen]
        arranged = {seen: how for seen in (*whole.biases, *conditions) if (how := whole.over_scores(seen)) is not None}
        if len(arranged) < len({*whole.biases, *conditions}):
            return "the axes of its mask are others"
        return cls(
            [(seen, arranged[seen]) for seen in whole.biases],
            [(seen, arranged[seen]) for seen in conditions],
            [mask.seen for mask in chosen if mask.numbers is not None and mask.numbers[0] != 0],
            whole.is_causal or any(mask.is_causal(whole.axes) for mask in whole.masks),
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
        return [_combined(builder, "Add", biases), _combined(builder, "And", conditions)]


def _with_masks(whole: Attended) -> Attended:
    """Return an attention with masks in place of what is added to scores for nothing but to hide some."""
    added = {bias: additive(bias) for bias in whole.biases}
    hiding = {
        bias: mask for bias, mask in added.items() if mask is not None and (_hides(mask) or mask.is_causal(whole.axes))
    }
    biases = tuple(bias for bias in whole.biases if bias not in hiding)
    return replace(whole, masks=(*whole.masks, *hiding.values()), biases=biases)


def _hides(mask: Mask) -> bool:
    """Whether the sum with a mask of two numbers does not depend on the scores that it hides."""
    return mask.numbers is not None and max(mask.numbers) == 0 and -math.inf < min(mask.numbers) <= HIDDEN


def _hides_nothing(mask: Mask) -> bool:
    """Whether the condition of a mask is known to hold for all visible scores, or for none."""
    condition = constant_of(mask.seen.value)
    return condition is not None and mask.numbers is not None and bool((condition == (mask.numbers[0] == 0)).all())


def _broadcastable(builder: Builder, seen: Seen, how: Arrangement) -> ir.Value:
    """Return a value that broadcasts to the scores: without the axes of one element that broadcasting adds."""
    if how.merged == (*[1] * (len(how.merged) - len(how.dims)), *how.dims):
        return builder.now(seen.value)
    return how.apply(builder, builder.now(seen.value))


def _combined(builder: Builder, op_type: str, terms: Sequence[ir.Value]) -> ir.Value | None:
    """Return the sum or the conjunction of values, with all axes of the scores; None of none."""

    def wide(value: ir.Value) -> list[Dim]:
        dims = dims_of(value) or []
        return [*[1] * (len(AXES.scores) - len(dims)), *dims]

    def both(one: ir.Value, other: ir.Value) -> ir.Value:
        dims = [b if a == 1 else a for a, b in zip(wide(one), wide(other), strict=True)]
        rank = max(len(dims_of(value) or ()) for value in (one, other))
        return builder.emit(op_type, [one, other], dims[len(dims) - rank :], one.dtype)

    if not terms:
        return None
    total = reduce(both, terms)
    return reshaped(builder, total, wide(total))


def _of_operator(node: ir.Node) -> Attended | str | None:
    """Return the attention that an operator computes, unless it has a cache, or a mask that may hide a whole row.

    The operators are those of ONNX, and of ONNX Runtime, whose masks are always added.
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
    known = static_dims([*heads, *(dims[-1] for dims in shapes)])
    if known is None:
        return "its shapes cannot be told before it runs"
    many, few, *widths = known
    inner, outer = (widths[0] // many, widths[3] // many) if is_flat else (widths[0], widths[3])
    axes = AXES if many > few else replace(AXES, group=None)
    groups = heads_merged if is_flat else heads_first
    seen = [_labelled(value, groups(axes.batch, *own)) for value, own in zip(values, axes.operands, strict=True)]
    biases = () if mask is None else (_labelled(mask, axes.scores[4 - len(dims_of(mask) or ()) :]),)
    if not is_runtime and any(additive(bias) is None or bias.entry.dtype is ir.DataType.BOOL for bias in biases):
        return "its mask may hide a whole row"
    sizes = sizes_of(*seen, *biases) | {
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
    return Attended((seen[0], seen[1], seen[2], seen[3]), axes, sizes, scale, biases=biases, is_causal=is_causal)


def _labelled(value: ir.Value, groups: Sequence[Sequence[Axis]]) -> Seen:
    """Return a value as seen with one axis for each group of labels."""
    return look(value, map(_label, groups))


def _label(group: Sequence[Axis]) -> Axis:
    """Return the label of the axis that a group is merged into."""
    own = [label for label in group if label is not None]
    return own[0] if len(own) == 1 else joined(own)
