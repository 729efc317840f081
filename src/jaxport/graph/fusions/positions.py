"""Replace what is known before a graph runs: gathers by positions, conditions that always hold, guards that cannot act.

1. A Gather whose index is a position is a view or a slice of its operand.
2. A value all of whose elements are one known number is that number, expanded.
3. `where(True, x, y)` is `x`, `x & True` is `x`, and a `clip` between bounds that its operand has is the operand.
4. Positions that are computed otherwise than by a Range are a Range.

What is known of NaN holds for finite inputs and weights: a guard that acts on NaN alone goes unless `strict` is asked for.
Then it goes only where no input and no weight gives NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from jaxport.graph.axis_groups import axis_groups
from jaxport.graph.editing import (
    Dim,
    Editor,
    constant_of,
    dims_of,
    is_op,
    numpy_dtype,
    operand,
    roots,
    source,
    sources,
    subgraphs,
    substitute,
)
from jaxport.graph.facts.bounds import at_least
from jaxport.graph.facts.facts import Facts
from jaxport.graph.facts.forms import ZERO, Form, divided, uniform
from jaxport.graph.facts.knowledge import Knowledge
from jaxport.graph.facts.moves import Places, whole_group
from jaxport.graph.fusing import Builder, report
from jaxport.onnx_facts import ARITHMETIC, LOOKUPS, RESHAPING, VIEWS
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import quotient, size_sum

PLAIN = VIEWS | ARITHMETIC | {"Cast", "Neg"} | {"Range"}
"""Operators that compute positions as a person would."""
GIVEN = ("ConstantOfShape", "Shape", "Size")
"""Operators whose results are numbers as they are."""
TO_THE_END, BEFORE_THE_FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
"""Ends of slices."""


def positions(model: ir.Model, sizes: Mapping[ir.Value, np.ndarray] | None = None, *, strict: bool = True) -> str:
    """Replace what is known before the graph runs, in the graph, its subgraphs and its functions; return the report.

    Args:
      model: changed in place.
      sizes: by value, its elements as texts of sizes, if they depend on sizes alone.
      strict: whether guards that act on NaN alone stay, and what is known has to hold for all inputs and weights.
    """
    certain = Knowledge(model, sizes or {}, are_finite=False)
    known = certain if strict else Knowledge(model, sizes or {})
    rewriting = _Folding(known, certain, Editor(model), strict)
    for root in roots(model):
        for graph in [root, *subgraphs(root)]:
            for node in list(graph):
                if node.graph is not None and len(node.outputs) == 1 and not node.domain:
                    rewriting.replace(root, node)
    return report(rewriting.made, {})


@dataclass(eq=False)
class _Folding:
    """What is known, also of inputs and weights that are not finite, and what was replaced."""

    knowledge: Knowledge
    certain: Knowledge
    editor: Editor
    strict: bool
    made: dict[str, int] = field(default_factory=dict)

    def replace(self, root: ir.Graph, node: ir.Node) -> None:
        """Replace the result of a node, if it is known to be something simpler."""
        result = node.outputs[0]
        if dims_of(result) is None or result.dtype is None or constant_of(result) is not None:
            return
        if self.strict and (self._is_guard(node) or not _is_of_positions(node)) and not self._is_decided(node):
            return
        builder = Builder(self.editor, root, node, {})
        new = self._number(builder, result) or self._chosen(builder, result) or self._gathered(builder, result)
        new = new or self._range(builder, result)
        if new is None or new is result:
            return
        if new.dtype != result.dtype or list(dims_of(new) or ()) != list(dims_of(result) or ()):
            return
        if result.is_graph_output() and result.name:
            if new.producer() is None or new.is_graph_output() or new.graph is not result.graph:
                return
            result.name, new.name = self.editor.unique(result.name), result.name
        if substitute(result, new):
            self.made[node.op_type] = self.made.get(node.op_type, 0) + 1

    def _is_guard(self, node: ir.Node) -> bool:
        """Whether a node acts on NaN or infinities alone, or tells whether there are some."""
        conditions = [value.producer() for value in node.inputs if value is not None]
        return any(is_op(each, "IsNaN", "IsInf") for each in (node, *conditions))

    def _is_decided(self, node: ir.Node) -> bool:
        """Whether a node chooses by a condition that is the same for all inputs, as whether an integer is NaN."""
        band = self.certain.of(source(node)).band if is_op(node, "Where") else None
        return band is not None and (band.is_always or band.is_never)

    def _of(self, value: ir.Value | None) -> Facts:
        return self.knowledge.of(value)

    # Numbers

    def _number(self, builder: Builder, result: ir.Value) -> ir.Value | None:
        node = builder.node
        if self.strict and numpy_dtype(result).kind == "f":
            return None
        number = self._of(result).number
        if number is None or not node.inputs or node.op_type in (*GIVEN, "IsNaN", "IsInf"):
            return None  # what asks whether something is NaN goes with what it guards
        if numpy_dtype(result).kind == "b" and self.certain.of(result).number != number:
            return None  # a program may ask whether its inputs are finite
        if is_op(node, *VIEWS) and constant_of(source(node)) is not None:
            return None
        constant = builder.constant(np.asarray(number, numpy_dtype(result)), f"{result.name}/value")
        return self._expanded(builder, constant, dims_of(result) or [])

    def _expanded(self, builder: Builder, value: ir.Value, dims: Sequence[Dim]) -> ir.Value | None:
        """Return a value broadcast to some dims; None if no value in reach has them."""
        own = dims_of(value) or []
        if own == list(dims):
            return value
        missing = [dim for at, dim in enumerate(dims) if own[at - len(dims) :][:1] != [dim] or len(own) < len(dims)]
        carried = {dim for carrier in (*builder.root.inputs, *builder.node.inputs) for dim in dims_of(carrier) or ()}
        if not all(isinstance(dim, int) or dim in carried for dim in missing):
            return None
        return builder.expanded(value, dims)

    # Choices

    def _chosen(self, builder: Builder, result: ir.Value) -> ir.Value | None:
        """Return the operand that a choice always gives."""
        node, dims = builder.node, dims_of(result) or []
        kept: ir.Value | None = None
        if is_op(node, "Where"):
            band = self._of(source(node)).band
            kept = (
                None
                if band is None
                else source(node, 1)
                if band.is_always
                else source(node, 2)
                if band.is_never
                else None
            )
        elif is_op(node, "And", "Or"):
            for value, other in (sources(node), sources(node)[::-1]):
                band = self.certain.of(other).band
                if band is not None and (band.is_always if node.op_type == "And" else band.is_never):
                    kept = value
        elif is_op(node, "Clip"):
            low, high = operand(node, 1), operand(node, 2)
            x = self._of(source(node))
            above = low is None or at_least(x.low, self._of(low).high)
            if above and (high is None or at_least(self._of(high).low, x.high)) and "min" not in node.attributes:
                kept = source(node) if "max" not in node.attributes else None
        elif is_op(node, "Max", "Min") and len(node.inputs) == 2:
            for value, other in (sources(node), sources(node)[::-1]):
                a, b = self._of(value), self._of(other)
                ends = (a.low, b.high) if node.op_type == "Max" else (b.low, a.high)
                if a.never_nan and b.never_nan and at_least(*ends):
                    kept = value
        return None if kept is None else self._expanded(builder, kept, dims)

    # Gathers

    def _gathered(self, builder: Builder, result: ir.Value) -> ir.Value | None:
        node = builder.node
        if not is_op(node, *LOOKUPS) or constant_of(operand(node, 1)) is not None:
            return None
        places, data = self.knowledge.places(result), source(node)
        while places is not None and None not in places and is_op(before := data.producer(), *RESHAPING, "Flatten"):
            inner = self._behind(places, source(before), data, result)
            if inner is None:
                break
            places, data = inner, source(before)
        if data.producer() is None and not data.is_graph_input():  # a table, in which positions are looked up
            return None
        return None if places is None else self._part(builder, data, places, dims_of(result) or [])

    def _behind(self, places: Places, before: ir.Value, after: ir.Value, result: ir.Value) -> Places | None:
        """Return places in a reshaped value as places in the value before."""
        old, new, dims = dims_of(before), dims_of(after), dims_of(result) or []
        groups = None if old is None or new is None else axis_groups(old, new) or whole_group(old, new)
        if groups is None or old is None or new is None:
            return None
        made: list[Form | None] = [uniform(ZERO, len(dims)) for _ in old]
        for own, others in groups:
            flat, stride = uniform(ZERO, len(dims)), size_sum(1)
            for axis in reversed([axis for axis in others if new[axis] != 1]):
                place = places[axis]
                if place is None:
                    return None
                flat, stride = flat + place * stride, stride * size_sum(new[axis])
            wide = [axis for axis in own if old[axis] != 1]
            for axis in reversed(wide[1:]):
                parts = divided(flat, size_sum(old[axis]), dims)
                if parts is None:
                    return None
                flat, made[axis] = parts
            if wide:
                made[wide[0]] = flat
        return made

    def _part(self, builder: Builder, data: ir.Value, places: Places, dims: Sequence[Dim]) -> ir.Value | None:
        """Return the part of a value that is at some places: slices, views, and a broadcast."""
        own = dims_of(data)
        chosen = (
            None if own is None else [_Along.of(place, size, dims) for place, size in zip(places, own, strict=True)]
        )
        if own is None or chosen is None or None in chosen:
            return None
        along = [each for each in chosen if each is not None]
        axes = [each.axis for each in along if each.axis is not None]
        if len(set(axes)) < len(axes):
            return None
        value = data
        for at in reversed(range(len(own))):
            value = along[at].taken(builder, value, at, dims)
        order = sorted(range(len(axes)), key=axes.__getitem__)
        value = builder.transposed(value, order)
        value = builder.viewed(value, [dims[axis] if axis in axes else 1 for axis in range(len(dims))])
        return self._expanded(builder, value, dims)

    # Positions

    def _range(self, builder: Builder, result: ir.Value) -> ir.Value | None:
        """Return positions along one axis as a Range, if they are computed otherwise."""
        node, dims = builder.node, dims_of(result) or []
        if node.op_type in PLAIN or numpy_dtype(result).kind not in "iu":
            return None
        form = self._of(result).form
        if form is None or form.is_uniform or form.constant.value is None:
            return None
        axes = [axis for axis, slope in enumerate(form.slopes) if slope != ZERO]
        if len(axes) != 1 or form.slopes[axes[0]].value != 1 or result.dtype is None:
            return None
        (axis,), dtype = axes, numpy_dtype(result)
        end = self._size(builder, dims[axis], form.constant.value)
        if end is None:
            return None
        start, step = (
            builder.constant(np.asarray(number, dtype), name)
            for number, name in ((form.constant.value, "start"), (1, "step"))
        )
        value = builder.emit("Range", [start, builder.cast(end, result.dtype), step], [dims[axis]], result.dtype)
        value = builder.viewed(value, [dim if place == axis else 1 for place, dim in enumerate(dims)])
        return self._expanded(builder, value, dims)

    def _size(self, builder: Builder, dim: Dim, shift: int) -> ir.Value | None:
        """Return a size plus a number as a scalar; None if no value in reach has it."""
        if isinstance(dim, int):
            return builder.constant(np.asarray(dim + shift, np.int64), "end")
        carriers = (*builder.root.inputs, *builder.node.inputs)
        if not any(dim in (dims_of(carrier) or ()) for carrier in carriers):
            return None
        size = builder.viewed(builder.shape([dim]), [])
        if not shift:
            return size
        return builder.emit(
            "Add", [size, builder.constant(np.asarray(shift, np.int64), "shift")], [], ir.DataType.INT64
        )


def _is_of_positions(node: ir.Node) -> bool:
    """Whether a node looks up elements, chooses between values, or computes integers or truth values."""
    dtype = node.outputs[0].dtype
    return is_op(node, "Where", *LOOKUPS) or (dtype is not None and not dtype.is_floating_point())


@dataclass(frozen=True)
class _Along:
    """What is taken along an axis: the element at a place, or a slice that begins there and becomes another axis."""

    start: int | None
    axis: int | None = None
    step: int = 1
    is_whole: bool = False
    is_last: bool = False

    @classmethod
    def of(cls, place: Form | None, size: Dim, dims: Sequence[Dim]) -> _Along | None:
        """Return what a place says is taken of an axis of some size; None if it says something else."""
        whole = size_sum(size)
        if place is None or not place.is_at_least(0, dims) or not place.is_below(whole, dims):
            return None
        axes = [axis for axis, slope in enumerate(place.slopes) if slope != ZERO]
        if not axes:
            is_last = place.constant == whole - 1
            number = place.constant.value
            return cls(number if number is not None else -1) if number is not None or is_last else None
        start, step = place.constant.value, place.slopes[axes[0]].value
        length = size_sum(dims[axes[0]])
        if step == -1 and place.constant == whole - 1 and length == whole and len(axes) == 1:
            return cls(-1, axes[0], -1)
        if len(axes) > 1 or start is None or step is None or step < 1:
            return None
        is_whole = (start, step) == (0, 1) and length == whole
        is_last = is_at_least(length * step + start, whole) or length == quotient(
            whole - start + (step - 1), size_sum(step)
        )
        if not is_whole and not is_last and length.value is None:
            return None
        return cls(start, axes[0], step, is_whole, is_last)

    def taken(self, builder: Builder, value: ir.Value, at: int, dims: Sequence[Dim]) -> ir.Value:
        """Return the part of a value."""
        own = list(dims_of(value) or [])
        if self.axis is None:
            del own[at]
            index = builder.constant(np.asarray(self.start, np.int64), "index")
            return builder.emit("Gather", [value, index], own, value.dtype, axis=at)
        if self.is_whole:
            return value
        length = size_sum(dims[self.axis]).value
        if self.step < 0:
            bounds = [builder.integers([number], "bound") for number in (-1, BEFORE_THE_FIRST, at, -1)]
            return builder.emit("Slice", [value, *bounds], own, value.dtype)
        end = TO_THE_END if self.is_last or length is None else (self.start or 0) + (length - 1) * self.step + 1
        own[at] = dims[self.axis]
        bounds = [builder.integers([number], "bound") for number in (self.start or 0, end, at, self.step)]
        return builder.emit("Slice", [value, *bounds], own, value.dtype)
