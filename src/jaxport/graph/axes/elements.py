"""The elements of a value along an axis, by running operators on symbols.

An index is a function of labels, one for each axis of the value that is asked for: `x[b, t, 2*j + 1]`. So one
evaluation is of all elements at once, whatever the sizes. Where an axis is joined of parts, or is split, the labels of
one part are evaluated after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from jaxport.graph.axes.sums import AppliedOperator, Element, ElementSum, Index, KnownElement
from jaxport.graph.axis_groups import axis_groups
from jaxport.graph.editing import Dim, constant_of, dims_of, integer, is_op, is_weight, number_of, source, sources
from jaxport.graph.facts.forms import ZERO, Form, divided, form_of, uniform, unit
from jaxport.graph.facts.knowledge import LARGEST, Knowledge
from jaxport.graph.facts.moves import PLACES, at_places
from jaxport.graph.remembering import remembered
from jaxport.onnx_facts import ELEMENTWISE, RESHAPING
from jaxport.sizes.sums import SizeSum, size_sum

ONE = size_sum(1)
MOVING = frozenset({*PLACES, "Tile"})
"""Operators that only move elements of their first operand."""
MOST_PIECES = 12
"""The parts of an axis that are looked at one by one."""
FAR = 1 << 62
"""No axis is as long."""
MOST_TERMS = 4
"""The products that a contraction may sum."""
MOST_VALUES = 200
"""The elements that one may be computed from; beyond, values are what they are."""


@dataclass
class Torn(Exception):
    """The labels along an axis that are not in one part: those from `at` on are in another, or all `times` in turn."""

    at: int = 0
    times: int = 1

    def parts(self, labels: range) -> list[range]:
        """Return the labels of each part."""
        return (
            [labels[: self.at], labels[self.at :]] if self.at else [labels[k :: self.times] for k in range(self.times)]
        )


@dataclass(frozen=True)
class Piece:
    """Elements along an axis that are one function of their place among them.

    Attributes:
      places: where along the axis they are.
      total: what they are, by their place in `places`.
      elements: what is known of others.
    """

    places: range
    total: ElementSum
    elements: IndexedElements


def pieces(value: ir.Value, axis: int, opened: Set[ir.Value], knowledge: Knowledge) -> Iterator[Piece]:
    """Yield the elements of a value along an axis of known size, in pieces; none if they fall in too many.

    Args:
      value: the value; its other axes may have any sizes.
      axis: the axis.
      opened: the values that its elements are wanted as a function of.
      knowledge: what is known of the graph.
    """
    dims = dims_of(value)
    size = None if dims is None else dims[axis]
    left = [range(size)] if isinstance(size, int) and size else []
    made = 0
    while dims is not None and left and made + len(left) <= MOST_PIECES:
        places = left.pop(0)
        sizes = [len(places) if place == axis else dim for place, dim in enumerate(dims)]
        elements = IndexedElements(knowledge, sizes, axis, opened)
        index = [elements.label(place) for place in range(len(dims))]
        index[axis] = index[axis] * places.step + uniform(size_sum(places.start), len(dims))
        try:
            piece = Piece(places, elements.of(value, tuple(index)), elements)
        except Torn as torn:
            left = torn.parts(places) + left
            continue
        made += 1
        yield piece


def linear_operands(node: ir.Node) -> list[ir.Value]:
    """Return the operands that a result may be a linear function of, twice where it may be of several elements."""
    if is_op(node, *MOVING, "Cast", "Neg", "Pad"):
        return [source(node)]
    if is_op(node, "MatMul"):
        size = (dims_of(source(node)) or [None])[-1]
        return (
            sources(node) * 2
            if isinstance(size, int) and size <= MOST_TERMS
            else sources(node)[: _exchanges(node.inputs[1])]
        )
    if is_op(node, "ReduceSum"):
        return [source(node)] * 2
    return [*sources(node)][is_op(node, "Where") :] if is_op(node, *RULES) else []


@remembered
def _exchanges(matrix: ir.Value | None) -> bool:
    """Whether each column of a known matrix has one element that is not zero."""
    array = None if is_weight(matrix) else constant_of(matrix)
    return array is not None and array.ndim == 2 and bool(((array != 0).sum(0) == 1).all())


@dataclass(eq=False)
class IndexedElements:
    """The elements of values at an index that is a function of labels.

    Args:
      knowledge: what is known of the graph.
      sizes: how many there are of each label.
      torn: the label whose values may be looked at one part after another.
      opened: the values that elements are wanted as a function of.

    Attributes:
      known_as: by sum, the values that have it as elements, with the index there; those computed first come first.
      products: the dtypes in which open elements are multiplied.
      narrowed: the dtypes that they are rounded to before.
    """

    knowledge: Knowledge
    sizes: Sequence[Dim]
    torn: int
    opened: Set[ir.Value] = frozenset()
    known_as: dict[ElementSum, list[tuple[ir.Value, Index]]] = field(default_factory=dict)
    products: set[ir.DataType | None] = field(default_factory=set)
    narrowed: set[ir.DataType | None] = field(default_factory=set)
    _found: dict[tuple[ir.Value, Index], ElementSum] = field(default_factory=dict)

    def label(self, place: int) -> Form:
        """Return a label as a form; of one element, it is zero."""
        return uniform(ZERO, len(self.sizes)) if self.sizes[place] == 1 else unit(place, len(self.sizes))

    def number(self, number: int) -> Form:
        """Return a number as a form."""
        return uniform(size_sum(number), len(self.sizes))

    def of(self, value: ir.Value, index: Index) -> ElementSum:
        """Return an element of a value.

        Raises:
          Torn: the elements of all labels are no one function.
        """
        key = (value, index)
        if key not in self._found:
            made = self._of(value, index) if len(self._found) < MOST_VALUES else None
            self._found[key] = ElementSum.of(Element(value, index, value in self.opened)) if made is None else made
            self.known_as.setdefault(self._found[key], []).append(key)
        return self._found[key]

    def _of(self, value: ir.Value, index: Index) -> ElementSum | None:
        node, array = value.producer(), None if is_weight(value) else constant_of(value)
        if value in self.opened:
            return None
        if array is not None:
            return self._known(array, index) if array.nbytes <= LARGEST and array.size else None
        if node is None or node.domain or dims_of(value) is None:
            return None
        if is_op(node, *MOVING):
            places = self.operand_index(value, index)
            return None if places is None else self.of(source(node), places)
        rule = RULES.get(node.op_type)
        if rule is not None:
            return rule(self, node, index)
        return self._applied(node, index) if is_op(node, *ELEMENTWISE) else None

    # Moved elements

    def operand_index(self, value: ir.Value, index: Index) -> Index | None:
        """Return where in its first operand an operator that only moves elements takes one; None if it is not known."""
        node = value.producer()
        assert node is not None
        old, new = dims_of(source(node)), dims_of(value)
        if old is None or new is None:
            return None
        if is_op(node, *RESHAPING, "Flatten"):
            return self._regrouped(old, new, index)
        if is_op(node, "Tile"):
            rests = [self._divided(form, dim) if dim != other else (None, form)
                     for form, dim, other in zip(index, old, new, strict=True)]  # fmt: skip
            return None if None in rests else tuple(rest[1] for rest in rests if rest is not None)
        places = [*(self.knowledge.places(value) or ())]
        moved = [None if place is None else self._at(place, index) for place in places]
        array = constant_of(node.inputs[1]) if is_op(node, "Gather") else None
        if array is not None and array.ndim < 2 and None in moved:
            axis = integer(node, "axis", 0) % len(old)
            moved[axis] = self._read(
                np.where(array < 0, array + _number(old[axis]), array), index[axis : axis + array.ndim]
            )
        known = tuple(place for place in moved if place is not None)
        return known if len(known) == len(old) else None

    def _at(self, place: Form, index: Index) -> Form | None:
        """Return a place, which is a function of an index, at an index."""
        used = [form for form, slope in zip(index, place.slopes, strict=True) if slope != ZERO]
        if place.constant == ZERO and len(used) == 1 and ONE in place.slopes:
            return used[0]
        return at_places(place, index, len(self.sizes))

    def _regrouped(self, old: Sequence[Dim], new: Sequence[Dim], index: Index) -> Index | None:
        """Return an index of a reshaped value: places are counted through merged axes, and divided among split ones."""
        groups, made = axis_groups(old, new), [self.number(0)] * len(old)
        for before, after in groups or ():
            wide, joined = [axis for axis in before if old[axis] != 1], [axis for axis in after if new[axis] != 1]
            flat, stride = index[joined[-1]] if joined else self.number(0), size_sum(new[joined[-1]] if joined else 1)
            for axis in reversed(joined[:-1]):
                flat, stride = flat + index[axis] * stride, stride * size_sum(new[axis])
            for axis in reversed(wide[1:]):
                split = self._divided(flat, old[axis])
                if split is None:
                    return None
                flat, made[axis] = split
            for axis in wide[:1]:
                made[axis] = flat
        return None if groups is None else tuple(made)

    def _steps(self, form: Form) -> tuple[int, int] | None:
        """Return where a form that depends on the torn label alone begins, and by how much it counts."""
        others = [slope for place, slope in enumerate(form.slopes) if place != self.torn]
        start, step = form.constant.value, form.slopes[self.torn].value
        return (start, step) if start is not None and step and all(slope == ZERO for slope in others) else None

    def _divided(self, form: Form, size: Dim) -> tuple[Form, Form] | None:
        """Return the quotient and the remainder of a place; labels are torn into those that have one of either."""
        steps, count = self._steps(form), self.sizes[self.torn]
        if steps is not None and isinstance(size, int) and isinstance(count, int):
            whole, last = steps[0] // size, (steps[0] + steps[1] * (count - 1)) // size
            if whole == last:  # which most places are
                return self.number(whole), form + self.number(-whole * size)
        known = divided(form, size_sum(size), self.sizes)
        if known is None:
            self._tear_by(form, size)
        return known

    def _tear_by(self, form: Form, size: Dim) -> None:
        rest = Form(form.constant, tuple(
            ZERO if slope.split(size_sum(size))[1] == ZERO else slope for slope in form.slopes
        ))  # fmt: skip
        steps, count = self._steps(rest), self.sizes[self.torn]
        if steps is None or not isinstance(size, int) or not isinstance(count, int):
            return
        start, step = steps
        times = size // math.gcd(size, step)
        if 1 < times <= MOST_TERMS and abs(step) * count > 2 * size:
            raise Torn(times=times)
        self._tear_at(steps, start - start % size, start - start % size + size)

    def _tear_at(self, steps: tuple[int, int], low: int, high: int) -> None:
        """Tear the labels where places leave the range that the first is in."""
        (start, step), count = steps, self.sizes[self.torn]
        at = -((start - high) // step) if step > 0 else (start - low) // -step + 1
        if isinstance(count, int) and 0 < at < count:
            raise Torn(at)

    def part(self, form: Form, ends: Sequence[SizeSum]) -> int | None:
        """Return in which part of an axis a place is, given where each part ends; None if it may be in several."""
        numbers, steps, count = [end.value for end in ends[:-1]], self._steps(form), self.sizes[self.torn]
        if (steps is not None or form.number is not None) and None not in numbers and isinstance(count, int):
            first, step = steps or (form.number or 0, 0)
            bounds = [-FAR, *(number for number in numbers if number is not None), FAR]
            place = next(place for place, end in enumerate(bounds[1:]) if first < end)
            if steps is not None and not bounds[place] <= first + step * (count - 1) < bounds[place + 1]:
                self._tear_at(steps, bounds[place], bounds[place + 1])
            return place
        start = size_sum(0)
        for place, end in enumerate(ends):
            if form.is_at_least(start, self.sizes) and (
                place == len(ends) - 1 or (form + uniform(-end, len(self.sizes))).is_below(0, self.sizes)
            ):
                return place
            start = end
        return None

    # KnownElement elements

    def _known(self, array: np.ndarray, index: Index) -> ElementSum:
        """Return an element of an array, without the rows that no label leads to; a number if all are equal."""
        made: list[Form] = []
        for axis, form in enumerate(index):
            steps, count = self._steps(form), self.sizes[self.torn]
            if form.number is not None:
                array, form = array.take([form.number], axis), self.number(0)
            elif steps is not None and isinstance(count, int):
                array, form = (
                    array.take(range(steps[0], steps[0] + steps[1] * count, steps[1]), axis),
                    self.label(self.torn),
                )
            made.append(form)
        first = array.flat[0]
        if bool((array == first).all()):
            return ElementSum.of(float(first))
        axis = int(np.argmax(array.shape)) if array.shape else None  # a lone NaN has no axis, and is unlike itself
        if axis is not None and array.size == array.shape[axis] and made[axis] == self.label(self.torn):
            flat = array.ravel()
            if array.dtype.kind == "b" or set(np.abs(flat).tolist()) <= {0, 1}:
                self._tear_unlike(flat)
        return ElementSum.of(KnownElement(f"{array.dtype}{array.shape}".encode() + array.tobytes(), tuple(made), array))

    def _tear_unlike(self, row: np.ndarray) -> None:
        """Tear labels whose elements are not equal: those that take turns, or where another one begins."""
        for times in range(2, min(len(row), MOST_TERMS + 1)):
            if len(row) > times and np.array_equal(row[times:], row[:-times]):
                raise Torn(times=times)
        raise Torn(at=int(np.argmax(row != row[0])))

    def _read(self, array: np.ndarray, index: Index) -> Form | None:
        """Return an integer of a known vector as a form, if it is one of the label."""
        if array.ndim == 0:
            return self.number(int(array))
        steps, count = self._steps(index[0]), self.sizes[self.torn]
        if index[0].number is not None:
            return self.number(int(array[index[0].number]))
        if steps is None or not isinstance(count, int):
            return None
        read = array[np.arange(count) * steps[1] + steps[0]].astype(np.int64)
        if form_of(read) is None:
            self._tear_unlike(np.diff(read, append=read[-1:] + (read[1] - read[0])) if len(read) > 2 else read)
        return self.label(self.torn) * int(read[1] - read[0]) + self.number(int(read[0]))

    # Computed elements

    def _broadcast(self, node: ir.Node, index: Index, place: int) -> ElementSum:
        operand = source(node, place)
        dims = dims_of(operand)
        if dims is None:
            return ElementSum.of(Element(operand, index))
        own = zip(dims, index[len(index) - len(dims) :], strict=True)
        return self.of(operand, tuple(self.number(0) if dim == 1 else form for dim, form in own))

    def _operands(self, node: ir.Node, index: Index) -> list[ElementSum]:
        return [self._broadcast(node, index, place) for place in range(len(node.inputs))]

    def _applied(self, node: ir.Node, index: Index) -> ElementSum | None:
        if any(value is None for value in node.inputs):
            return None
        attributes = tuple(sorted((name, str(each.value)) for name, each in node.attributes.items()))
        return ElementSum.of(AppliedOperator(node.op_type, attributes, tuple(self._operands(node, index)), node))

    def _times(self, node: ir.Node, one: ElementSum, other: ElementSum) -> ElementSum | None:
        """Return a product; None for one of two open elements, or of none, which stays what it is."""
        if one.number is not None or other.number is not None:
            return one * other
        if one.is_open == other.is_open:
            return None
        self.products.add(node.outputs[0].dtype)
        return one * other


Rule = Callable[[IndexedElements, ir.Node, Index], "ElementSum | None"]


def _product(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    one, other = elements._operands(node, index)
    made = elements._times(node, one, other)
    return elements._applied(node, index) if made is None else made


def _quotient(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    one, other = elements._operands(node, index)
    return one.scaled(1 / other.number) if other.number else elements._applied(node, index)


def _sum(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    one, other = elements._operands(node, index)
    other = other.scaled(-1) if node.op_type == "Sub" else other
    simple = one.is_open or other.is_open or not one.terms or not other.terms
    return one + other if simple or (one + other).number is not None else elements._applied(node, index)


def _negative(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    return elements._broadcast(node, index, 0).scaled(-1)


def _cast(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    before, after = source(node).dtype, node.outputs[0].dtype
    operand = elements._broadcast(node, index, 0)
    floats = before is not None and after is not None and before.is_floating_point() and after.is_floating_point()
    if not floats or not (operand.is_open or operand.number is not None):
        return operand if before == after else elements._applied(node, index)
    assert before is not None
    assert after is not None
    if after.itemsize < before.itemsize and not elements.products:
        elements.narrowed.add(after)
    return operand


def _chosen(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    condition = elements._broadcast(node, index, 0).number
    return (
        elements._applied(node, index) if condition is None else elements._broadcast(node, index, 1 if condition else 2)
    )


def _joined(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    axis, ends = integer(node, "axis", 0) % len(index), [size_sum(0)]
    for part in sources(node):
        dims = dims_of(part)
        if dims is None:
            return None
        ends.append(ends[-1] + size_sum(dims[axis]))
    place = elements.part(index[axis], ends[1:])
    if place is None:
        return None
    inside = index[axis] + uniform(-ends[place], len(elements.sizes))
    return elements.of(sources(node)[place], (*index[:axis], inside, *index[axis + 1 :]))


def _padded(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    mode, pads, dims = node.attributes.get("mode"), constant_of(source(node, 1)), dims_of(source(node))
    filling = number_of(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else 0.0
    if (mode is not None and mode.value != "constant") or pads is None or dims is None or len(node.inputs) > 3:
        return None
    inside = list(index)
    for axis, before in enumerate(pads.tolist()[: len(dims)]):
        end = size_sum(dims[axis]) + before
        place = (
            1 if not before and not pads[axis + len(dims)] else elements.part(index[axis], [size_sum(before), end, end])
        )
        if place is None or filling is None:
            return None
        if place != 1:
            return ElementSum.of(filling)
        inside[axis] = index[axis] + elements.number(-before)
    return elements.of(source(node), tuple(inside))


def _contracted(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    """Return an element of a product of matrices that sums few terms, or one: of a matrix that exchanges elements."""
    (left, right), (old, by) = sources(node), map(dims_of, sources(node))
    if old is None or by is None or len(old) < 2 or len(by) < 2:
        return None
    size, matrix = old[-1], None if is_weight(right) else constant_of(right)

    def at(value: ir.Value, dims: Sequence[Dim], *last: Form) -> ElementSum:
        outer = zip(dims[:-2], index[len(index) - len(dims) : -2], strict=True)
        return elements.of(value, (*(elements.number(0) if dim == 1 else form for dim, form in outer), *last))

    if isinstance(size, int) and size <= MOST_TERMS:
        terms = [
            elements._times(node, at(left, old, index[-2], k), at(right, by, k, index[-1]))
            for k in map(elements.number, range(size))
        ]
        return _total(terms)
    if matrix is None or not _exchanges(right):
        return None
    rows = (matrix != 0).argmax(0)
    row, factor = elements._read(rows, index[-1:]), elements._known(matrix[rows, range(len(rows))], index[-1:])
    return None if row is None else elements._times(node, at(left, old, index[-2], row), factor)


def _reduced(elements: IndexedElements, node: ir.Node, index: Index) -> ElementSum | None:
    operation, dims = elements.knowledge.operation(node.outputs[0]), dims_of(source(node))
    axes = None if operation is None or dims is None else operation.axes(1, len(dims))
    if axes is None or dims is None or not axes:
        return None
    sizes = [dims[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes) or math.prod(map(_number, sizes)) > MOST_TERMS:
        return None
    kept = iter(index)
    if integer(node, "keepdims", 1):
        kept = iter([form for axis, form in enumerate(index) if axis not in axes])
    outer = [None if axis in axes else next(kept) for axis in range(len(dims))]
    terms = []
    for places in np.ndindex(*map(_number, sizes)):
        inner = dict(zip(axes, places, strict=True))
        terms.append(elements.of(source(node), tuple(
            elements.number(inner[axis]) if form is None else form for axis, form in enumerate(outer)
        )))  # fmt: skip
    return _total(terms)


def _total(terms: Iterable[ElementSum | None]) -> ElementSum | None:
    """Return a sum of products; None if one of them is not known, or none is open."""
    known = [*terms]
    total = sum((term for term in known if term is not None), ElementSum())
    return total if None not in known and total.is_open else None


def _number(dim: Dim) -> int:
    return dim if isinstance(dim, int) else 0


RULES: Mapping[str, Rule] = {
    "Add": _sum,
    "Cast": _cast,
    "Concat": _joined,
    "Div": _quotient,
    "MatMul": _contracted,
    "Mul": _product,
    "Neg": _negative,
    "Pad": _padded,
    "ReduceSum": _reduced,
    "Sub": _sum,
    "Where": _chosen,
}
"""The operators whose results are sums and products of elements of operands."""
