"""Operators that move elements: from which place of an operand each element of the result comes.

All of them have one rule: what is a function of the operand's index is that of the place, and what holds for all
elements of the operand holds for those of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jaxport.graph.axis_groups import Groups, axis_groups
from jaxport.graph.editing import Dim
from jaxport.graph.facts.facts import LONGEST, Facts, Operand, SeenNode
from jaxport.graph.facts.forms import ZERO, Band, Form, uniform, unit
from jaxport.onnx_facts import RESHAPING
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import SizeSum, size_sum

Places = Sequence[Form | None]
"""For each axis of an operand, the index along it as a function of the index of the result; None if it is none."""


def places_of(operation: SeenNode) -> Places | None:
    """Return from where in its first operand an operator takes the elements of its result; None for other operators."""
    function, x = PLACES.get(operation.op_type), operation.operand(0)
    return None if function is None or x is None or x.dims is None else function(operation, x.dims)


# Views


def _same(_: SeenNode, dims: Sequence[Dim]) -> Places:
    return [unit(axis, len(dims)) for axis in range(len(dims))]


def _transposed(operation: SeenNode, dims: Sequence[Dim]) -> Places | None:
    order, rank = operation.attributes.get("perm", [*range(len(dims))][::-1]), len(dims)
    return [unit(list(order).index(axis), rank) for axis in range(rank)] if isinstance(order, Sequence) else None


def _expanded(operation: SeenNode, dims: Sequence[Dim]) -> Places:
    rank = len(operation.dims)
    ahead = rank - len(dims)
    return [uniform(ZERO, rank) if dim == 1 else unit(axis + ahead, rank) for axis, dim in enumerate(dims)]


def _reshaped(operation: SeenNode, dims: Sequence[Dim]) -> Places | None:
    """Return the places of the axes that stay, or that become several; those of axes that are merged are no forms."""
    groups, rank = axis_groups(dims, operation.dims), len(operation.dims)
    if groups is None:
        return None
    places: list[Form | None] = [uniform(ZERO, rank) if dim == 1 else None for dim in dims]
    for before, after in groups:
        wide = [axis for axis in before if dims[axis] != 1]
        if len(wide) == 1:
            place, stride = uniform(ZERO, rank), size_sum(1)
            for axis in reversed(after):
                place, stride = place + unit(axis, rank) * stride, stride * size_sum(operation.dims[axis])
            places[wide[0]] = place
    return places


def whole_group(old: Sequence[Dim], new: Sequence[Dim]) -> Groups | None:
    """Return all axes of two shapes as one group if they have as many elements, also if sizes are sums; None
    otherwise.
    """
    counts = (math.prod(map(size_sum, dims), start=size_sum(1)) for dims in (old, new))
    return [(range(len(old)), range(len(new)))] if next(counts) == next(counts) else None


def merged(form: Form, before: Sequence[Dim], after: Sequence[Dim]) -> Form | None:
    """Return the form of a reshaped value, whose axes may be merged if the form counts on from one to the next."""
    groups, slopes = axis_groups(before, after), [ZERO] * len(after)
    if groups is None:
        return None
    for old, new in groups:
        wide = [axis for axis in old if before[axis] != 1]
        step = form.slopes[wide[-1]] if wide else ZERO
        for axis in reversed(wide):
            if form.slopes[axis] != step:
                return None
            step = step * size_sum(before[axis])
        step = form.slopes[wide[-1]] if wide else ZERO
        for axis in reversed(new):
            slopes[axis], step = (ZERO if after[axis] == 1 else step), step * size_sum(after[axis])
    return Form(form.constant, tuple(slopes))


# Parts


def _sliced(operation: SeenNode, dims: Sequence[Dim]) -> Places | None:
    rank = len(dims)
    if "starts" in operation.attributes:
        given = operation.attributes["starts"], operation.attributes.get("axes")
        starts = [size_sum(int(start)) for start in given[0]]  # type: ignore[attr-defined]
        axes, steps = given[1], None
    else:
        own, along, by = operation.operand(1), operation.operand(3), operation.operand(4)
        if own is None or own.integers is None or (by is not None and by.numbers is None):
            return None
        starts, axes, steps = own.integers, None if along is None else along.numbers, None if by is None else by.numbers
        if along is not None and axes is None:
            return None
    places: list[Form | None] = [unit(axis, rank) for axis in range(rank)]
    along_axes = [*range(len(starts))] if axes is None else [int(axis) % rank for axis in axes]  # type: ignore[attr-defined]
    for axis, start, step in zip(along_axes, starts, steps or [1] * len(starts), strict=True):
        first = _first(start, step, size_sum(dims[axis]))
        places[axis] = None if first is None else unit(axis, rank) * step + uniform(first, rank)
    return places


def _first(start: SizeSum, step: int, size: SizeSum) -> SizeSum | None:
    """Return the first place of a slice; None if it depends on sizes which of several it is."""
    is_behind = is_at_least(start, size - 1)
    if start.value is not None and start.value < 0:
        start = start + size
    if not is_at_least(start):
        return None
    if step > 0:
        return start
    return size - 1 if is_behind else start if is_at_least(size - 1, start) else None


def _split(operation: SeenNode, dims: Sequence[Dim]) -> Places | None:
    rank = len(dims)
    axis, lengths = operation.integer("axis", 0) % rank, operation.operand(1)
    sizes = None if lengths is None else lengths.integers  # of equal parts, the last one may be smaller
    given = operation.attributes.get("split")
    if isinstance(given, Sequence):
        sizes = [size_sum(int(size)) for size in given]
    places: list[Form | None] = [*_same(operation, dims)]
    if operation.place:
        behind = None if sizes is None else sum(sizes[: operation.place], ZERO)
        places[axis] = None if behind is None else unit(axis, rank) + uniform(behind, rank)
    return places


def _index(operand: Operand | None, size: Dim) -> Form | None:
    """Return indices as a form that is not negative, or None."""
    form = None if operand is None else operand.facts.form
    return None if form is None or operand is None or operand.dims is None else inside(form, operand.dims, size)


def inside(form: Form, dims: Sequence[Dim], size: Dim) -> Form | None:
    """Return an index that counts from the first element, or None if it may count from the last one."""
    if form.is_at_least(0, dims):
        return form
    return form + uniform(size_sum(size), len(form.slopes)) if form.is_below(0, dims) else None


def _gathered(operation: SeenNode, dims: Sequence[Dim]) -> Places | None:
    indices, rank = operation.operand(1), len(operation.dims)
    if indices is None or indices.dims is None:
        return None
    axis, added = operation.integer("axis", 0) % len(dims), len(indices.dims)
    index = _index(indices, dims[axis])
    places: list[Form | None] = [unit(place + (added - 1) * (place > axis), rank) for place in range(len(dims))]
    places[axis] = None if index is None else index.moved([axis + place for place in range(added)], rank)
    return places


def _gathered_elements(operation: SeenNode, dims: Sequence[Dim]) -> Places | None:
    rank = len(dims)
    axis = operation.integer("axis", 0) % rank
    places: list[Form | None] = [*_same(operation, dims)]
    places[axis] = _index(operation.operand(1), dims[axis])
    return places


def _gathered_tuples(operation: SeenNode, dims: Sequence[Dim]) -> Places | None:
    indices, rank, shared = operation.operand(1), len(operation.dims), operation.integer("batch_dims", 0)
    if indices is None or indices.dims is None or not isinstance(indices.dims[-1], int):
        return None
    outer, count = len(indices.dims) - 1, indices.dims[-1]
    places: list[Form | None] = [unit(axis, rank) for axis in range(shared)]
    for place in range(count):
        column = indices.facts.column(place)
        index = None if column is None else inside(column, indices.dims[:-1], dims[shared + place])
        places.append(None if index is None else index.moved([*range(outer)], rank))
    return [*places, *(unit(outer + place, rank) for place in range(len(dims) - shared - count))]


# The rule


PLACES: Mapping[str, Callable[[SeenNode, Sequence[Dim]], Places | None]] = {
    "Identity": _same,
    "Transpose": _transposed,
    "Expand": _expanded,
    **dict.fromkeys((*RESHAPING, "Flatten"), _reshaped),
    "Slice": _sliced,
    "Split": _split,
    "Gather": _gathered,
    "GatherElements": _gathered_elements,
    "GatherND": _gathered_tuples,
}


def at_places(form: Form, places: Places, rank: int) -> Form | None:
    """Return a form at other places; None if it depends on one that is not known."""
    made = uniform(form.constant, rank)
    for slope, place in zip(form.slopes, places, strict=True):
        if slope == ZERO:
            continue
        if place is None:
            return None
        made = made + place * slope
    return made


def _moved(operation: SeenNode) -> Facts:
    x = operation.operand(0)
    if x is None or x.dims is None:
        return Facts()
    places, before, rank = places_of(operation), x.dims, len(operation.dims)

    def carried(form: Form | None) -> Form | None:
        if form is None:
            return None
        made = None if places is None else at_places(form, places, rank)
        if made is None and operation.op_type in (*RESHAPING, "Flatten"):
            return merged(form, before, operation.dims)
        return made if made is not None or not form.is_uniform else uniform(form.constant, rank)

    def carried_band(band: Band | None) -> Band | None:
        if band is None or band.is_never:
            return band
        forms = [carried(form) for form in band.conditions]
        known = [form for form in forms if form is not None]
        return Band.where(known, operation.dims) if len(known) == len(forms) else None

    facts, choice = x.facts, x.facts.choice
    if choice is not None:
        band = carried_band(choice[0])
        choice = None if band is None else (band, *choice[1:])
    return replace(
        facts, form=carried(facts.form), band=carried_band(facts.band), choice=choice, kept=frozenset(), is_nan_of=None,
        elements=_moved_elements(operation, x), columns=(),
    )  # fmt: skip


def _resized(operation: SeenNode) -> Facts:
    """Return what holds for all elements: a Resize to the nearest takes some of them, and which depends on the
    sizes.
    """
    mode, transform = (operation.attributes.get(name) for name in ("mode", "coordinate_transformation_mode"))
    is_taken = mode in (None, "nearest") and transform != "tf_crop_and_resize"
    return _moved(operation) if is_taken else Facts()


def _moved_elements(operation: SeenNode, x: Operand) -> np.ndarray | None:
    """Return the elements of a part of a short vector."""
    elements = x.facts.elements
    if elements is None:
        return None
    if operation.op_type == "Gather":
        indices = operation.operand(1)
        numbers = None if indices is None else indices.numbers
        if numbers is None or indices is None or elements.ndim != 1 or indices.dims is None or len(indices.dims) > 1:
            return None
        if not all(-elements.size <= number < elements.size for number in numbers):
            return None
        taken = elements[np.array(numbers, int).reshape([d for d in indices.dims if isinstance(d, int)])]
        return np.asarray(taken, object)  # a single one is not an array
    if operation.op_type in (*RESHAPING, "Flatten") or operation.op_type == "Identity":
        static = [dim for dim in operation.dims if isinstance(dim, int)]
        return elements.reshape(static) if len(static) == len(operation.dims) < 2 else None
    places = places_of(operation)
    if operation.op_type != "Slice" or places is None or elements.ndim != 1 or not isinstance(operation.dims[0], int):
        return None
    start, step = (None, None) if places[0] is None else (places[0].constant.value, places[0].slopes[0].value)
    if start is None or step is None:
        return None
    return elements[[start + step * number for number in range(operation.dims[0])]]


def _joined(operation: SeenNode) -> Facts:
    parts, rank = [operand for operand in operation.operands if operand is not None], len(operation.dims)
    axis, facts = operation.integer("axis", 0) % rank, [part.facts for part in parts]
    first, *_ = facts
    columns: tuple[Form | None, ...] = ()
    if axis == rank - 1 and all(part.dims is not None and part.dims[-1] == 1 for part in parts):
        columns = tuple(
            None if fact.form is None else replace(fact.form, slopes=fact.form.slopes[:-1]) for fact in facts
        )
    elements = None
    if rank == 1 and all(fact.elements is not None for fact in facts):
        joined = np.concatenate([np.atleast_1d(fact.elements) for fact in facts])  # type: ignore[arg-type]
        elements = joined if joined.size <= LONGEST else None
    is_same = first.choice is not None and first.choice[0].is_always and all(first.choice == f.choice for f in facts)
    return Facts(
        form=_continued(parts, axis, rank),
        choice=first.choice if is_same else None,
        elements=elements,
        columns=columns,
        never_nan=all(fact.never_nan for fact in facts),
        never_infinite=all(fact.never_infinite for fact in facts),
        never_minus_infinite=all(fact.never_minus_infinite for fact in facts),
        never_negative_zero=all(fact.never_negative_zero for fact in facts),
        is_integral=all(fact.is_integral for fact in facts),
    )  # fmt: skip


def _continued(parts: Sequence[Operand], axis: int, rank: int) -> Form | None:
    """Return the form of which all parts are slices, one after the other."""
    pieces: list[tuple[Form, SizeSum, Sequence[Dim]]] = []
    begin = ZERO
    for part in parts:
        if part.facts.form is None or part.dims is None:
            return None
        pieces.append((part.facts.form, begin, part.dims))
        begin = begin + size_sum(part.dims[axis])
    candidates = [form.at(axis, unit(axis, rank) + uniform(-at, rank)) for form, at, dims in pieces if dims[axis] != 1]
    if not candidates and len(pieces) > 1:  # numbers, one after the other
        step = pieces[1][0].constant - pieces[0][0].constant
        candidates = [pieces[0][0] + unit(axis, rank) * step]
    for whole in candidates or [pieces[0][0]]:
        shifted = ((whole.at(axis, unit(axis, rank) + uniform(at, rank)), form, dims) for form, at, dims in pieces)
        if all(_agree(one, form, dims) for one, form, dims in shifted):
            return whole
    return None


def _agree(one: Form, other: Form, dims: Sequence[Dim]) -> bool:
    """Whether two forms are equal, but for the slopes of axes of one element."""
    slopes = zip(one.slopes, other.slopes, dims, strict=True)
    return one.constant == other.constant and all(dim == 1 or a == b for a, b, dim in slopes)


MOVES: Mapping[str, Callable[[SeenNode], Facts]] = {
    **dict.fromkeys(PLACES, _moved),
    "Concat": _joined,
    "Resize": _resized,
}
"""The rules of operators that move elements."""
